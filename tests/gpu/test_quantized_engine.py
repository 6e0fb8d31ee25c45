"""The whole engine on the GPU with quantized weights: near the same weights dequantized; in graphs,
in batches, one row alone."""

from __future__ import annotations

from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="needs torch (the llm extra)")
pytest.importorskip("triton", reason="needs triton, which comes with torch's CUDA builds")

from naiad.llm.engine import Engine
from naiad.llm.engine_settings import EngineSettings
from naiad.llm.models.decoder_config import DecoderConfig
from naiad.llm.models.decoder_weights import MATRICES, DecoderWeights, Linear
from naiad.llm.start.build import build_engine
from naiad.llm.start.quantize_load import ROUNDINGS, RoundedLayers, build_linears
from tests.gpu.test_engine import (
    TINY,
    generate,
    lively_weights,
    moved,
    prompts,
    run_once,
    tiny_config,
)

FAMILIES = ["llama", "qwen3", "qwen2", "gemma2", "falcon"]


@pytest.fixture
def cuda(device: Any) -> Any:
    if device.type != "cuda":
        pytest.skip("needs a GPU")
    return device


def engine_of(
    config: DecoderConfig,
    weights: DecoderWeights,
    kind: str,
    is_rounded: bool,
    keeps_wide: bool | None,
    kv_cache_dtype: str = "auto",
) -> Engine:
    """With rounded weights in their kernels, or dequantized in plain 16-bit matrices."""
    settings = EngineSettings(
        device="cuda", max_num_seqs=12, max_num_batched_tokens=96, num_kv_blocks=90,
        max_waiting_requests=20_000, quantization=kind,
        keep_wide_weights=keeps_wide, kv_cache_dtype=kv_cache_dtype,
    )  # fmt: skip
    device = torch.device("cuda")
    own = moved(weights, device, torch.bfloat16)
    builder = build_linears(config, settings, device, torch.bfloat16)
    for layer in own.layers:
        if is_rounded:
            RoundedLayers(ROUNDINGS[kind], builder, None).round_layer(layer)
            continue
        for name in MATRICES:
            linear = getattr(layer, name)
            setattr(
                layer,
                name,
                Linear(ROUNDINGS[kind](linear.weight).dequantize(torch.bfloat16), linear.bias),
            )
    return build_engine(config, own, None, [], settings)


@pytest.mark.parametrize("kind", ["fp8", "int8", "int4"])
@pytest.mark.parametrize("family", FAMILIES)
def test_logprobs_are_near_those_of_the_dequantized_weights(
    family: str, kind: str, cuda: Any
) -> None:
    config = tiny_config(family)
    assert family in TINY
    weights = lively_weights(config)
    given = prompts(12, seed=2)
    exact = generate(engine_of(config, weights, kind, False, None), given, 1)
    rough = generate(engine_of(config, weights, kind, True, False), given, 1)
    tolerance = 0.8 if kind == "fp8" else 0.25
    for (one,), (other,) in zip(exact, rough, strict=True):
        near = dict(other.top) | {other.token: other.logprob}
        if one.token in near:
            assert abs(near[one.token] - one.logprob) < tolerance
        else:
            assert abs(one.top[0][1] - one.top[1][1]) < tolerance


@pytest.mark.parametrize("kind", ["fp8", "int8", "int4"])
def test_a_row_alone_continues_as_it_does_in_a_batch(kind: str, cuda: Any) -> None:
    """One row takes other kernels than twelve; both are graphs. Tokens may part only where two are
    nearly as good."""
    config = tiny_config("llama")
    engine = engine_of(config, lively_weights(config), kind, True, None)
    run_once(engine)
    given = prompts(12, seed=7)
    together = generate(engine, given, 8)
    assert engine.scheduler.num_prefix_hits > 0
    for prompt, expected in zip(given[:4], together[:4], strict=True):
        (alone,) = generate(engine, [prompt], 8)
        for one, other in zip(expected, alone, strict=True):
            if one.token != other.token:
                assert abs(one.top[0][1] - one.top[1][1]) < 0.8
                break


@pytest.mark.parametrize("family", FAMILIES)
def test_an_fp8_kv_cache_stays_near_a_16_bit_one(family: str, cuda: Any) -> None:
    """Prompts, single rows, graphs and prefix hits all read what was stored in fp8."""
    config = tiny_config(family)
    weights = lively_weights(config)
    given = prompts(12, seed=3)
    exact = generate(engine_of(config, weights, "int8", True, None), given, 4)
    engine = engine_of(config, weights, "int8", True, None, "fp8")
    assert engine.runner.cache.keys[0].dtype == torch.float8_e4m3fn
    run_once(engine)
    for expected, found in zip(exact, generate(engine, given, 4), strict=True):
        for one, other in zip(expected, found, strict=True):
            near = dict(other.top) | {other.token: other.logprob}
            if one.token in near:
                assert abs(near[one.token] - one.logprob) < 0.8
            if one.token != other.token:
                assert abs(one.top[0][1] - one.top[1][1]) < 0.8
                break
