"""The whole engine on the GPU: the same tokens as the CPU engine in float32, logits close to
float64 in bfloat16, and no leaks."""

from __future__ import annotations

import dataclasses
import os
import random
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch", reason="needs torch (the llm extra)")
pytest.importorskip("triton", reason="needs triton, which comes with torch's CUDA builds")

import torch

from naiad.llm.engine import Engine
from naiad.llm.engine_settings import EngineSettings
from naiad.llm.generation import FinishReason, GenerationRequest, TokenLogprobs
from naiad.llm.models.decoder_config import DecoderConfig
from naiad.llm.models.decoder_weights import DecoderWeights, random_weights
from naiad.llm.models.registry import FAMILIES
from naiad.llm.parameters import SamplingParameters
from naiad.llm.start.build import build_engine
from naiad.llm.start.load import load_engine

VOCAB = 997
COMMON: dict[str, Any] = {
    "vocab_size": VOCAB,
    "hidden_size": 256,
    "num_hidden_layers": 3,
    "max_position_embeddings": 1024,
}
TINY: dict[str, dict[str, Any]] = {
    "llama": {"intermediate_size": 384, "num_attention_heads": 8, "num_key_value_heads": 2},
    "qwen3": {
        "intermediate_size": 384, "num_attention_heads": 4, "num_key_value_heads": 2,
        "head_dim": 128, "tie_word_embeddings": True,
    },
    "qwen2": {"intermediate_size": 384, "num_attention_heads": 8, "num_key_value_heads": 4},
    "mistral": {
        "intermediate_size": 384, "num_attention_heads": 8, "num_key_value_heads": 2,
        "sliding_window": 70,
    },
    "falcon": {"num_attention_heads": 4},
    "persimmon": {"intermediate_size": 384, "num_attention_heads": 4},
    "phi3": {
        "intermediate_size": 384, "num_attention_heads": 8, "num_key_value_heads": 4,
        "sliding_window": 90,
    },
    "gemma2": {
        "intermediate_size": 384, "num_attention_heads": 4, "num_key_value_heads": 2,
        "head_dim": 64, "sliding_window": 64, "attn_logit_softcapping": 50.0,
        "final_logit_softcapping": 30.0, "query_pre_attn_scalar": 64,
    },
}  # fmt: skip


@pytest.fixture
def cuda(device: torch.device) -> torch.device:
    if device.type != "cuda":
        pytest.skip("needs a GPU")
    return device


def tiny_config(family: str) -> DecoderConfig:
    return FAMILIES[family].read_config({"model_type": family, **COMMON, **TINY[family]})


def lively_weights(config: DecoderConfig) -> DecoderWeights:
    """Random weights whose logits differ enough that rounding rarely changes the best one."""
    weights = random_weights(config, torch.device("cpu"), torch.float32, seed=5)
    for layer in weights.layers:
        for linear in (layer.qkv, layer.o, layer.up, layer.down):
            linear.weight.mul_(4.0)
    weights.embedding.mul_(20.0)
    return weights


def moved(value: Any, device: torch.device, dtype: torch.dtype) -> Any:
    """Copies the weights to another device. Tied tensors stay tied."""
    known: dict[int, torch.Tensor] = {}

    def move(one: Any) -> Any:
        if isinstance(one, torch.Tensor):
            return known.setdefault(id(one), one.to(device, dtype))
        if isinstance(one, list):
            return [move(item) for item in one]
        if dataclasses.is_dataclass(one) and not isinstance(one, type):
            return type(one)(*(move(getattr(one, field.name)) for field in dataclasses.fields(one)))
        return one

    return move(value)


def build(
    config: DecoderConfig,
    weights: DecoderWeights,
    device: torch.device,
    dtype: torch.dtype = torch.float32,
    **values: Any,
) -> Engine:
    settings = {
        "max_num_seqs": 12,
        "max_num_batched_tokens": 96,
        "num_kv_blocks": 90,
        "max_waiting_requests": 20_000,
        **values,
    }
    return build_engine(
        config,
        moved(weights, device, dtype),
        None,
        [],
        EngineSettings(device=device.type, **settings),
    )


