"""The routes of POST /v2/models/M/infer, /generate and /generate_stream: one route per distinct
request head.

The HTTP endpoint of the server process and those of frontend processes share this file.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

from naiad.core.request import ParameterValue
from naiad.fastpath.http_plans import HttpPlans
from naiad.frontends.core import Inference
from naiad.frontends.header_forward import HeaderForward
from naiad.frontends.http.generate import GenerateRoute
from naiad.frontends.http.infer import InferRoute
from naiad.frontends.http.load_report import Gauges
from naiad.frontends.http.options import HttpOptions
from naiad.frontends.http.routes import Entry, Names, json_route
from naiad.frontends.side_thread import SideThread
from naiad.keys.api_class import INFERENCE
from naiad.keys.guard import Guard
from naiad.protocol.v2 import raw_request
from naiad.transport.http1.connection import Http1Connection
from naiad.transport.http1.head import Head
from naiad.transport.http1.route import Route

MODEL_PATH = r"/v2/models/(?P<model>[^/]+)(?:/versions/(?P<version>[0-9]+))?"
INFER_PATH = MODEL_PATH + "/infer"
Leaves: TypeAlias = Callable[[Http1Connection, Head, str, str], bool]
"""(connection, head, model, version) -> True if another process serves the request."""


class InferRoutes:
    def __init__(
        self,
        core: Inference,
        options: HttpOptions,
        side_thread: SideThread,
        guard: Guard | None = None,
        leaves: Leaves | None = None,
        gauges: Gauges | None = None,
    ) -> None:
        """`guard` is None where nobody needs an API key, `leaves` where this process serves all
        requests, `gauges` where responses have no load report."""
        self._gauges = gauges
        self._core = core
        self._options = options
        self._side_thread = side_thread
        self._leaves = leaves
        self._header_forward = HeaderForward(
            options.header_forward_pattern,
            () if guard is None else (*guard.header_names, "cookie"),
        )
        self.forward = self._forward_headers if self._header_forward.is_on else None
        """Returns the parameters that the headers of a request become; None if no header is
        forwarded."""
        self.plans = HttpPlans() if options.fast_paths else None

    def entries(self) -> list[Entry]:
        return [
            Entry("POST", INFER_PATH, INFERENCE, self._build),
            Entry("POST", MODEL_PATH + "/generate", INFERENCE, self._build_generate),
            Entry("POST", MODEL_PATH + "/generate_stream", INFERENCE, self._build_generate_stream),
        ]

    def _build(self, head: Head, names: Names) -> Route:
        name, version = names["model"], names["version"]
        infer = InferRoute(
            self._core,
            head,
            name,
            version,
            self._options.max_input_size,
            self._options.max_json_size,
            self.forward,
            self.plans,
            self._side_thread,
        )
        route = Route(
            infer.handle,
            body_buffer=infer.body_buffer,
            oversize_message=raw_request.oversize_message if infer.is_raw else None,
            on_lost=None if infer.is_raw else infer.on_lost,
        )
        return self._leaving(route, head, name, version)

    def _build_generate(self, head: Head, names: Names) -> Route:
        return self._generate_route(head, names, is_stream=False)

    def _build_generate_stream(self, head: Head, names: Names) -> Route:
        return self._generate_route(head, names, is_stream=True)

    def _generate_route(self, head: Head, names: Names, *, is_stream: bool) -> Route:
        name, version = names["model"], names["version"]
        generate = GenerateRoute(
            self._core,
            head,
            name,
            version,
            self._options.max_input_size,
            self.forward,
            self._gauges,
            self._side_thread,
            is_stream=is_stream,
        )
        return self._leaving(json_route(generate.handle, self._options), head, name, version)

    def _leaving(self, route: Route, head: Head, name: str, version: str) -> Route:
        leaves = self._leaves
        if leaves is not None:
            route.leaves = lambda connection: leaves(connection, head, name, version)
        return route

    def _forward_headers(self, head: Head) -> dict[str, ParameterValue]:
        """Raises NaiadError."""
        return self._header_forward.select(
            (head.names[key].decode("latin-1"), value.decode("utf-8", "replace"))
            for key, value in head.headers.items()
        )
