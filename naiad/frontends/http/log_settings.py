"""GET and POST /v2/logging: what is logged, and how; changed for the whole server while it runs.
Never where to."""

from __future__ import annotations

import msgspec

from naiad import log
from naiad.errors import NaiadError
from naiad.frontends.http.response import answer_error, answer_json
from naiad.frontends.http.routes import Names
from naiad.protocol.v2.extension_json import decode_log_update
from naiad.transport.http1.exchange import Exchange


def show(exchange: Exchange, _names: Names) -> None:
    answer_json(exchange, msgspec.json.encode(log.shown_settings()))


def update(exchange: Exchange, names: Names) -> None:
    try:
        log.update(decode_log_update(exchange.body))
    except NaiadError as error:
        answer_error(exchange, error)
    else:
        show(exchange, names)
