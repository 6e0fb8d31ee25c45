"""The W3C trace context of a client. Malformed headers are ignored."""

from __future__ import annotations

import pytest

from naiad.core.trace import RemoteParent
from naiad.trace.w3c import read_parent

TRACE, SPAN = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"


def read(parent: str, state: str = "") -> RemoteParent | None:
    headers = {"traceparent": parent, "tracestate": state}
    return read_parent(lambda name: headers.get(name, ""))


def test_reads_a_sampled_parent() -> None:
    assert read(f"00-{TRACE}-{SPAN}-01") == RemoteParent(int(TRACE, 16), int(SPAN, 16), True)


def test_reads_a_parent_that_is_not_sampled() -> None:
    parent = read(f"00-{TRACE}-{SPAN}-02", "a=b")
    assert parent == RemoteParent(int(TRACE, 16), int(SPAN, 16), False, "a=b")


def test_accepts_later_versions_with_more_fields() -> None:
    assert read(f"01-{TRACE}-{SPAN}-01-more") is not None


def test_ignores_a_state_that_is_too_long() -> None:
    parent = read(f"00-{TRACE}-{SPAN}-01", "a" * 513)
    assert parent is not None
    assert parent.state == ""


@pytest.mark.parametrize(
    "parent",
    [
        "",
        "x",
        f"ff-{TRACE}-{SPAN}-01",
        f"00-{TRACE}-{SPAN}-01-more",
        f"00-{TRACE[1:]}-{SPAN}-01",
        f"00-{TRACE.upper()}-{SPAN}-01",
        f"00-{'0' * 32}-{SPAN}-01",
        f"00-{TRACE}-{'0' * 16}-01",
        f"00-{TRACE}-{SPAN}-1",
        f"00-{TRACE}-{SPAN}-01\nx",
    ],
)
def test_ignores_malformed_headers(parent: str) -> None:
    assert read(parent) is None