def prompts(count: int, seed: int) -> list[list[int]]:
    """Some prompts share a prefix, so that the cache is used. Some are longer than the budget of a
    step."""
    source = random.Random(seed)
    shared = [source.randrange(VOCAB) for _ in range(64)]
    made = []
    for _ in range(count):
        own = [source.randrange(VOCAB) for _ in range(source.choice([1, 2, 17, 40, 150]))]
        made.append(shared[: source.choice([0, 16, 33, 64])] + own)
    return made


def run_once(engine: Engine) -> None:
    """Runs a request, so that all buffers that are made on first use exist."""
    parameters = SamplingParameters(temperature=1.0, max_tokens=20, logprobs=3, top_p=0.9, n=3)
    for _ in engine.run(
        [
            GenerationRequest(id=f"warm{i}", prompt=p, parameters=parameters)
            for i, p in enumerate(prompts(12, seed=9))
        ]
    ):
        pass


def generate(
    engine: Engine, inputs: list[list[int]], max_tokens: int = 24
) -> list[list[TokenLogprobs]]:
    parameters = SamplingParameters(
        temperature=0.0, max_tokens=max_tokens, logprobs=2, ignore_eos=True
    )
    out: dict[str, list[TokenLogprobs]] = {str(i): [] for i in range(len(inputs))}
    for output in engine.run(
        [
            GenerationRequest(id=str(i), prompt=p, parameters=parameters)
            for i, p in enumerate(inputs)
        ]
    ):
        out[output.request_id] += output.logprobs or []
    assert engine.scheduler.pool.num_used == 0
    return list(out.values())


@pytest.mark.parametrize("use_cuda_graphs", [True, False])
@pytest.mark.parametrize("family", TINY)
def test_float32_tokens_equal_the_cpu_engines(
    family: str, use_cuda_graphs: bool, cuda: torch.device
) -> None:
    """A token may differ only where the two best logits of the CPU are almost equal."""
    config = tiny_config(family)
    weights = lively_weights(config)
    inputs = prompts(20, seed=1)
    want = generate(build(config, weights, torch.device("cpu")), inputs)
    engine = build(config, weights, cuda, use_cuda_graphs=use_cuda_graphs)
    got = generate(engine, inputs)
    assert engine.scheduler.num_prefix_hits > 0
    for expected, actual in zip(want, got, strict=True):
        assert len(expected) == len(actual) == 24
        for one, other in zip(expected, actual, strict=True):
            if one.token != other.token:
                assert abs(one.top[0][1] - one.top[1][1]) < 1e-3, family
                break
            assert abs(one.logprob - other.logprob) < 2e-3


@pytest.mark.parametrize("family", TINY)
def test_bfloat16_logprobs_are_near_float64(family: str, cuda: torch.device) -> None:
    """The weights are rounded to bfloat16 first, so that only the computation differs. Both engines
    are forced to the same tokens."""
    config = tiny_config(family)
    weights = moved(lively_weights(config), torch.device("cpu"), torch.bfloat16)
    inputs = prompts(12, seed=2)
    exact = generate(build(config, weights, torch.device("cpu"), torch.float64), inputs, 1)
    rough = generate(build(config, weights, cuda, torch.bfloat16), inputs, 1)
    for (one,), (other,) in zip(exact, rough, strict=True):
        near = dict(other.top) | {other.token: other.logprob}
        if one.token in near:
            assert abs(near[one.token] - one.logprob) < 0.25
        else:
            assert abs(one.top[0][1] - one.top[1][1]) < 0.25


