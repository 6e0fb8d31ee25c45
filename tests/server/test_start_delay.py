"""TRITONSERVER_DELAY_SCHEDULER on a real server: the genuine Triton's transcripts."""

from __future__ import annotations

import pytest

from tests.scenarios.run import play, serving
from tests.scenarios.suites import SUITES, read_golden


@pytest.mark.parametrize("suite_name", ["delayed", "backlog"])
def test_as_the_genuine_triton(suite_name: str) -> None:
    suite, golden = SUITES[suite_name], read_golden(suite_name)
    with serving(suite, is_genuine=False) as (server, folder):
        assert {name: play(server, folder, suite, name) for name in suite.scenarios} == golden
