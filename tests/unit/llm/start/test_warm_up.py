"""A warm-up leaves an engine as it was."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("torch", reason="needs torch (the llm extra)")
pytest.importorskip("transformers", reason="needs transformers (the llm extra)")

from naiad.llm.start.warm_up import NUM_OUT, PROMPT_TOKENS, warm_up
from tests.unit.llm.checkpoints import save_checkpoint
from tests.unit.llm.engines import request, run, small_engine


@pytest.mark.parametrize(
    "values", [{}, {"max_num_seqs": 1, "max_waiting_requests": 1}, {"num_kv_blocks": 60}]
)
def test_leaves_no_trace_in_the_engine(tmp_path: Path, values: dict[str, int]) -> None:
    save_checkpoint("llama3", tmp_path)
    fresh, warm = (small_engine(tmp_path, seed=3, **values) for _ in range(2))
    warm_up(warm)
    assert warm.statistics.num_steps == 0
    assert warm.scheduler.pool.num_used == 0
    prompts = [list(range(number, 20 + number)) for number in range(3)]
    for one in prompts:
        asked = [request("a", one, max_tokens=5, temperature=1.0)]
        assert run(warm, asked) == run(fresh, asked)
    assert warm.load().prefix_queries == fresh.load().prefix_queries
    assert warm.load().prefix_hits == fresh.load().prefix_hits


def test_skips_prompts_that_do_not_fit(tmp_path: Path) -> None:
    save_checkpoint("llama3", tmp_path)
    engine = small_engine(tmp_path)
    seen: list[int] = []
    submit = engine.submit

    def note(asked: object) -> None:
        seen.append(len(asked.prompt))  # type: ignore[attr-defined]
        submit(asked)  # type: ignore[arg-type]

    engine.submit = note  # type: ignore[assignment,method-assign]
    warm_up(engine)
    assert seen == [
        count for count in PROMPT_TOKENS if count + NUM_OUT < engine.builder.max_model_len
    ]
    assert 0 < len(seen) < len(PROMPT_TOKENS)
