"""Replays the recorded responses of the genuine Triton against Naiad.

Status, headers and text must be equal. The corpus is tests/differential;
`python -m tests.differential.run --record` records it again. A case whose response must differ
gives the reason itself (`expect`, `because`).
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.differential import golden
from tests.differential.case import Case, Response
from tests.differential.replay import Replay
from tests.differential.response import difference, expected
from tests.differential.suites import SUITES, Suite
from tests.server.harness import Endpoints, naiad

MAIN = SUITES["main"]
ORDERED = [suite for suite in SUITES.values() if suite is not MAIN]


@pytest.fixture(scope="module")
def main_replay(main_server: Endpoints) -> Iterator[Replay]:
    replay = Replay(main_server, MAIN)
    yield replay
    replay.close()


@pytest.fixture(scope="module")
def recorded() -> dict[tuple[str, str], dict[str, Response]]:
    return {
        (suite.name, subject): golden.read(suite.name, subject)
        for suite in SUITES.values()
        for subject in suite.subjects
    }


@pytest.mark.parametrize(
    ("subject", "case"),
    [pytest.param(subject, case, id=f"{subject}-{case.name}") for subject, case in MAIN.cases()],
)
def test_same_response(
    main_replay: Replay,
    recorded: dict[tuple[str, str], dict[str, Response]],
    subject: str,
    case: Case,
) -> None:
    want = expected(recorded["main", subject].get(case.name, {}), case)
    assert not difference(want, main_replay.response(case)), case.because


@pytest.mark.parametrize("suite", ORDERED, ids=lambda suite: str(suite.name))
def test_same_responses_to_a_list_of_requests(
    recorded: dict[tuple[str, str], dict[str, Response]], suite: Suite
) -> None:
    """Each request depends on the ones before it, so a list of requests is one test."""
    differences = []
    with naiad(suite.repositories, suite.flags) as server:
        replay = Replay(server, suite)
        for subject, case in suite.cases():
            want = expected(recorded[suite.name, subject].get(case.name, {}), case)
            text = difference(want, replay.response(case))
            if text:
                differences.append(f"{case.name}\n{text}")
        replay.close()
    assert not differences, "\n".join(differences)
