# SPDX-License-Identifier: Apache-2.0
"""silent_files.py FOLDER: mounts a file system with one file. A process that reads the file waits until this program
ends, and no signal ends it once this program has written "asked"."""
import errno
import stat
import sys
import threading

import fusepy

FILE = "/file"


class Silent(fusepy.Operations):
    def getattr(self, path, fh=None):
        if path == "/":
            return {"st_mode": stat.S_IFDIR | 0o755, "st_nlink": 2}
        if path == FILE:
            return {"st_mode": stat.S_IFREG | 0o644, "st_nlink": 1, "st_size": 1}
        raise fusepy.FuseOSError(errno.ENOENT)

    def read(self, path, size, offset, fh):
        print("asked", flush=True)
        threading.Event().wait()


fusepy.FUSE(Silent(), sys.argv[1], foreground=True, allow_other=True)
