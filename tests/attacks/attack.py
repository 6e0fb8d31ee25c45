"""What an attack is, and the table of all attacks.

In:  functions of one Target, marked with `@attack`; the topic modules are imported by run.py.
Out: `ATTACKS`, by name.
Rule: an attack sends requests and checks what it must see in the responses; run.py measures.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from tests.attacks.target import Target

MIB = 1 << 20
CODE = "code"
"""The main repository, and a model that runs the Python code that it gets."""


@dataclass(frozen=True)
class Attack:
    name: str
    run: Callable[[Target], None]
    max_memory_bytes: int
    """How far the peak memory of the server process may rise above what it held before."""
    flags: tuple[str, ...] = ()
    """Options of the server."""
    repository: str = "main"
    """The folder under tests/repositories that is served, or CODE; it must contain `add_sub`."""


ATTACKS: dict[str, Attack] = {}


def attack(
    max_memory_bytes: int, *, flags: tuple[str, ...] = (), repository: str = "main"
) -> Callable[[Callable[[Target], None]], Callable[[Target], None]]:
    """Registers a function under its own name, with - for _."""

    def register(run: Callable[[Target], None]) -> Callable[[Target], None]:
        name = run.__name__.replace("_", "-")
        assert name not in ATTACKS, f"two attacks are called {name}"
        ATTACKS[name] = Attack(name, run, max_memory_bytes, flags, repository)
        return run

    return register
