"""Divides the CPUs among the instances of a Python model: OMP_NUM_THREADS of its process.

PyTorch, MKL, OpenBLAS and others read it when they are imported, and would use every core in every
instance. The rule:
- A model with one CPU instance, and an instance on a GPU, use what they like, unless the
  parameter CPU_CORES says how many cores an instance has.
- OMP_NUM_THREADS in the server's environment is the user's choice and stays. Variables of one
  library, such as OPENBLAS_NUM_THREADS, have precedence over OMP_NUM_THREADS in that library.
- What the model sets itself, such as `torch.set_num_threads`, comes later and is not touched.
"""

from __future__ import annotations

import ctypes
import os
from pathlib import Path

from naiad.backends.served_config import CPU_CORES, read_config
from naiad.ipc.work import LoadArguments

VARIABLE = "OMP_NUM_THREADS"
_OPENBLAS_VARIABLES = ("OPENBLAS_NUM_THREADS", "GOTO_NUM_THREADS")
_OPENBLAS_SETTERS = (
    "scipy_openblas_set_num_threads64_",
    "scipy_openblas_set_num_threads",
    "openblas_set_num_threads64_",
    "openblas_set_num_threads",
)


def share_cores(arguments: LoadArguments) -> None:
    """Must be called before the model's code is imported."""
    if VARIABLE in os.environ:
        return
    config = read_config(arguments)
    is_alone = arguments.instance_kind == "GPU" or config.num_cpu_instances < 2
    if is_alone and not config.integer(CPU_CORES, 0):
        return
    os.environ[VARIABLE] = str(config.threads())
    if not any(name in os.environ for name in _OPENBLAS_VARIABLES):
        _limit_loaded_openblas(config.threads())


def _limit_loaded_openblas(num_threads: int) -> None:
    """The template has imported numpy, whose OpenBLAS has read its variables already."""
    lines = Path("/proc/self/maps").read_text().splitlines()
    for path in {line.split(maxsplit=5)[-1] for line in lines if "openblas" in line}:
        try:
            library = ctypes.CDLL(path, mode=os.RTLD_NOLOAD | os.RTLD_NOW)
        except OSError:
            continue
        for name in _OPENBLAS_SETTERS:
            if hasattr(library, name):
                getattr(library, name)(num_threads)
                break
