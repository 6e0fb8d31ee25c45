"""The HTTP endpoint: Triton's routes over the HTTP/1.1 transport, in front of the inference core.

In:  the core and HttpOptions. Out: `protocol_factory` for loop.create_server; each entry of the
     table names its handler.
Rule: handlers call a codec and the core; this file has no tensor logic.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import msgspec

from naiad.errors import NaiadError, invalid_arg
from naiad.fastpath.http_plans import HttpPlans
from naiad.frontends.core import Core
from naiad.frontends.http.browser_check import BrowserCheck
from naiad.frontends.http.cors import Cors
from naiad.frontends.http.gateway import GatewayRoutes
from naiad.frontends.http.infer_routes import MODEL_PATH, InferRoutes, Leaves
from naiad.frontends.http.keys import KeyRoutes
from naiad.frontends.http.load_report import Gauges
from naiad.frontends.http.metadata import MetadataRoutes
from naiad.frontends.http.options import HttpOptions
from naiad.frontends.http.repository import RepositoryRoutes
from naiad.frontends.http.routes import (
    Entry,
    Names,
    RouteTable,
    control,
    simple,
)
from naiad.frontends.http.settings import SettingRoutes
from naiad.frontends.http.shared_memory import SharedMemoryRoutes
from naiad.frontends.http.welcome import welcome
from naiad.frontends.openai.frontend import LeavesAtHead, OpenAiRoutes
from naiad.frontends.side_thread import SideThread
from naiad.keys.api_class import (
    HEALTH,
    LOGGING,
    METADATA,
    MODEL_CONFIG,
    MODEL_READINESS,
    MODEL_REPOSITORY,
    PAGE,
    SHARED_MEMORY,
    STATISTICS,
    TRACE,
)
from naiad.keys.guard import Guard
from naiad.keys.key_watch import KeyWatch
from naiad.transport.http1.connection import Http1Connection
from naiad.transport.http1.endpoint import Http1Endpoint

_REPOSITORY = r"/v2/repository(?:/(?P<repository>[^/]+))?"
_TRACED = r"/v2(?:/models/(?P<model>[^/]+))?"
_MEMORY = r"/v2/(?P<kind>system|cuda)sharedmemory(?:/region/(?P<region>[^/]+))?"


class HttpFrontend:
    def __init__(
        self,
        core: Core,
        options: HttpOptions,
        gauges: Gauges | None = None,
        guard: Guard | None = None,
        key_watch: KeyWatch | None = None,
        render_metrics: Callable[[], bytes] | None = None,
        more: Sequence[Entry] = (),
        leaves: Leaves | None = None,
        leaves_openai: LeavesAtHead | None = None,
    ) -> None:
        """`gauges` reads what models show on the metrics page. `guard` is None where nobody needs
        an API key, `key_watch` where there is no key file, `render_metrics` where the server shows
        no metrics. `more` are routes of the layers above. `leaves` and `leaves_openai` tell which
        inference requests other processes serve; None means that this one serves all."""
        self._core = core
        self._options = options
        self._side_thread = SideThread()
        self._infer = InferRoutes(core, options, self._side_thread, guard, leaves, gauges)
        self._leaves_openai = leaves_openai
        self._repository = RepositoryRoutes(core, self._side_thread)
        self._memory = SharedMemoryRoutes(core.regions)
        self._keys = KeyRoutes(key_watch)
        self._gateway = GatewayRoutes(core, render_metrics)
        has_console = any(entry.pattern.startswith("/console") for entry in more)
        table = RouteTable(
            [*self._entries(has_console=has_console), *more],
            options.restricted_apis,
            guard,
            BrowserCheck(options.allowed_hosts, options.allowed_origins),
            Cors(options.allowed_origins),
        )
        self._endpoint = Http1Endpoint(
            table,
            msgspec.structs.replace(options.limits, max_body_bytes=options.max_input_size),
            budget=core.budget,
        )

    def _entries(self, *, has_console: bool = False) -> list[Entry]:
        metadata, repository, memory = MetadataRoutes(self._core), self._repository, self._memory
        settings = SettingRoutes(self._core)
        return [
            *self._infer.entries(),
            Entry("GET", "/", PAGE, welcome(has_console=has_console)),
            Entry("GET", "/v2/health/live", HEALTH, simple(metadata.live)),
            Entry("GET", "/v2/health/ready", HEALTH, simple(metadata.ready)),
            # A key that may see the statistics of its models may see this.
            Entry("GET", "/v2/health/details", STATISTICS, simple(metadata.health)),
            Entry("GET", MODEL_PATH + "/ready", MODEL_READINESS, simple(metadata.model_ready)),
            Entry("GET", "/v2", METADATA, simple(metadata.server)),
            Entry("GET", "/v2/models/stats", STATISTICS, simple(metadata.all_statistics)),
            Entry("GET", MODEL_PATH, METADATA, simple(metadata.model)),
            Entry("GET", MODEL_PATH + "/config", MODEL_CONFIG, simple(metadata.config)),
            Entry(
                "GET",
                MODEL_PATH + "/stats",
                STATISTICS,
                simple(metadata.statistics),
                _no_statistics,
            ),
            Entry("POST", _REPOSITORY + "/index", MODEL_REPOSITORY, simple(repository.index)),
            Entry(
                "POST",
                _REPOSITORY + "/models/(?P<model>[^/]+)/load",
                MODEL_REPOSITORY,
                simple(repository.load),
                trims_name=True,
            ),
            Entry(
                "POST",
                _REPOSITORY + "/models/(?P<model>[^/]+)/unload",
                MODEL_REPOSITORY,
                simple(repository.unload),
                trims_name=True,
            ),
            Entry("GET", _MEMORY + "/status", SHARED_MEMORY, simple(memory.status)),
            Entry("POST", _MEMORY + "/register", SHARED_MEMORY, control(memory.register)),
            Entry("POST", _MEMORY + "/unregister", SHARED_MEMORY, control(memory.unregister)),
            Entry("GET", "/v2/logging", LOGGING, simple(settings.show_log)),
            Entry("POST", "/v2/logging", LOGGING, control(settings.update_log)),
            Entry("GET", _TRACED + "/trace/setting", TRACE, simple(settings.show_trace)),
            Entry("POST", _TRACED + "/trace/setting", TRACE, control(settings.update_trace)),
            *self._gateway.entries(),
            *self._keys.entries(),
            *OpenAiRoutes(
                self._core, self._options, self._side_thread, self._leaves_openai
            ).entries(),
        ]

    def protocol_factory(self) -> Http1Connection:
        """The argument of `loop.create_server(...)`, with or without an ssl context."""
        return self._endpoint.protocol_factory()

    async def stop(self, grace_s: float) -> None:
        """Ends every connection; requests in work may finish within `grace_s`. The caller has
        closed the listening sockets."""
        await self._endpoint.stop(grace_s)
        await self._repository.stop()
        await self._memory.stop()
        await self._keys.stop()
        self._side_thread.stop()

    @property
    def num_connections(self) -> int:
        """Connections that are open now."""
        return len(self._endpoint.connections)

    @property
    def num_requests(self) -> int:
        """Requests received since the start."""
        return self._endpoint.num_requests

    @property
    def endpoint(self) -> Http1Endpoint:
        return self._endpoint

    @property
    def plans(self) -> HttpPlans | None:
        """The plans of the fast path; None where it is switched off."""
        return self._infer.plans


def _no_statistics(names: Names) -> NaiadError:
    """Triton's error for the statistics of a model that does not exist."""
    return invalid_arg(f"requested model '{names['model']}' is not available")
