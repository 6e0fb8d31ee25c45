"""The code of several ranks on one GPU: a group of one rank runs the same collectives, NCCL inside
CUDA graphs included, and generates what an engine without a group generates."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="needs torch (the llm extra)")

from naiad.llm.engine_settings import EngineSettings
from naiad.llm.parallel.rank_group import RankGroup
from naiad.llm.parallel.sharded_decoder import ShardedDecoder
from naiad.llm.start.build import build_engine
from tests.gpu.test_engine import build, generate, lively_weights, moved, prompts, tiny_config


@pytest.fixture(params=["cpu", "cuda"])
def device(request: pytest.FixtureRequest) -> Any:
    if request.param == "cuda" and not torch.cuda.is_available():
        pytest.skip("no GPU here")
    return torch.device(request.param)


@pytest.mark.parametrize("family", ["llama", "gemma2", "falcon"])
def test_a_group_of_one_rank_generates_the_same(family: str, device: Any) -> None:
    config = tiny_config(family)
    weights = lively_weights(config)
    inputs = prompts(20, seed=1)
    want = generate(build(config, weights, device), inputs)
    settings = EngineSettings(
        device=device.type,
        max_num_seqs=12,
        max_num_batched_tokens=96,
        num_kv_blocks=90,
        max_waiting_requests=20_000,
    )
    group = RankGroup(Path(), settings, device, None)
    try:
        part = moved(weights, device, torch.float32)
        engine = build_engine(config, part, None, [], settings, peers=group)
        assert isinstance(engine.runner.model, ShardedDecoder)
        got = generate(engine, inputs)
    finally:
        group.close()
    for expected, actual in zip(want, got, strict=True):
        for one, other in zip(expected, actual, strict=True):
            if one.token != other.token:
                assert abs(one.top[0][1] - one.top[1][1]) < 1e-3
                break
