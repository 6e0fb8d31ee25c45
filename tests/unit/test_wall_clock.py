"""A jump of the system's clock changes nothing that waits or expires inside the server: timers read
the monotonic clock. The modules that read the wall clock are listed here with their reasons."""

from __future__ import annotations

import ast
from pathlib import Path

PACKAGE = Path(__file__).parents[2] / "naiad"
WALL_CLOCK = {
    ("time", "time"),
    ("time", "time_ns"),
    ("datetime", "now"),
    ("datetime", "utcnow"),
    ("datetime", "today"),
    ("date", "today"),
}
SHOWN_TO_PEOPLE = {
    "analyze/profile.py",
    "backends/llm/metrics.py",
    "console/console.py",
    "console/live.py",
    "console/measure/job.py",
    "core/statistics.py",
    "frontends/openai/frontend.py",
    "llm/kv_events.py",
    "llm/text/chat_template.py",
    "log/__init__.py",
    "perf/report/profile_export.py",
    "perf/report/saved_run.py",
    "router/http_frontend.py",
    "server.py",
    "tools/doctor/system_clock.py",
    "trace/otel.py",
    "trace/recent_traces.py",
}
"""Times in logs, pages, traces and responses."""
OUTLIVES_THE_PROCESS = {
    "files/console_link.py",
    "frontend_process/remote_guard.py",
    "keys/account.py",
    "keys/audit_trail.py",
    "keys/guard.py",
    "keys/key.py",
    "keys/key_table.py",
    "keys/token/verifier.py",
    "repository/deploy/change.py",
    "repository/deploy/draft.py",
    "repository/watch/recent_change.py",
    "router/process.py",
    "stores/download.py",
    "stores/remote_store.py",
    "wiring.py",
}
"""The expiry and the budget of a key, and the age of a file on disk."""


def readers() -> set[str]:
    found = set()
    for path in PACKAGE.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name | ast.Attribute):
                owner = node.value.id if isinstance(node.value, ast.Name) else node.value.attr
                if (owner, node.attr) in WALL_CLOCK:
                    found.add(str(path.relative_to(PACKAGE)))
    return found


def test_only_these_modules_read_the_wall_clock() -> None:
    assert readers() == SHOWN_TO_PEOPLE | OUTLIVES_THE_PROCESS


def test_nothing_that_schedules_reads_the_wall_clock() -> None:
    timed = ("scheduling", "transport", "instances", "worker", "ipc", "fastpath", "inference.py")
    assert not [path for path in readers() if path.split("/")[0] in timed]
