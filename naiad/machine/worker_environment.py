"""The environment variables that models see: those of the server without the server's secrets, or
only those that the operator names.

In:  the server's variables, and what `--worker-environment` says. Out: the variables of workers.
Triton hands down everything. A model that reads a token of its own from the environment works here
too; what belongs to the server alone stays there.
"""

from __future__ import annotations

import fnmatch
from collections.abc import Collection, Mapping

from naiad.machine.telemetry import OFF

OWN_PREFIX = "NAIAD_"
"""Variables of the server itself: its options, keys of clients."""
FOR_WORKERS = frozenset(
    {"NAIAD_CACHE", "NAIAD_PDL", "NAIAD_SHORT_LAUNCH", "NAIAD_NODE_NAME", "NAIAD_REPLICA_NAME"}
)
"""Variables with that prefix that backends and models may read."""
ALWAYS = (
    *("PATH", "HOME", "USER", "LOGNAME", "SHELL", "TZ", "LANG", "LANGUAGE", "LC_*"),
    *("TMPDIR", "XDG_*", "LD_*", "GLIBC_*", "MALLOC_*", "SSL_CERT_*", "PYTHON*", "VIRTUAL_ENV"),
    *("CONDA_PREFIX", "CUDA*", "NVIDIA_*", "NCCL_*", "OMP_*", "KMP_*", "MKL_*", "OPENBLAS_*"),
    *("TORCH*", "PYTORCH_*", "TRITON_INTERPRET", "HF_HOME", "HF_HUB_*"),
    *FOR_WORKERS,
    *OFF,
)
"""What interpreters, loaders and frameworks need. It always passes."""


def worker_environment(
    environ: Mapping[str, str], patterns: Collection[str], secrets: Collection[str]
) -> dict[str, str]:
    """`patterns` are names of variables, in which `*` stands for any characters. `secrets` are
    names of variables that hold the server's credentials. A secret, and a variable of the server
    itself, passes only if one of `patterns` is exactly its name."""
    return {name: value for name, value in environ.items() if _passes(name, patterns, secrets)}


def is_secret(name: str, secrets: Collection[str]) -> bool:
    return name in secrets or (name.startswith(OWN_PREFIX) and name not in FOR_WORKERS)


def _passes(name: str, patterns: Collection[str], secrets: Collection[str]) -> bool:
    if is_secret(name, secrets):
        return name in patterns
    return any(fnmatch.fnmatchcase(name, pattern) for pattern in (*patterns, *ALWAYS))
