"""GET and POST /v2/trace/setting and /v2/models/M/trace/setting: what is traced, for the server or
for one model.
"""

from __future__ import annotations

import msgspec

from naiad.errors import NaiadError, invalid_arg
from naiad.frontends.core import Health
from naiad.frontends.http.response import answer_error, answer_json
from naiad.frontends.http.routes import Names
from naiad.protocol.v2.extension_json import decode_trace_update
from naiad.trace.tracing import Tracing
from naiad.transport.http1.exchange import Exchange


class TraceRoutes:
    def __init__(self, core: Health, tracing: Tracing) -> None:
        self._core = core
        self._tracing = tracing

    def show(self, exchange: Exchange, names: Names) -> None:
        model = names["model"]
        try:
            check_model(self._core, model)
        except NaiadError as error:
            answer_error(exchange, error)
        else:
            answer_json(exchange, _encode(self._tracing.shown(model)))

    def update(self, exchange: Exchange, names: Names) -> None:
        model = names["model"]
        try:
            check_model(self._core, model)
            self._tracing.update(model, decode_trace_update(exchange.body))
        except NaiadError as error:
            answer_error(exchange, error)
        else:
            answer_json(exchange, _encode(self._tracing.shown(model)))


def check_model(core: Health, name: str) -> None:
    if name and not core.is_model_ready(name):
        raise invalid_arg(f"Request for unknown model : {name}")


def _encode(shown: dict[str, list[str]]) -> bytes:
    """The level is a list, all else is one text."""
    return msgspec.json.encode(
        {
            name: values if name == "trace_level" else ",".join(values)
            for name, values in shown.items()
        }
    )
