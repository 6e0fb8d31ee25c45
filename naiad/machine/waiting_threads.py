"""Environment variables with which the threads of OpenMP and OpenBLAS sleep while they wait.

By default they spin, which takes the CPU from other instances, from the server and from every other
process: a model with eight instances on two cores then spends nearly all of its time on waiting.
The libraries read the variables once, when they are loaded, so that they are set where a process is
started.
"""

from __future__ import annotations

from collections.abc import Mapping

_OPENMP = ("OMP_WAIT_POLICY", "GOMP_SPINCOUNT", "KMP_BLOCKTIME", "KMP_LIBRARY")
"""The user's own choice, for any OpenMP library, is in one of these."""


def sleeping_threads(variables: Mapping[str, str]) -> dict[str, str]:
    """Returns the variables, with ours added where the user has not chosen."""
    result = dict(variables)
    if not any(name in variables for name in _OPENMP):
        result["OMP_WAIT_POLICY"] = "PASSIVE"
        # For Intel's and LLVM's libraries, which spin for 200 ms before they sleep.
        result["KMP_BLOCKTIME"] = "0"
    # The exponent of the number of clock ticks; 4 is the least that OpenBLAS accepts, 26 its
    # default.
    result.setdefault("OPENBLAS_THREAD_TIMEOUT", "4")
    return result
