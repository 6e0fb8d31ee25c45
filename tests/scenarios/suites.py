"""The suites: a repository, server flags, and the scenarios that are played on such a server."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import msgspec

from tests.scenarios import cache, control, decoupled, delayed, ensemble, rate_limiter, sequence
from tests.scenarios.scene import Scene

REPOSITORY = Path(__file__).parents[1] / "repositories" / "schedulers"
LIMITS = REPOSITORY.with_name("limits")
LIMITED = ("probe", "limit_holder", "limit_half", "limit_free")
EXPLICIT = "--model-control-mode=explicit"
DELAYED = [
    EXPLICIT,
    *(f"--load-model={name}" for name in ("probe", "step_a", "sequence_direct", "sequence_oldest")),
]


class Suite(msgspec.Struct, frozen=True):
    repository: str
    flags: list[str]
    scenarios: dict[str, Callable[[Scene], None]]
    environment: dict[str, str] = {}


def _suite(
    scenarios: Sequence[Callable[[Scene], None]],
    flags: list[str] | None = None,
    repository: Path = REPOSITORY,
    **environment: str,
) -> Suite:
    return Suite(
        str(repository),
        flags or [],
        {scenario.__name__: scenario for scenario in scenarios},
        environment,
    )


SUITES = {
    "sequence": _suite(sequence.SCENARIOS),
    "ensemble": _suite(ensemble.SCENARIOS),
    "decoupled": _suite(decoupled.SCENARIOS),
    "control": _suite(control.SCENARIOS, [EXPLICIT, "--load-model=probe"], LIMITS),
    "rate_limiter": _suite(
        rate_limiter.SCENARIOS,
        [
            "--rate-limit=execution_count",
            "--rate-limit-resource=R:2",
            EXPLICIT,
            *(f"--load-model={name}" for name in LIMITED),
        ],
        LIMITS,
    ),
    "cache": _suite(
        cache.SCENARIOS,
        ["--cache-config=local,size=1048576", EXPLICIT, "--load-model=cached_ensemble"],
    ),
    "delayed": _suite(delayed.SCENARIOS, DELAYED, TRITONSERVER_DELAY_SCHEDULER="3"),
    "backlog": _suite(
        delayed.BACKLOG_SCENARIOS,
        DELAYED,
        TRITONSERVER_DELAY_SCHEDULER="4",
        TRITONSERVER_BACKLOG_DELAY_SCHEDULER="2",
    ),
}


def golden_path(suite: str) -> Path:
    return Path(__file__).with_name("golden") / f"{suite}.json"


def read_golden(suite: str) -> dict[str, list[list[Any]]]:
    """Returns the genuine Triton's transcripts by scenario."""
    golden: dict[str, list[list[Any]]] = json.loads(golden_path(suite).read_text())
    return golden
