"""Health, metadata, configuration and statistics over HTTP."""

from __future__ import annotations

from collections.abc import Callable

from naiad.core.tensor import Buffer
from naiad.errors import NaiadError
from naiad.frontends.core import Core
from naiad.frontends.http.response import respond_empty, respond_error, respond_health, respond_json
from naiad.frontends.http.routes import Names
from naiad.frontends.visible import visible
from naiad.protocol.v2.metadata import (
    encode_health,
    encode_model_metadata,
    encode_server_metadata,
    encode_statistics,
)
from naiad.transport.http1.exchange import Exchange


class MetadataRoutes:
    def __init__(self, core: Core) -> None:
        self._core = core

    def live(self, exchange: Exchange, _names: Names) -> None:
        respond_health(exchange, "live", is_true=self._core.is_live())

    def ready(self, exchange: Exchange, _names: Names) -> None:
        self._core.ask_ready(lambda is_ready: respond_health(exchange, "ready", is_true=is_ready))

    def health(self, exchange: Exchange, _names: Names) -> None:
        health = self._core.health()
        health.models = visible(health.models, exchange.identity)
        respond_json(exchange, encode_health(health))

    def model_ready(self, exchange: Exchange, names: Names) -> None:
        def respond(is_ready: bool) -> None:
            if is_ready:
                respond_empty(exchange)
            else:
                exchange.respond_error(400, "Model version not ready")

        try:
            self._core.ask_model_ready(names["model"], names["version"], respond)
        except NaiadError as error:
            respond_error(exchange, error)

    def server(self, exchange: Exchange, _names: Names) -> None:
        respond_json(exchange, encode_server_metadata(self._core.metadata))

    def model(self, exchange: Exchange, names: Names) -> None:
        _respond(
            exchange,
            lambda: encode_model_metadata(
                self._core.model_metadata(names["model"], names["version"])
            ),
        )

    def config(self, exchange: Exchange, names: Names) -> None:
        _respond(exchange, lambda: self._core.model_config_json(names["model"], names["version"]))

    def statistics(self, exchange: Exchange, names: Names) -> None:
        _respond(
            exchange,
            lambda: encode_statistics(self._core.statistics(names["model"], names["version"])),
        )

    def all_statistics(self, exchange: Exchange, _names: Names) -> None:
        _respond(
            exchange,
            lambda: encode_statistics(visible(self._core.statistics(), exchange.identity)),
        )


def _respond(exchange: Exchange, encode: Callable[[], Buffer]) -> None:
    try:
        body = encode()
    except NaiadError as error:
        respond_error(exchange, error)
    else:
        respond_json(exchange, body)
