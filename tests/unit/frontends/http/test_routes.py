"""The route table, without a server."""

from __future__ import annotations

import pytest

from naiad.frontends.http.options import Restriction
from naiad.frontends.http.routes import Entry, Names, RouteBuilder, RouteTable
from naiad.keys.api_class import PAGE, STATISTICS
from naiad.transport.http1.exchange import Exchange
from naiad.transport.http1.head import Head, parse_head
from naiad.transport.http1.limits import Http1Limits
from naiad.transport.http1.route import Route


def head(line: str, *fields: str) -> Head:
    return parse_head("\r\n".join((line + " HTTP/1.1", *fields, "", "")).encode(), Http1Limits())


class Table:
    """Remembers which entry was built, with which names."""

    def __init__(self, **restricted: Restriction) -> None:
        self.built: list[tuple[str, Names]] = []
        entries = [
            Entry("GET", "/a/(?P<x>[^/]+)(?:/(?P<y>[0-9]+))?", STATISTICS, self._build("a")),
            Entry("POST", "/a/(?P<x>[^/]+)", PAGE, self._build("b")),
        ]
        self.table = RouteTable(entries, restricted)

    def _build(self, name: str) -> RouteBuilder:
        def build(_head: Head, names: Names) -> Route:
            self.built.append((name, names))
            return Route(lambda exchange: None)

        return build

    def status(self, request: Head) -> int:
        """Returns the status of the refusal, or 0 if an entry was built."""
        before = len(self.built)
        route = self.table(request)
        if len(self.built) > before:
            return 0
        answered: list[int] = []

        class Recorder(Exchange):
            def __init__(self) -> None:
                super().__init__(None, request, b"")

            def respond(self, status: int, headers: bytes, body: object = b"") -> None:
                answered.append(status)

        route.handle(Recorder())
        return answered[0]


def test_names_are_decoded_after_matching() -> None:
    table = Table()
    assert table.status(head("GET /a/b%2Fc%20d/7")) == 0
    assert table.status(head("GET /a/%ff")) == 0
    assert table.status(head("POST /a/x")) == 0
    assert table.built == [
        ("a", {"x": "b/c d", "y": "7"}),
        ("a", {"x": "\ufffd", "y": ""}),
        ("b", {"x": "x"}),
    ]


@pytest.mark.parametrize(
    ("line", "status"),
    [
        ("GET /a", 404),
        ("GET /a/", 404),
        ("GET /a/b/c", 404),
        ("GET /a/b/7/", 404),
        ("GET /A/b", 404),
        ("GET /a/b/%37", 404),
        ("GET /%61/b", 404),
        ("GET /a/b/../c", 404),
        ("PUT /a/b", 405),
        ("POST /a/b/7", 405),
        ("HEAD /a/b", 0),
        ("GET /a/..", 0),
    ],
)
def test_what_is_found(line: str, status: int) -> None:
    assert Table().status(head(line)) == status


def test_restriction() -> None:
    table = Table(statistics=Restriction("X-Key", "secret"))
    assert table.status(head("GET /a/b")) == 403
    assert table.status(head("GET /a/b", "x-key: secretx")) == 403
    assert table.status(head("GET /a/b", "x-key: secret")) == 0
    assert table.status(head("POST /a/b")) == 0


def test_a_route_without_an_api_class_fails_the_start() -> None:
    entry = Entry("GET", "/forgotten", "", lambda _head, _names: Route(lambda exchange: None))
    with pytest.raises(ValueError, match="the route GET /forgotten has the API class ''"):
        RouteTable([entry])
