"""GET and POST /v2/trace/setting and /v2/models/M/trace/setting: what is traced, for the server or
for one model.

And `start_trace`, with which the HTTP routes of inference begin a trace.
"""

from __future__ import annotations

from time import monotonic_ns
from typing import TYPE_CHECKING

import msgspec

from naiad.core.request import InferRequest
from naiad.core.trace import TraceGroup
from naiad.errors import NaiadError, invalid_arg
from naiad.frontends.http.response import answer_error, answer_json
from naiad.frontends.http.routes import Names
from naiad.protocol.v2.extension_json import decode_trace_update
from naiad.trace.tracing import Tracing
from naiad.trace.w3c import read_parent
from naiad.transport.http1.exchange import Exchange

if TYPE_CHECKING:
    from naiad.inference import InferenceCore


def start_trace(tracing: Tracing, request: InferRequest, exchange: Exchange) -> TraceGroup | None:
    """Of a request that is to be traced, with the times of its arrival."""
    now_ns = monotonic_ns()
    headers = exchange.head.headers
    parent = (
        read_parent(lambda name: headers.get(name.encode(), b"").decode("latin-1"))
        if tracing.is_otel
        else None
    )
    group = tracing.sample(request.model_name, parent)
    if group is not None:
        group.stamp("HTTP_RECV_START", exchange.receive_start_ns or now_ns)
        group.stamp("HTTP_RECV_END", now_ns)
    return group


class TraceRoutes:
    def __init__(self, core: InferenceCore, tracing: Tracing) -> None:
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


def check_model(core: InferenceCore, name: str) -> None:
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
