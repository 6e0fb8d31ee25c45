"""The traces of the console: ask for the trace of one request, or for a sample; read the latest.

In:  the server's Tracing. Out: entries for the route table.
Rule: a ticket that is not used, and a sample that nobody ends, expire by themselves, so that the
      fast path is never off for long.
"""

from __future__ import annotations

import asyncio

import msgspec

from naiad.core.identity import Identity
from naiad.errors import invalid_arg
from naiad.frontends.http.response import respond_error
from naiad.frontends.http.routes import Entry, Names, control, simple
from naiad.keys.api_class import TRACE
from naiad.trace.recent_traces import HEADER, TICKET_S, RecentTrace
from naiad.trace.tracing import Tracing
from naiad.transport.http1.exchange import Exchange
from naiad.transport.http1.response_head import JSON_TYPE

MAX_SAMPLE_S = 600
MAX_RATE = 1_000_000
_PRIVATE = JSON_TYPE + b"Cache-Control: no-store\r\n"


class TraceTicket(msgspec.Struct, frozen=True):
    header: str
    """The header that the request must have."""
    ticket: str
    expires_s: float = TICKET_S


class TraceList(msgspec.Struct, frozen=True):
    rate: int
    """One of so many requests is traced now; 0 means none."""
    ends_s: float
    traces: list[RecentTrace]


class _Sample(msgspec.Struct, forbid_unknown_fields=True):
    rate: int
    seconds: float = 60.0


class TraceRoutes:
    def __init__(self, tracing: Tracing) -> None:
        self._tracing = tracing

    def entries(self) -> list[Entry]:
        api = "/console/api/traces"
        return [
            Entry("GET", api, TRACE, simple(self._show)),
            Entry("POST", api, TRACE, control(self._sample)),
            Entry("POST", f"{api}/ticket", TRACE, control(self._issue_ticket)),
        ]

    def _show(self, exchange: Exchange, _names: Names) -> None:
        recent = self._tracing.recent
        traces = [trace for trace in recent.all() if _may_see(exchange.identity, trace)]
        body = TraceList(recent.rate, recent.ends_s, traces)
        exchange.respond(200, _PRIVATE, msgspec.json.encode(body))

    def _issue_ticket(self, exchange: Exchange, _names: Names) -> None:
        ticket = self._tracing.recent.issue_ticket()
        self._tracing.update_is_on()
        asyncio.get_running_loop().call_later(TICKET_S + 0.1, self._expire)
        exchange.respond(200, _PRIVATE, msgspec.json.encode(TraceTicket(HEADER, ticket)))

    def _sample(self, exchange: Exchange, names: Names) -> None:
        try:
            sample = msgspec.json.decode(bytes(exchange.body), type=_Sample)
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            respond_error(exchange, invalid_arg(f"the body is not valid: {error}"))
            return
        if not 0 <= sample.rate <= MAX_RATE or not 0 < sample.seconds <= MAX_SAMPLE_S:
            respond_error(
                exchange,
                invalid_arg(
                    f"expected a rate from 0 to {MAX_RATE} and at most {MAX_SAMPLE_S} seconds, "
                    f"not {sample.rate} and {sample.seconds:g}"
                ),
            )
            return
        self._tracing.recent.set_sample(sample.rate, sample.seconds)
        self._tracing.update_is_on()
        asyncio.get_running_loop().call_later(sample.seconds + 0.1, self._expire)
        self._show(exchange, names)

    def _expire(self) -> None:
        self._tracing.recent.expire()
        self._tracing.update_is_on()


def _may_see(identity: Identity | None, trace: RecentTrace) -> bool:
    """A trace names the models that a request caused, too."""
    if identity is None:
        return True
    return all(identity.may_see(span.model) for span in trace.waterfall.spans)
