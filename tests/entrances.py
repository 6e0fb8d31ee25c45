"""Every way into the server: the routes and RPCs of its own tables, with paths to try them."""

from __future__ import annotations

import re

import msgspec

from naiad.frontends.grpc.frontend import GrpcFrontend
from naiad.frontends.http.frontend import HttpFrontend
from naiad.frontends.http.options import HttpOptions
from naiad.keys.api_class import group_of, scope_of
from tests.fakes import FakeCore

MODEL = "request_info"
EXPANSIONS = {
    r"(?:/versions/(?P<version>[0-9]+))?": ("", "/versions/1"),
    r"(?:/(?P<repository>[^/]+))?": ("", "/some"),
    r"(?:/region/(?P<region>[^/]+))?": ("", "/region/a"),
    r"(?:/models/(?P<model>[^/]+))?": ("", f"/models/{MODEL}"),
    r"(?P<kind>system|cuda)": ("system", "cuda"),
    r"(?P<model>[^/]+)": (MODEL, "other%2Fname"),
    r"(?P<model>.+)": (MODEL, "other/name"),
    r"(?:/.*)?": ("", "/anything"),
}
"""Parts of the patterns of routes, and texts that match them."""


class Entrance(msgspec.Struct, frozen=True):
    method: str
    """Empty for an RPC."""
    path: str
    api: str
    """The API class that keys need."""
    group: str
    """The one that Triton's restrictions name."""
    names_model: bool = False
    """The path names a model. RPCs name it in their message."""


def http_entrances() -> list[Entrance]:
    frontend = HttpFrontend(FakeCore(), HttpOptions(), render_metrics=bytes)
    entrances = []
    for entry in frontend._entries():
        paths = [entry.pattern]
        for part, texts in EXPANSIONS.items():
            paths = [
                path.replace(part, text)
                for path in paths
                for text in (texts if part in path else ("",))
            ]
        for path in dict.fromkeys(paths):
            match = re.fullmatch(entry.pattern, path)
            assert match, f"EXPANSIONS lacks an entry to make a path for {entry.pattern}"
            names_model = bool(match.groupdict().get("model"))
            entrances.append(
                Entrance(entry.method, path, scope_of(entry.api), group_of(entry.api), names_model)
            )
    return entrances


def rpc_entrances() -> list[Entrance]:
    return [
        Entrance("", method.path, scope_of(method.api), group_of(method.api))
        for method in GrpcFrontend(FakeCore())._methods()
    ]
