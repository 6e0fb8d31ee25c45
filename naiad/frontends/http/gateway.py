"""What gateways, clusters and scrapers ask for on the serving port: /health, /ping, /version and
/metrics.

The names and the responses are vLLM's; /ping is also SageMaker's. A server that is not ready
responds 503, because a load balancer understands that.
"""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from naiad import __version__
from naiad.frontends.core import Core
from naiad.frontends.http.response import respond_empty, respond_json
from naiad.frontends.http.routes import Entry, Names, simple
from naiad.frontends.metrics import respond, send
from naiad.keys.api_class import HEALTH, METADATA, METRICS
from naiad.transport.http1.exchange import Exchange

_VERSION = msgspec.json.encode({"version": __version__})


class GatewayRoutes:
    def __init__(self, core: Core, render_metrics: Callable[[], bytes] | None) -> None:
        """`render_metrics` is None where the server shows no metrics."""
        self._core = core
        self._render_metrics = render_metrics

    def entries(self) -> list[Entry]:
        entries = [
            Entry("GET", "/health", HEALTH, simple(self._health)),
            Entry("GET", "/ping", HEALTH, simple(self._health)),
            Entry("POST", "/ping", HEALTH, simple(self._health)),
            Entry("GET", "/version", METADATA, simple(self._version)),
        ]
        if self._render_metrics is not None:
            entries.append(Entry("GET", "/metrics", METRICS, simple(self._metrics)))
        return entries

    def _health(self, exchange: Exchange, _names: Names) -> None:
        self._core.ask_ready(lambda is_ready: respond_empty(exchange, 200 if is_ready else 503))

    def _version(self, exchange: Exchange, _names: Names) -> None:
        respond_json(exchange, _VERSION)

    def _metrics(self, exchange: Exchange, _names: Names) -> None:
        assert self._render_metrics is not None
        send(exchange, respond("GET", b"/metrics", self._render_metrics))
