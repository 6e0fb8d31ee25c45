"""The console of a router: one page with its nodes, replicas and models.

In:  the router's guard. Out: entries for the router's route table. The data comes from the router's
     admin API, which decides who may read it.
"""

from __future__ import annotations

from naiad.console.assets import page_entries
from naiad.console.sessions import SessionOptions, Sessions
from naiad.frontends.http.routes import Entry
from naiad.keys.guard import Guard


def router_console_entries(guard: Guard | None, *, is_tls: bool) -> list[Entry]:
    sessions = Sessions(guard, SessionOptions(pages=("nodes",), is_tls=is_tls))
    return [*page_entries(), *sessions.entries()]
