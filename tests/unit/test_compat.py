"""docs/compat.md is true: its tests are there, and its tables of names are those of the code, no
more and no less."""

from __future__ import annotations

import ast
import re
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple, cast

import pytest
from google.protobuf.descriptor import Descriptor

from naiad.backends.python import pb_utils
from naiad.frontends.http.frontend import HttpFrontend
from naiad.frontends.http.options import HttpOptions
from naiad.metrics.custom import CustomMetrics
from naiad.metrics.page import MetricsPage
from naiad.pb import grpc_service_pb2
from naiad.pb.model_config_pb2 import ModelConfig
from naiad.settings.effect import WITHOUT_EFFECT
from naiad.settings.resolve import OPTIONS, resolve

ROOT = Path(__file__).parents[2]
UNKNOWN_OPENAI_PATH = "/v1(?:/.*)?"
"""Answered in OpenAI's shape; not a route of anything."""
TEXT = (ROOT / "docs" / "compat.md").read_text()


class Row(NamedTuple):
    section: int
    table: str
    """What the first column is called."""
    first: str
    state: str
    note: str
    tests: list[str]

    @property
    def names(self) -> list[str]:
        return re.findall(r"`([^`]+)`", self.first)


def read_rows() -> list[Row]:
    rows: list[Row] = []
    section, table = 0, ""
    for line in TEXT.splitlines():
        if line.startswith("## "):
            section = int(line.split()[1].rstrip("."))
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        if not line.startswith("|") or set(line) <= set("|-"):
            continue
        if cells[1:] == ["state", "note", "test"]:
            table = cells[0]
        else:
            first, state, note, tests = cells
            rows.append(
                Row(
                    section,
                    table,
                    first,
                    state,
                    note,
                    [test.strip() for test in tests.split(",") if test.strip()],
                )
            )
    return rows


ROWS = read_rows()


def rows_of(table: str) -> list[Row]:
    return [row for row in ROWS if row.table == table]


def names_of(table: str, *states: str) -> set[str]:
    return {
        name for row in rows_of(table) if not states or row.state in states for name in row.names
    }


@pytest.mark.parametrize("row", ROWS, ids=lambda row: f"{row.section} {row.first[:40]}")
def test_a_row_is_complete(row: Row) -> None:
    assert row.state in ("same", "different", "absent")
    if row.state != "same":
        assert row.note, "why?"
    if row.state != "absent":
        assert row.tests, "what holds it?"
    for test in row.tests:
        path, _, name = test.partition("::")
        assert (ROOT / path).is_file(), path
        assert not name or name in functions(path), test


@cache
def functions(path: str) -> frozenset[str]:
    tree = ast.parse((ROOT / path).read_text())
    return frozenset(
        node.name
        for node in ast.walk(tree)
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef))
    )


def test_every_section_has_rows() -> None:
    assert sorted({row.section for row in ROWS}) == list(range(1, 19))


def test_nothing_of_this_machine_is_in_it() -> None:
    assert "../" not in TEXT
    without_routes = re.sub(r"(?:GET|POST) /(?=`|v|key/|health|ping|metrics)", "", TEXT)
    assert " /" not in without_routes


# Names.


def listed_fields(table: str, section: int) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for row in rows_of(table):
        if row.section == section:
            message, *fields = row.names
            found.setdefault(message, []).extend(fields)
    return found


def fields_of(root: Descriptor) -> dict[str, list[str]]:
    """Returns the fields of every message that can be reached, keyed by message. Entries of maps
    and messages without fields are left out."""
    found: dict[str, list[str]] = {}
    waiting = [root]
    while waiting:
        message = waiting.pop()
        name = message.full_name.partition(".")[2]
        if name in found:
            continue
        found[name] = [field.name for field in message.fields]
        waiting += [
            field.message_type for field in message.fields if field.message_type is not None
        ]
    return {name: fields for name, fields in found.items() if fields and not name.endswith("Entry")}


def in_order(fields: dict[str, list[str]]) -> dict[str, list[str]]:
    return {name: sorted(some) for name, some in sorted(fields.items())}


def test_config_fields() -> None:
    assert in_order(listed_fields("message: fields", 6)) == in_order(
        fields_of(cast(Descriptor, ModelConfig.DESCRIPTOR))
    )


def test_statistics() -> None:
    expected = fields_of(cast(Descriptor, grpc_service_pb2.ModelStatistics.DESCRIPTOR))
    del expected["StatisticDuration"]
    assert in_order(listed_fields("message: fields", 10)) == in_order(expected)


def test_rpcs() -> None:
    (service,) = grpc_service_pb2.DESCRIPTOR.services_by_name.values()
    assert names_of("RPC") == {method.name for method in service.methods}


class Anything:
    """A core that is never asked."""

    def __getattr__(self, name: str) -> Any:
        return Anything()


def test_routes() -> None:
    core: Any = Anything()
    entries = HttpFrontend(core, HttpOptions(), render_metrics=bytes)._entries()
    routes = [tuple(name.split()) for name in names_of("route")]
    for method, path in routes:
        assert any(
            entry.method == method and re.fullmatch(entry.pattern, path) for entry in entries
        ), path
    for entry in entries:
        if entry.pattern == UNKNOWN_OPENAI_PATH:
            continue
        assert any(
            entry.method == method and re.fullmatch(entry.pattern, path) for method, path in routes
        ), entry.pattern


def test_flags() -> None:
    assert names_of("flags") == set(OPTIONS)
    assert names_of("flags", "absent") == set(WITHOUT_EFFECT)
    ours = {name for name, option in OPTIONS.items() if option.flag.is_extension}
    assert {name for row in rows_of("flags") if row.note == "ours" for name in row.names} == ours


def test_metrics() -> None:
    flags = {"metrics-config": ["summary_latencies=true", "histogram_latencies=true"]}
    page = MetricsPage(resolve(flags, {}).settings, list, CustomMetrics())
    shown = {block.name for block in page._own_blocks([], page.sampler.latest)}
    assert names_of("metric", "same", "different") == shown
    assert not names_of("metric", "absent") & shown


def test_names_for_python_models() -> None:
    assert names_of("name in `triton_python_backend_utils`") == set(pb_utils.__all__)
