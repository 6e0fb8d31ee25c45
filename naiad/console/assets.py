"""The files of the pages, with the headers that a browser needs to trust them.

Rule: the policy has no exceptions: scripts and styles come from files of this server, and nothing
      is inline. A browser asks whether a file has changed before it uses its own copy.
"""

from __future__ import annotations

import hashlib
from functools import cache
from importlib.resources import files

import msgspec

from naiad.frontends.http.routes import Entry, Names, simple
from naiad.keys.api_class import PAGE
from naiad.transport.http1.exchange import Exchange

TYPES = {
    "html": b"text/html; charset=utf-8",
    "css": b"text/css; charset=utf-8",
    "js": b"text/javascript; charset=utf-8",
    "svg": b"image/svg+xml",
}
POLICY = (
    b"default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; "
    b"connect-src 'self'; form-action 'none'; base-uri 'none'; frame-ancestors 'none'"
)
_HEADERS = (
    b"Content-Security-Policy: " + POLICY + b"\r\n"
    b"X-Content-Type-Options: nosniff\r\n"
    b"Referrer-Policy: no-referrer\r\n"
    b"Cross-Origin-Opener-Policy: same-origin\r\n"
    b"Cache-Control: no-cache\r\n"
)


class Asset(msgspec.Struct, frozen=True):
    body: bytes
    headers: bytes
    tag: bytes


@cache
def find_asset(name: str) -> Asset | None:
    """Returns None for a name that is not a file of the pages."""
    kind = name.rpartition(".")[2]
    folder = files("naiad.console").joinpath("static")
    if kind not in TYPES or name not in {file.name for file in folder.iterdir()}:
        return None
    body = folder.joinpath(name).read_bytes()
    tag = b'"%b"' % hashlib.sha256(body).hexdigest()[:20].encode()
    return Asset(body, b"Content-Type: %b\r\nETag: %b\r\n" % (TYPES[kind], tag) + _HEADERS, tag)


def respond_asset(exchange: Exchange, name: str) -> None:
    asset = find_asset(name) if len(name) < 100 else None
    if asset is None:
        exchange.respond_error(404, "Not Found")
    elif exchange.head.headers.get(b"if-none-match") == asset.tag:
        exchange.respond(304, asset.headers)
    else:
        exchange.respond(200, asset.headers, asset.body)


def page_entries() -> list[Entry]:
    """The routes of the pages, which are open to everybody and contain no data."""
    return [
        Entry("GET", "/console", PAGE, simple(_index)),
        Entry("GET", "/console/", PAGE, simple(_redirect)),
        Entry("GET", "/console/static/(?P<name>[^/]+)", PAGE, simple(_asset)),
    ]


def _index(exchange: Exchange, _names: Names) -> None:
    respond_asset(exchange, "index.html")


def _redirect(exchange: Exchange, _names: Names) -> None:
    """The page names its files relative to /console, so that it works below any path."""
    exchange.respond(308, b"Location: ../console\r\n")


def _asset(exchange: Exchange, names: Names) -> None:
    respond_asset(exchange, names["name"])
