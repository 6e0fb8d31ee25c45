"""The shared memory extensions over HTTP, as a server answers them that has client shared memory switched off.

Status and unregister work on the empty set of regions: perf_analyzer and QA scripts call them on every server.
"""

from __future__ import annotations

from naiad.errors import not_found, unsupported
from naiad.frontends.http_answer import answer_error, answer_json
from naiad.frontends.http_routes import Names
from naiad.transport.http1_exchange import Exchange
from naiad.transport.http1_response import JSON_TYPE

DISABLED = "Client shared memory is disabled. Start the server with '--allow-client-shm=true' to enable."


def status(exchange: Exchange, names: Names) -> None:
    if names["region"]:
        answer_error(exchange, not_found(f"Unable to find {names['kind']} shared memory region: '{names['region']}'"))
    else:
        answer_json(exchange, b"[]")


def register(exchange: Exchange, _names: Names) -> None:
    answer_error(exchange, unsupported(DISABLED))


def unregister(exchange: Exchange, _names: Names) -> None:
    exchange.respond(200, JSON_TYPE)
