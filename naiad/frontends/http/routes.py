"""The route table: method and path -> Route, by regular expressions over the path as it was sent.

Names in a path are percent-decoded after matching, so that an encoded slash cannot change where a
request goes.
Rule: what a request may do is decided from the routed path alone, never from Host, query or a
      normalised path.
"""

from __future__ import annotations

import hmac
import re
from collections.abc import Callable, Mapping
from typing import TypeAlias
from urllib.parse import unquote_to_bytes

import msgspec

from naiad.frontends.http.options import Restriction
from naiad.transport.http1.exchange import Exchange
from naiad.transport.http1.head import Head
from naiad.transport.http1.response_head import JSON_TYPE
from naiad.transport.http1.route import Route

Names: TypeAlias = dict[str, str]
RouteBuilder: TypeAlias = Callable[[Head, Names], Route]
"""Builds the route of a request. It runs once per distinct request head, so that what depends on
the head alone is not computed per request."""


class Entry(msgspec.Struct, frozen=True):
    method: str
    pattern: str
    """A regular expression for the whole path; `build` gets its named groups, "" for those that are
    absent."""
    group: str
    """Triton's name for the set of APIs that the route belongs to, for `--http-restricted-api`; a
    route of group "" is never restricted."""
    build: RouteBuilder


def simple(handle: Callable[[Exchange, Names], None]) -> RouteBuilder:
    """Builds a route whose handler needs nothing but the names in the path."""
    return lambda _head, names: Route(lambda exchange: handle(exchange, names))


class RouteTable:
    def __init__(
        self, entries: list[Entry], restricted_apis: Mapping[str, Restriction] | None = None
    ) -> None:
        self._entries = [(re.compile(entry.pattern.encode()), entry) for entry in entries]
        self._restricted_apis = restricted_apis or {}

    def __call__(self, head: Head) -> Route:
        method = "GET" if head.method == "HEAD" else head.method
        allowed: list[str] = []
        for pattern, entry in self._entries:
            match = pattern.fullmatch(head.path)
            if match is None:
                continue
            if entry.method != method:
                allowed.append(entry.method)
                continue
            restriction = self._restricted_apis.get(entry.group)
            if restriction is not None and not _has_key(head, restriction):
                return _refusal(
                    403, f"This API is restricted, expecting header '{restriction.header}'"
                )
            return entry.build(
                head, {name: _decode(value) for name, value in match.groupdict().items()}
            )
        if allowed:
            return _refusal(
                405,
                "Method Not Allowed",
                b"Allow: %b\r\n" % ", ".join(sorted(set(allowed))).encode(),
            )
        return _refusal(404, "Not Found")


def _decode(value: bytes | None) -> str:
    return "" if value is None else unquote_to_bytes(value).decode("utf-8", "replace")


def _has_key(head: Head, restriction: Restriction) -> bool:
    value = head.headers.get(restriction.header.lower().encode(), b"")
    return hmac.compare_digest(value, restriction.value.encode())


def _refusal(status: int, message: str, headers: bytes = b"") -> Route:
    body = b'{"error":%b}' % msgspec.json.encode(message)
    return Route(lambda exchange: exchange.respond(status, JSON_TYPE + headers, body))
