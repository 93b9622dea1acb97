# SPDX-License-Identifier: Apache-2.0
"""Where programs and libraries are, in a checkout or in an unpacked bundle, and what this machine has."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

from . import processes

ROOT = Path(__file__).resolve().parents[2]
BUNDLED = (ROOT / "BUNDLE").exists()
TARGETS = ["dtrain", "dtrain-agent", "dtrain-allreduce", "dtrain_runtime", "gpu_check"]
FAKES = ["fake_cuda", "fake_nccl"]
# Of a caller who debugs something else: it would change what is checked.
OURS = ("DTRAIN_", "FAKE_", "NCCL_HOSTID", "NCCL_COMM_BLOCKING", "PMI_", "HOROVOD_")
KEPT = ("DTRAIN_CUDA_LIBRARY", "DTRAIN_NCCL_LIBRARY", "DTRAIN_NVML_LIBRARY")


def build(preset, rehearse):
    """The programs, with as many compilers as there are processors. In a bundle they are there."""
    if BUNDLED:
        return
    env = {**os.environ, "CCACHE_BASEDIR": str(ROOT), "CCACHE_NOHASHDIR": "1",
           "CCACHE_SLOPPINESS": "pch_defines,time_macros"}
    folder = ROOT / "build" / preset
    for argv in (["cmake", "--preset", preset],
                 ["cmake", "--build", str(folder), "-j", str(os.cpu_count()), "--target",
                  *TARGETS, *(FAKES if rehearse else [])]):
        done = subprocess.run(argv, cwd=ROOT, env=env, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                              stderr=subprocess.STDOUT, text=True, check=False)
        if done.returncode != 0:
            raise SystemExit(f"gpu-check: {' '.join(argv)} failed:\n{done.stdout[-3000:]}")


def python_with(module, env):
    """The first Python here that has a module, or None."""
    tried = set()
    for name in (os.environ.get("GPU_CHECK_PYTHON"), "python3", sys.executable, "/usr/bin/python3", "python"):
        path = shutil.which(name) if name else None
        if path is None or os.path.realpath(path) in tried:
            continue
        tried.add(os.path.realpath(path))
        if processes.run([path, "-c", f"import {module}"], env, 60).code == 0:
            return path
    return None


# Where pip puts NVIDIA's own package of NCCL, on which torch's depends.
_NCCL_OF_PIP = """
import glob, site, sys, sysconfig
places = [sysconfig.get_path("purelib"), sysconfig.get_path("platlib"), *sys.path]
try:
    places += [site.getusersitepackages(), *site.getsitepackages()]
except AttributeError:
    pass
for place in places:
    for file in glob.glob(f"{place}/nvidia/nccl/lib/libnccl.so.2"):
        print(file)
"""


class Place:
    """One run's programs, environment and findings."""

    def __init__(self, preset="release", rehearse=False):
        self.rehearse = rehearse
        base = ROOT if BUNDLED else ROOT / "build" / preset
        self.bin, self.lib = base / "bin", base / "lib"
        self.gpu_check, self.dtrain = self.bin / "gpu_check", self.bin / "dtrain"
        self.python_path = ROOT / "python" if BUNDLED else ROOT / "runtime" / "python"
        # The fakes of a rehearsal are told by FAKE_*; a real run must not be.
        self.env = {name: value for name, value in os.environ.items()
                    if not name.startswith(OURS) or name in KEPT or (rehearse and name.startswith("FAKE_"))}
        self.env["PYTHONPATH"] = f"{self.python_path}:{ROOT / 'tools'}"
        self.env["PYTHONDONTWRITEBYTECODE"] = "1"
        self.env["DTRAIN_LIBRARY"] = str(self.lib / "libdtrain.so.0")
        self._standard_library()
        if rehearse:
            self.env["DTRAIN_CUDA_LIBRARY"] = str(self.lib / "fake_cuda" / "libcuda.so.1")
            self.env["DTRAIN_NCCL_LIBRARY"] = str(self.lib / "fake_nccl" / "libnccl.so.2")
            self.env.setdefault("FAKE_CUDA_DEVICES", "1")
        self.nccl_file = self._find_nccl()
        self.gpus = 0  # check 1 counts them
        self.smi = None if rehearse else shutil.which("nvidia-smi")
        self.sanitizer = None if rehearse else self._find_sanitizer()
        self.torch, self.no_torch = self._find_torch()

    def _standard_library(self):
        """A bundle has one for machines without; others use their own."""
        spare = self.lib / "spare"
        if spare.exists() and processes.run([self.gpu_check], self.env, 20).code == 127:
            self.env["LD_LIBRARY_PATH"] = f"{spare}:{self.env.get('LD_LIBRARY_PATH', '')}".rstrip(":")

    def _find_nccl(self):
        """The file that DTRAIN_NCCL_LIBRARY names, else the loader's, else pip's, which is then named."""
        if "DTRAIN_NCCL_LIBRARY" in self.env:
            return self.env["DTRAIN_NCCL_LIBRARY"]
        load = "import ctypes; ctypes.CDLL('libnccl.so.2')"
        if processes.run([sys.executable, "-c", load], self.env, 20).code == 0:
            return "libnccl.so.2"
        for name in (os.environ.get("GPU_CHECK_PYTHON"), "python3", sys.executable, "/usr/bin/python3"):
            path = shutil.which(name) if name else None
            found = processes.run([path, "-c", _NCCL_OF_PIP], self.env, 20).out.split() if path else []
            if found:
                self.env["DTRAIN_NCCL_LIBRARY"] = found[0]
                return found[0]
        return None

    def _find_sanitizer(self):
        usual = "/usr/local/cuda/bin/compute-sanitizer"
        return shutil.which("compute-sanitizer") or (usual if os.access(usual, os.X_OK) else None)

    def _find_torch(self):
        if self.rehearse:
            return None, "PyTorch with CUDA: not in a rehearsal"
        python = python_with("torch", self.env)
        if python is None:
            return None, "no Python here has PyTorch (GPU_CHECK_PYTHON names one)"
        seen = processes.run([python, "-c", "import torch; print(torch.cuda.is_available())"], self.env, 60)
        if seen.out.strip() != "True":
            return None, f"PyTorch of {python} has no CUDA"
        return python, ""

    def launch(self, ranks, program, share=True, grace="12s", export=()):
        """The words of a job on this machine. `share`: all ranks on the first GPU."""
        words = [self.dtrain, "launch", "-np", f"-{ranks}", "--tag-output", "none", "--stdin", "none",
                 "--bind", "none", "--grace", grace]
        if share:
            export = (*export, "DTRAIN_DEVICE=0", "NCCL_SOCKET_IFNAME=lo", "DTRAIN_ADDRESS=127.0.0.1")
            words += ["--gpu-bind", "none", "--oversubscribe"]
        elif self.rehearse:
            words += ["--gpu-bind", "none", "--oversubscribe"]
        for each in export:
            words += ["-x", each]
        return [*words, "--", *program]

    def sharing(self, ranks):
        """What several ranks need to be on one GPU."""
        return ("DTRAIN_SHARE_GPU=1",) if ranks > 1 else ()

    def smi_query(self, what):
        """A line for each GPU; None where there is no nvidia-smi."""
        if self.smi is None:
            return None
        ended = processes.run([self.smi, f"--query-gpu={what}", "--format=csv,noheader,nounits"], self.env, 20)
        return ended.out.split("\n")[:-1] if ended.code == 0 else None

    def no_smi(self):
        return "nvidia-smi: not in a rehearsal" if self.rehearse else "no nvidia-smi"
