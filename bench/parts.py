"""The parts of a bench that are named on its command line; all of them when none is."""

from __future__ import annotations

import argparse
from collections.abc import Sequence


def add_parts(parser: argparse.ArgumentParser, known: Sequence[str]) -> None:
    def one(name: str) -> str:
        """Not argparse's `choices`: with them, Python 3.11 refuses to name none."""
        if name not in known:
            raise argparse.ArgumentTypeError(f"unknown part '{name}', expected {', '.join(known)}")
        return name

    parser.add_argument(
        "parts",
        nargs="*",
        type=one,
        default=list(known),
        help=f"{', '.join(known)}; all when none is named",
    )
