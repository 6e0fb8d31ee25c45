"""The recorded answers of the genuine Triton, replayed against Naiad: same requests, same status,
same headers, same words.

The corpus is tests/differential; `python -m tests.differential.run --record` asks the genuine
server again. A case whose answer must differ says so itself (`expect`, `because`).
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.differential import golden
from tests.differential.answer import difference, expected
from tests.differential.case import Answer, Case
from tests.differential.replay import Replay
from tests.differential.suites import SUITES, Suite
from tests.server.harness import Endpoints, naiad

MAIN = SUITES["main"]
STORIES = [suite for suite in SUITES.values() if suite is not MAIN]


@pytest.fixture(scope="module")
def main_replay(main_server: Endpoints) -> Iterator[Replay]:
    replay = Replay(main_server, MAIN)
    yield replay
    replay.close()


@pytest.fixture(scope="module")
def recorded() -> dict[tuple[str, str], dict[str, Answer]]:
    return {
        (suite.name, subject): golden.read(suite.name, subject)
        for suite in SUITES.values()
        for subject in suite.subjects
    }


@pytest.mark.parametrize(
    ("subject", "case"),
    [pytest.param(subject, case, id=f"{subject}-{case.name}") for subject, case in MAIN.cases()],
)
def test_same_answer(
    main_replay: Replay,
    recorded: dict[tuple[str, str], dict[str, Answer]],
    subject: str,
    case: Case,
) -> None:
    want = expected(recorded["main", subject].get(case.name, {}), case)
    assert not difference(want, main_replay.answer(case)), case.because


@pytest.mark.parametrize("suite", STORIES, ids=lambda suite: str(suite.name))
def test_tells_the_same_story(
    recorded: dict[tuple[str, str], dict[str, Answer]], suite: Suite
) -> None:
    """One test for a whole list: each request finds what the ones before it left."""
    differences = []
    with naiad(suite.repositories, suite.flags) as server:
        replay = Replay(server, suite)
        for subject, case in suite.cases():
            want = expected(recorded[suite.name, subject].get(case.name, {}), case)
            told = difference(want, replay.answer(case))
            if told:
                differences.append(f"{case.name}\n{told}")
        replay.close()
    assert not differences, "\n".join(differences)
