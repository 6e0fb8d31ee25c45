"""Runs one target under libFuzzer, which keeps inputs that reach new code. Started by run.py.

python -m tests.fuzz.guided NAME [libFuzzer's arguments]
"""

from __future__ import annotations

import random
import resource
import sys

import atheris

with atheris.instrument_imports(include=["naiad"]):
    from tests.fuzz.target import load_targets

    TARGETS = load_targets()


MAX_ADDRESS_SPACE_BYTES = 8 << 30
"""libFuzzer looks at the memory once a second; this holds at once."""


def main() -> None:
    resource.setrlimit(resource.RLIMIT_AS, (MAX_ADDRESS_SPACE_BYTES, MAX_ADDRESS_SPACE_BYTES))
    chosen = TARGETS[sys.argv.pop(1)]
    with atheris.instrument_imports(include=["naiad"]):
        for data in chosen.seeds():
            chosen.run(data)  # imports what only some inputs need

    def mutate(data: bytes, max_size: int, seed: int) -> bytes:
        chance = random.Random(seed)
        if chance.random() < 0.5:
            return bytes(atheris.Mutate(data, max_size))
        return chosen.mutated(data, data, chance)[:max_size]

    atheris.Setup(sys.argv, chosen.run, custom_mutator=mutate)
    atheris.Fuzz()


if __name__ == "__main__":
    main()
