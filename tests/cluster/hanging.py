# SPDX-License-Identifier: Apache-2.0
"""A file system whose server never answers, as a home on an NFS server that is down: hanging.py FOLDER
mounts it (FUSE) and lives as long as it hangs. Whoever looks into it waits in the kernel."""
import ctypes
import os
import sys
import threading

libc = ctypes.CDLL(None, use_errno=True)
folder = sys.argv[1]
server = os.open("/dev/fuse", os.O_RDWR)
options = f"fd={server},rootmode=40000,user_id=0,group_id=0,allow_other"
if libc.mount(b"hanging", folder.encode(), b"fuse", 0, options.encode()) != 0:
    sys.exit(f"mount on {folder}: {os.strerror(ctypes.get_errno())}")
print("hangs", flush=True)
threading.Event().wait()
