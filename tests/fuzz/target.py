"""What is fuzzed: a function of bytes that raises when the code under test does something wrong.

In:  functions marked with `@target`; the topic modules are imported by `load_targets`.
Out: `TARGETS`, by name. `seeds/NAME` has valid inputs, and `found/NAME` the inputs that once showed
     a defect; both are replayed by `make test`.
Rule: a target accepts the typed errors that a client or an operator would see, and nothing else.
"""

from __future__ import annotations

import importlib.util
import random
from collections.abc import Callable, Iterable
from pathlib import Path

import msgspec

from tests.fuzz import mutation

FOLDER = Path(__file__).parent
MODULES = ("parsers", "checkpoints", "grammars", "frontends", "live")

Run = Callable[[bytes], None]
Mutate = Callable[[bytes, random.Random], bytes]


class Target(msgspec.Struct, frozen=True):
    name: str
    run: Run
    tokens: tuple[bytes, ...] = ()
    """Pieces that the format is made of; mutations insert them."""
    mutate: Mutate | None = None
    """A mutation that knows the structure; bytes are changed too."""
    more_seeds: Callable[[], Iterable[bytes]] = tuple
    """Seeds that the repository has elsewhere."""
    is_live: bool = False
    """True if `run` sends to a server in another process: coverage cannot guide it."""
    needs: tuple[str, ...] = ()
    """Packages without which the target cannot run."""

    def missing_packages(self) -> list[str]:
        return [name for name in self.needs if importlib.util.find_spec(name) is None]

    def seeds(self) -> list[bytes]:
        return [*_files(FOLDER / "seeds" / self.name), *self.more_seeds()]

    def found(self) -> list[bytes]:
        return _files(FOLDER / "found" / self.name)

    def mutated(self, data: bytes, other: bytes, chance: random.Random) -> bytes:
        if self.mutate is not None and chance.random() < 0.6:
            data = self.mutate(data, chance)
            if chance.random() < 0.7:
                return data
        return mutation.mutated(data, other, self.tokens, chance)


TARGETS: dict[str, Target] = {}


def target(
    *,
    tokens: Iterable[bytes] = (),
    mutate: Mutate | None = None,
    more_seeds: Callable[[], Iterable[bytes]] = tuple,
    is_live: bool = False,
    needs: tuple[str, ...] = (),
) -> Callable[[Run], Run]:
    """Registers a function under its own name, with - for _."""

    def register(run: Run) -> Run:
        name = run.__name__.replace("_", "-")
        assert name not in TARGETS, f"two targets are called {name}"
        TARGETS[name] = Target(name, run, tuple(tokens), mutate, more_seeds, is_live, needs)
        return run

    return register


def load_targets() -> dict[str, Target]:
    for module in MODULES:
        importlib.import_module(f"tests.fuzz.{module}")
    return TARGETS


def _files(folder: Path) -> list[bytes]:
    return [path.read_bytes() for path in sorted(folder.glob("*")) if path.is_file()]
