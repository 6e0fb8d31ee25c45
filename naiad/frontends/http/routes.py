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

from naiad.core.model_name import trim_name
from naiad.errors import Code, NaiadError, oversize_body
from naiad.frontends.http.browser_check import BrowserCheck
from naiad.frontends.http.cors import Cors
from naiad.frontends.http.options import HttpOptions, Restriction
from naiad.frontends.http.response import refuse_openai, refuse_v2
from naiad.keys.api_class import UNCLASSIFIED, check_class, group_of
from naiad.keys.guard import ClosedGate, Guard, read_bytes
from naiad.keys.request_id import is_request_id
from naiad.transport.http1.exchange import Exchange
from naiad.transport.http1.head import Head
from naiad.transport.http1.response_head import JSON_TYPE
from naiad.transport.http1.route import Route

Names: TypeAlias = dict[str, str]
_READING = frozenset(("GET", "HEAD"))
RouteBuilder: TypeAlias = Callable[[Head, Names], Route]
"""Builds the route of a request. It runs once per distinct request head, so that what depends on
the head alone is not computed per request."""


class Entry(msgspec.Struct, frozen=True):
    method: str
    pattern: str
    """A regular expression for the whole path; `build` gets its named groups, "" for those that are
    absent."""
    api: str
    """The API class (naiad.keys.api_class), which decides the scope that a key needs."""
    build: RouteBuilder
    hidden: Callable[[Names], NaiadError] | None = None
    """The error for a model that the key may not see: the one for a model that does not exist. None
    is Triton's error for most routes."""
    trims_name: bool = False
    """The repository ignores white space around the name of the model, so the guard must, too."""
    reads_files: bool = False
    """The response tells what is in files that the request chooses, although it only reads."""


def simple(
    handle: Callable[[Exchange, Names], None], max_body_bytes: int | None = None
) -> RouteBuilder:
    """Builds a route whose handler needs nothing but the names in the path. `max_body_bytes` is a
    limit that no option changes."""
    return lambda _head, names: Route(
        lambda exchange: handle(exchange, names),
        max_body_bytes=max_body_bytes,
        oversize_message=None if max_body_bytes is None else _oversize_fixed_message,
    )


_MAX_CONTROL_BYTES = 16 * 1024


def control(handle: Callable[[Exchange, Names], None]) -> RouteBuilder:
    """Builds a route whose body holds a few settings: it is read on the event loop, so it must be
    small."""
    return simple(handle, _MAX_CONTROL_BYTES)


def json_route(handle: Callable[[Exchange], None], options: HttpOptions) -> Route:
    """A route whose body is JSON without tensor data. Its limit is the smaller one of two options;
    a body above both has to name both."""

    def message(num_bytes: int, max_bytes: int) -> str:
        is_above_both = num_bytes > options.max_input_size
        option = "--http-max-json-size" + " and --http-max-input-size" * is_above_both
        return oversize_body(num_bytes, max_bytes, option).message

    return Route(handle, max_body_bytes=options.max_json_size, oversize_message=message)


def _oversize_fixed_message(num_bytes: int, max_bytes: int) -> str:
    return oversize_body(num_bytes, max_bytes, None).message


class RouteTable:
    def __init__(
        self,
        entries: list[Entry],
        restricted_apis: Mapping[str, Restriction] | None = None,
        guard: Guard | None = None,
        browser_check: BrowserCheck | None = None,
        cors: Cors | None = None,
    ) -> None:
        """`guard` is None where nobody needs an API key. Raises ValueError for an entry without an
        API class."""
        for entry in entries:
            check_class(entry.api, f"the route {entry.method} {entry.pattern}")
        self._entries = [(re.compile(entry.pattern.encode()), entry) for entry in entries]
        self._restricted_apis = restricted_apis or {}
        self._guard = guard
        self._browser_check = browser_check or BrowserCheck()
        self._cors = cors or Cors()

    def __call__(self, head: Head) -> Route:
        self._cors.mark(head)
        _mark_id(head)
        preflight = self._cors.preflight(head)
        if preflight is not None:
            refusal = self._browser_check.refusal(head, UNCLASSIFIED)
            return preflight if refusal is None else _refused(refusal)
        method = "GET" if head.method == "HEAD" else head.method
        allowed: list[str] = []
        for pattern, entry in self._entries:
            match = pattern.fullmatch(head.path)
            if match is None:
                continue
            if entry.method != method:
                if entry.api != UNCLASSIFIED:  # those have an error for every method
                    allowed.append(entry.method)
                continue
            names = {name: _decode(value) for name, value in match.groupdict().items()}
            return self._guarded(head, entry, names)
        return self._guarded(head, _missing(allowed), {})

    def _guarded(self, head: Head, entry: Entry, names: Names) -> Route:
        refusal = self._browser_check.refusal(head, entry.api) or self._restricted(head, entry.api)
        if refusal is not None:
            return _refused(refusal)
        route = entry.build(head, names)
        is_openai = head.path.startswith(b"/v1")
        route.refuse = refuse_openai if is_openai else refuse_v2
        if self._guard is not None:
            name = names.get("model", "")
            if entry.trims_name:
                name = trim_name(name)
            hidden = entry.hidden(names) if entry.hidden is not None and name else None
            route.gate = self._guard.gate(
                entry.api,
                read_bytes(head.headers),
                name,
                hidden,
                counts_tokens=is_openai,
                changes=head.method not in _READING,
            )
        return route

    def _restricted(self, head: Head, api: str) -> NaiadError | None:
        restriction = self._restricted_apis.get(group_of(api))
        if restriction is None or _has_key(head, restriction):
            return None
        return NaiadError(
            Code.PERMISSION_DENIED,
            f"This API is restricted, expecting header '{restriction.header}'",
        )


def _mark_id(head: Head) -> None:
    """Every response to a request with an id names it."""
    request_id = head.headers.get(b"x-request-id", b"")
    if is_request_id(request_id):
        head.is_plain = False
        head.response_headers += b"X-Request-Id: %b\r\n" % request_id


def _refused(error: NaiadError) -> Route:
    route = Route(lambda exchange: refuse_v2(exchange, error))
    route.gate, route.refuse = ClosedGate(error), refuse_v2
    return route


def _decode(value: bytes | None) -> str:
    return "" if value is None else unquote_to_bytes(value).decode("utf-8", "replace")


def _has_key(head: Head, restriction: Restriction) -> bool:
    value = head.headers.get(restriction.header.lower().encode(), b"")
    return hmac.compare_digest(value, restriction.value.encode())


def _missing(allowed: list[str]) -> Entry:
    """The entry for a path that does not exist, or not with the request's method."""
    if not allowed:
        return Entry("", "", UNCLASSIFIED, lambda _head, _names: _refusal(404, "Not Found"))
    methods = b"Allow: %b\r\n" % ", ".join(sorted(set(allowed))).encode()
    return Entry(
        "", "", UNCLASSIFIED, lambda _head, _names: _refusal(405, "Method Not Allowed", methods)
    )


def _refusal(status: int, message: str, headers: bytes = b"") -> Route:
    body = b'{"error":%b}' % msgspec.json.encode(message)
    return Route(lambda exchange: exchange.respond(status, JSON_TYPE + headers, body))
