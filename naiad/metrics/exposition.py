"""The text format of Prometheus.

It is written by hand because 100 models take 5 ms this way and 100 ms with prometheus_client. The
format of numbers and the order of labels and histogram lines are Triton's (prometheus-cpp).
Rule: the page can be parsed, whatever characters names, help texts and label values contain.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping
from functools import partial

METRIC_NAME = re.compile(r"[a-zA-Z_:][a-zA-Z0-9_:]*")
_SERIES = re.compile(r"^([a-zA-Z_:][a-zA-Z0-9_:]*)([ {])", re.MULTILINE)
LABEL_NAME = re.compile(r"[a-zA-Z_][a-zA-Z0-9_]*")

COUNTER, GAUGE, HISTOGRAM, SUMMARY = "counter", "gauge", "histogram", "summary"
KINDS = (COUNTER, GAUGE, HISTOGRAM, SUMMARY)


class Block:
    """One metric family of the page. An empty block is not shown."""

    __slots__ = ("help", "kind", "lines", "name")

    def __init__(self, name: str, kind: str, help: str) -> None:
        self.name = name
        self.kind = kind
        self.help = help
        self.lines: list[str] = []

    def add(self, labels: str, value: float) -> None:
        """Adds one line. `labels` is a result of `label_text`."""
        braces = f"{{{labels}}}" if labels else ""
        self.lines.append(f"{self.name}{braces} {number(value)}\n")

    def add_histogram(
        self, labels: str, bounds: Iterable[str], counts: Iterable[int], total: float
    ) -> None:
        """Adds a histogram. `counts` are not cumulative and end with the count for +Inf."""
        name = self.name
        comma = "," if labels else ""
        start = f"{name}_bucket{{{labels}{comma}le="
        cumulative = 0
        buckets = []
        for bound, count in zip((*bounds, "+Inf"), counts, strict=True):
            cumulative += count
            buckets.append(f'{start}"{bound}"}} {cumulative}\n')
        braces = f"{{{labels}}}" if labels else ""
        self.lines.append(
            f"{name}_count{braces} {cumulative}\n{name}_sum{braces} {number(total)}\n"
        )
        self.lines += buckets

    def add_summary(
        self, labels: str, quantiles: Iterable[tuple[float, float]], count: int, total: float
    ) -> None:
        name = self.name
        comma = "," if labels else ""
        braces = f"{{{labels}}}" if labels else ""
        self.lines.append(f"{name}_count{braces} {count}\n{name}_sum{braces} {number(total)}\n")
        self.lines += [
            f'{name}{{{labels}{comma}quantile="{number(q)}"}} {number(value)}\n'
            for q, value in quantiles
        ]


def page(blocks: Iterable[Block]) -> bytes:
    """Renders the page. Kinds are in Triton's order, and blocks of one kind in the given order."""
    shown = [block for block in blocks if block.lines]
    parts: list[str] = []
    for kind in KINDS:
        for block in shown:
            if block.kind == kind:
                parts.append(
                    f"# HELP {block.name} {_escape_help(block.help)}\n# TYPE {block.name} {kind}\n"
                )
                parts += block.lines
    return "".join(parts).encode(errors="replace")


def with_labels(text: bytes, labels: Mapping[str, str]) -> bytes:
    """Adds labels to every series of a page. A series that has one of them keeps its own. Labels
    without a value are not added."""
    wanted = {name: value for name, value in labels.items() if value}
    if not wanted:
        return text
    page = text.decode(errors="replace")
    if not any(f'{name}="' in page for name in wanted):
        added = label_text(wanted)
        return _SERIES.sub(partial(_insert, added=added), page).encode()
    lines = []
    for line in page.splitlines(keepends=True):
        added = label_text(
            {
                name: value
                for name, value in wanted.items()
                if not re.search(rf'[{{,]{name}="', line)
            }
        )
        lines.append(_SERIES.sub(partial(_insert, added=added), line))
    return "".join(lines).encode()


def _insert(match: re.Match[str], added: str) -> str:
    name, end = match.groups()
    if not added:
        return match.group()
    return f"{name}{{{added}," if end == "{" else f"{name}{{{added}}} "


def number(value: float) -> str:
    if isinstance(value, int):
        return str(value)
    if math.isfinite(value):
        return f"{value:.16g}"
    return "Nan" if math.isnan(value) else "+Inf" if value > 0 else "-Inf"


def label_text(labels: Mapping[str, str]) -> str:
    """Returns the text between the braces of a line."""
    return ",".join(f'{name}="{_escape_label(labels[name])}"' for name in sorted(labels))


def _escape_label(text: str) -> str:
    return text.replace("\\", "\\\\").replace("\n", "\\n").replace('"', '\\"')


def _escape_help(text: str) -> str:
    return text.replace("\\", "\\\\").replace("\n", "\\n")
