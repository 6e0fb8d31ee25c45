"""Adds the parts of a benchmark as command-line arguments. Without arguments all parts run."""

from __future__ import annotations

import argparse
from collections.abc import Sequence


def add_parts(parser: argparse.ArgumentParser, known: Sequence[str]) -> None:
    def one(name: str) -> str:
        # argparse's `choices` would reject an empty list in Python 3.11.
        if name not in known:
            raise argparse.ArgumentTypeError(f"unknown part '{name}', expected {', '.join(known)}")
        return name

    parser.add_argument(
        "parts",
        nargs="*",
        type=one,
        default=list(known),
        help=f"parts to run: {', '.join(known)}; default: all",
    )
