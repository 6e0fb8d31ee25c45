"""The child process of a measurement that the console starts (naiad.console.measure).

In:  a ChildOrder on standard input. Out: what `naiad perf` or `naiad analyze` prints.
Rule: it has a low priority, and it ends when the server ends.
"""

from __future__ import annotations

import os
import signal
import sys
from typing import Any

import click
import msgspec

from naiad.cli.main import naiad, run
from naiad.console.measure.job import ChildOrder
from naiad.machine.process_tree import die_with_parent
from naiad.perf.command import command as perf_command
from naiad.perf.command import run_perf


def main() -> int:
    order = msgspec.json.decode(sys.stdin.buffer.read(), type=ChildOrder)
    die_with_parent(order.parent, signal.SIGTERM)
    os.nice(order.nice)
    # Reports show the command line of the process.
    sys.argv = ["naiad", *order.shown]
    if order.arguments[0] == "perf" and order.headers:
        return run(_guarded_perf(order), "perf", [])
    return run(naiad, "naiad", order.arguments)


def _guarded_perf(order: ChildOrder) -> click.Command:
    """The headers hold a session, so they are not arguments, which a report would show."""

    def measure() -> int:
        values: dict[str, Any] = perf_command.parse(order.arguments[1:])
        values["header"] = (*values.get("header", ()), *order.headers)
        return run_perf(values)

    return click.Command("perf", callback=measure)


if __name__ == "__main__":
    sys.exit(main())