def test_other_architectures_run_with_the_code_of_transformers(
    cuda: torch.device, tmp_path: Path
) -> None:
    transformers = pytest.importorskip("transformers", reason="needs transformers (the llm extra)")
    config = transformers.Olmo2Config(
        **COMMON,
        intermediate_size=384,
        num_attention_heads=8,
        num_key_value_heads=2,
        eos_token_id=None,
        pad_token_id=None,
    )
    torch.manual_seed(9)
    model = transformers.AutoModelForCausalLM.from_config(config)
    for parameter in model.parameters():
        parameter.data.mul_(4.0)
    model.save_pretrained(tmp_path)
    values: dict[str, Any] = {"max_num_seqs": 12, "max_num_batched_tokens": 96, "num_kv_blocks": 90}
    inputs = prompts(10, seed=4)
    want, got = (
        generate(
            load_engine(tmp_path, EngineSettings(device=device, dtype="float32", **values)), inputs
        )
        for device in ("cpu", "cuda")
    )
    for expected, actual in zip(want, got, strict=True):
        for one, other in zip(expected, actual, strict=True):
            if one.token != other.token:
                assert abs(one.top[0][1] - one.top[1][1]) < 1e-3
                break


@pytest.mark.parametrize("count", [int(os.environ.get("NAIAD_SOAK_REQUESTS", "1500"))])
def test_random_requests_with_cancellations_leak_nothing(count: int, cuda: torch.device) -> None:
    config = tiny_config("llama")
    engine = build(
        config,
        lively_weights(config),
        cuda,
        torch.bfloat16,
        max_num_seqs=48,
        max_num_batched_tokens=512,
        num_kv_blocks=400,
    )
    run_once(engine)
    allocated = torch.cuda.memory_allocated()
    source = random.Random(3)
    finished: dict[tuple[str, int], FinishReason] = {}
    completions: dict[str, int] = {}
    submitted = 0
    while submitted < count or engine.has_work:
        while submitted < count and len(engine.scheduler.waiting) < 64:
            parameters = SamplingParameters(
                temperature=source.choice([0.0, 0.7, 1.3]),
                top_k=source.choice([0, 5, 50]),
                top_p=source.choice([1.0, 0.9]),
                min_p=source.choice([0.0, 0.05]),
                repetition_penalty=source.choice([1.0, 1.2]),
                presence_penalty=source.choice([0.0, 0.5]),
                seed=source.choice([None, 7]),
                logit_bias=source.choice([{}, {3: -100.0, 5: 1.0}]),
                n=source.choice([1, 1, 3]),
                logprobs=source.choice([None, None, 3]),
                max_tokens=source.randint(1, 60),
                min_tokens=0,
                stop_token_ids=source.choice([[], [11, 13, 17, 19]]),
            )
            prompt = [
                source.randrange(VOCAB) for _ in range(source.choice([1, 15, 16, 17, 100, 700]))
            ]
            engine.submit(
                GenerationRequest(
                    id=str(submitted),
                    prompt=prompt,
                    parameters=parameters,
                    priority=source.choice([0, 0, 1]),
                )
            )
            completions[str(submitted)] = parameters.n
            submitted += 1
        if source.random() < 0.2:
            engine.cancel(str(source.randrange(submitted)))
        for output in engine.step():
            key = (output.request_id, output.index)
            assert key not in finished, "something came after the end"
            assert output.error is None
            assert all(0 <= token < VOCAB for token in output.token_ids)
            if output.finish_reason is not None:
                finished[key] = output.finish_reason
    assert len(finished) == sum(completions.values())
    assert set(finished.values()) >= {
        FinishReason.LENGTH,
        FinishReason.CANCELLED,
        FinishReason.STOP,
    }
    assert engine.scheduler.pool.num_used == 0
    assert engine.scheduler.num_preemptions > 0
    assert torch.cuda.memory_allocated() <= allocated + (4 << 20), (
        "only staging buffers may have grown"
    )
    assert int(engine.runner.cache.block_tables.max()) < engine.scheduler.pool.num_blocks
