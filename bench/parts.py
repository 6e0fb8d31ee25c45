"""The parts of a bench that were named on its command line; all of them when none is."""

from __future__ import annotations

import argparse
from collections.abc import Sequence


def add_parts(parser: argparse.ArgumentParser, known: Sequence[str]) -> None:
    parser.add_argument("parts", nargs="*", help=f"{', '.join(known)}; all when none is named")


def chosen_parts(parser: argparse.ArgumentParser, named: Sequence[str], known: Sequence[str]) -> list[str]:
    """Not argparse's `choices`: with it, Python 3.11 refuses to name none."""
    for part in named:
        if part not in known:
            parser.error(f"unknown part '{part}', expected {', '.join(known)}")
    return list(named or known)
