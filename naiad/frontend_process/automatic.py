"""How many frontend processes a server has when nobody says so."""

from __future__ import annotations

MIN_CPUS = 8
"""With fewer CPUs, one process and the workers use them all."""
CPUS_PER_FRONTEND = 4
"""The others are for workers, the scheduler and the kernel."""
MAX_FRONTENDS = 8
"""The scheduler is busy all the time then."""


def automatic_count(num_cpus: int) -> int:
    """`num_cpus` is what affinity and quota leave to the server."""
    if num_cpus < MIN_CPUS:
        return 1
    return min(num_cpus // CPUS_PER_FRONTEND, MAX_FRONTENDS)
