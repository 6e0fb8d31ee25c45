"""GET and POST /v2/trace/setting, /v2/models/M/trace/setting and /v2/logging: what the server
traces and logs, read and changed while it runs.

No client may change the file that the log is written to.
"""

from __future__ import annotations

import msgspec

from naiad import log
from naiad.errors import NaiadError, invalid_arg
from naiad.frontends.core import Core, Health
from naiad.frontends.http.response import respond_error, respond_json
from naiad.frontends.http.routes import Names
from naiad.protocol.v2.extension_json import decode_log_update, decode_trace_update
from naiad.transport.http1.exchange import Exchange


class SettingRoutes:
    def __init__(self, core: Core) -> None:
        self._core = core
        self._tracing = core.tracing

    def show_trace(self, exchange: Exchange, names: Names) -> None:
        model = names["model"]
        try:
            check_model(self._core, model)
        except NaiadError as error:
            respond_error(exchange, error)
        else:
            respond_json(exchange, _encode_trace(self._tracing.shown(model)))

    def update_trace(self, exchange: Exchange, names: Names) -> None:
        model = names["model"]
        try:
            check_model(self._core, model)
            self._tracing.update(model, decode_trace_update(exchange.body))
        except NaiadError as error:
            respond_error(exchange, error)
        else:
            respond_json(exchange, _encode_trace(self._tracing.shown(model)))

    def show_log(self, exchange: Exchange, _names: Names) -> None:
        respond_json(exchange, msgspec.json.encode(log.shown_settings()))

    def update_log(self, exchange: Exchange, names: Names) -> None:
        try:
            log.update(decode_log_update(exchange.body))
        except NaiadError as error:
            respond_error(exchange, error)
        else:
            self.show_log(exchange, names)


def check_model(core: Health, name: str) -> None:
    """Trace settings are the server's when the name is empty. Raises NaiadError."""
    if name and not core.is_model_ready(name):
        raise invalid_arg(f"Request for unknown model : {name}")


def _encode_trace(shown: dict[str, list[str]]) -> bytes:
    """The level is a list; every other setting is one string."""
    return msgspec.json.encode(
        {
            name: values if name == "trace_level" else ",".join(values)
            for name, values in shown.items()
        }
    )
