"""Tests that engines of several ranks generate what an engine of one rank generates: every family,
structured output, prefix cache, quantized shards; and that what cannot be split is an error."""

from __future__ import annotations

import json
import os
import shutil
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="needs torch (the llm extra)")
transformers = pytest.importorskip("transformers", reason="needs transformers (the llm extra)")
from safetensors.torch import load_file, save_file

from naiad.errors import NaiadError
from naiad.llm.engine import Engine
from naiad.llm.generation import GenerationRequest
from naiad.llm.parallel.fault import RankLostError
from naiad.llm.parallel.rank_group import rank_devices
from naiad.llm.parallel.shard import Shard
from tests.unit.llm import quantized
from tests.unit.llm.checkpoints import FAMILIES, save_checkpoint
from tests.unit.llm.engines import Completion, request, run, small_engine
from tests.unit.llm.parallel.thread_ranks import Open, opening
from tests.unit.llm.test_engine import OnlyEven, with_grammar
from tests.unit.llm.test_quantized_checkpoints import FORMATS, PROMPTS, check_near, save_plain


@pytest.fixture
def open_engine(monkeypatch: pytest.MonkeyPatch) -> Iterator[Open]:
    with opening(monkeypatch) as open_one:
        yield open_one


def requests() -> list[GenerationRequest]:
    """Prompts that are cut, prefixes that are shared, sampling, penalties and log probabilities."""
    shared = [(3 * index) % 200 + 2 for index in range(20)]
    long = [(7 * index) % 205 for index in range(40)]
    return [
        request("a", [*shared, 5, 6], max_tokens=12),
        request("b", [*shared, 9], max_tokens=10, n=2, temperature=0.9, seed=3),
        request("c", [1, 2, 3], max_tokens=9, temperature=0.8, seed=4, logprobs=2),
        request("d", long, max_tokens=8, repetition_penalty=1.3),
    ]


def tokens(done: dict[tuple[str, int], Completion]) -> dict[tuple[str, int], list[int]]:
    assert all(completion.error is None for completion in done.values())
    return {key: completion.tokens for key, completion in done.items()}


@pytest.mark.parametrize("size", [2, 4])
@pytest.mark.parametrize("family", FAMILIES)
def test_tokens_are_those_of_one_rank(
    family: str, size: int, tmp_path: Path, open_engine: Open
) -> None:
    save_checkpoint(family, tmp_path)
    one = run(open_engine(tmp_path), requests())
    several = run(open_engine(tmp_path, tensor_parallel_size=size), requests())
    assert tokens(several) == tokens(one)
    for own, expected in zip(several["c", 0].logprobs, one["c", 0].logprobs, strict=True):
        assert own.logprob == pytest.approx(expected.logprob, abs=1e-4)


@pytest.mark.parametrize("size", [2, 4])
def test_steps_ahead_of_their_tokens(size: int, tmp_path: Path, open_engine: Open) -> None:
    """The next step is sent before the tokens of the last one are known on the host."""
    save_checkpoint("llama3", tmp_path)
    one = run(open_engine(tmp_path), requests())
    engine = open_engine(tmp_path, tensor_parallel_size=size, is_asynchronous=True)
    assert tokens(run(engine, requests())) == tokens(one)


def test_structured_output(tmp_path: Path, open_engine: Open) -> None:
    shutil.copytree(tokenized(tmp_path), tmp_path / "one")
    folder = tmp_path / "one"

    def ask(engine: Engine) -> dict[tuple[str, int], list[int]]:
        grammar = [with_grammar("a", OnlyEven(), n=2, seed=1), request("b", "The", max_tokens=6)]
        return tokens(run(engine, grammar))

    one = ask(open_engine(folder))
    assert ask(open_engine(folder, tensor_parallel_size=2)) == one
    assert all(token % 2 == 0 for token in one["a", 0])


def test_random_weights_are_drawn_by_each_rank(tmp_path: Path, open_engine: Open) -> None:
    save_checkpoint("smollm2", tmp_path)
    (tmp_path / "model.safetensors").unlink()
    engine = open_engine(tmp_path, tensor_parallel_size=2, load_format="dummy")
    done = run(engine, [request("a", [1, 2, 210], max_tokens=5)])
    assert len(done["a", 0].tokens) == 5


def test_prefixes_are_found_again(tmp_path: Path, open_engine: Open) -> None:
    save_checkpoint("llama3", tmp_path)
    prompt = [(5 * index) % 200 + 1 for index in range(16)]
    first, second = request("a", prompt, max_tokens=4), request("b", [*prompt, 7], max_tokens=4)
    one, several = open_engine(tmp_path), open_engine(tmp_path, tensor_parallel_size=2)
    expected = [run(one, [first]), run(one, [second])]
    found = [run(several, [first]), run(several, [second])]
    assert [tokens(done) for done in found] == [tokens(done) for done in expected]
    assert found[1]["b", 0].num_cached_tokens == expected[1]["b", 0].num_cached_tokens > 0


CUT = {"awq-64-symmetric", "awq-32", "gptq-4", "gptq-4-asymmetric", "gptq-v2", "gptq-8", "w8a16",
       "w4a16-asymmetric", "fp8-dynamic", "fp8-blocks", "fp8-static", "modelopt"}  # fmt: skip


@pytest.mark.parametrize("name", sorted(CUT))
def test_quantized_checkpoints_are_split(name: str, tmp_path: Path, open_engine: Open) -> None:
    model = save_plain(tmp_path)
    state = quantized.quantize_folder(tmp_path, *FORMATS[name])
    engine = open_engine(tmp_path, dtype="auto", tensor_parallel_size=2)
    assert engine.quantization
    check_near(quantized.plain_model(model, state), _first_logprobs(engine), 0.25)


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("awq-128", "mlp.down_proj' cannot be split over 4 ranks: inputs 0 to 64 do not begin"),
        ("gptq-4-act-order", "not in the order of the inputs .act-order."),
    ],
)
def test_groups_that_would_be_cut_are_refused(
    name: str, reason: str, tmp_path: Path, open_engine: Open
) -> None:
    save_plain(tmp_path)
    quantized.quantize_folder(tmp_path, *FORMATS[name])
    with pytest.raises(NaiadError, match=reason):
        open_engine(tmp_path, dtype="auto", tensor_parallel_size=4)


@pytest.mark.parametrize("quantization", ["int8", "int4", "fp8"])
def test_shards_are_rounded_at_load(quantization: str, tmp_path: Path, open_engine: Open) -> None:
    model = save_plain(tmp_path)
    engine = open_engine(tmp_path, dtype="auto", tensor_parallel_size=2, quantization=quantization)
    assert quantization in engine.quantization
    check_near(model, _first_logprobs(engine), 8.0 if quantization == "int4" else 1.5)


@pytest.mark.parametrize("algorithm", ["W4A16_AWQ", "FP8"])
@pytest.mark.parametrize("has_parallel_embedding", [False, True])
def test_checkpoints_that_tensorrt_llm_has_split(
    has_parallel_embedding: bool, algorithm: str, tmp_path: Path, open_engine: Open
) -> None:
    torch.manual_seed(5)
    model = save_plain(tmp_path)
    state = quantized.tensorrt_llm_folder(tmp_path, algorithm)
    split_rank_files(tmp_path, has_parallel_embedding)
    engine = open_engine(tmp_path, dtype="auto")
    assert engine.ranks is not None
    check_near(quantized.plain_model(model, state), _first_logprobs(engine), 0.25)
    with pytest.raises(NaiadError, match="is split over 2 ranks; leave it out"):
        open_engine(tmp_path, dtype="auto", tensor_parallel_size=4)


def split_rank_files(folder: Path, has_parallel_embedding: bool) -> None:
    """As trtllm's convert_checkpoint does for a tp_size of 2."""
    whole = load_file(folder / "rank0.safetensors")
    config = json.loads((folder / "config.json").read_text())
    heads = 4 * 32, 2 * 32, 2 * 32
    for rank in range(2):
        out = {}
        for name, tensor in whole.items():
            packed = 2 if tensor.dtype == torch.int8 else 1
            if "attention.qkv.weight" in name and tensor.dim() == 2:
                parts = tensor.split([size // packed for size in heads])
                tensor = torch.cat([part.chunk(2)[rank] for part in parts])
            elif tensor.dim() == 2 and any(f"mlp.{part}.weight" in name for part in ("fc", "gate")):
                tensor = tensor.chunk(2)[rank]
            elif tensor.dim() == 2 and ("dense.weight" in name or "proj.weight" in name):
                tensor = tensor.chunk(2, dim=1)[rank]
            elif name.endswith("prequant_scaling_factor") and tensor.numel() > 1:
                tensor = tensor.chunk(2)[rank]
            elif name == "lm_head.weight" or ("vocab_embedding" in name and has_parallel_embedding):
                padded = torch.cat((tensor, tensor[:1] * 0)) if tensor.shape[0] % 2 else tensor
                tensor = padded.chunk(2)[rank]
            out[name] = tensor.contiguous()
        save_file(out, folder / f"rank{rank}.safetensors.new")
    for rank in range(2):
        (folder / f"rank{rank}.safetensors.new").rename(folder / f"rank{rank}.safetensors")
    config["mapping"] = {"world_size": 2, "tp_size": 2, "pp_size": 1}
    (folder / "config.json").write_text(json.dumps(config))


def _first_logprobs(engine: Engine) -> list[Any]:
    asked = [request(str(i), prompt, max_tokens=1, logprobs=5) for i, prompt in enumerate(PROMPTS)]
    done = run(engine, asked)
    return [done[str(i), 0].logprobs[0] for i in range(len(PROMPTS))]


@pytest.mark.parametrize(
    ("family", "size", "message"),
    [
        ("llama2", 3, "has 4 attention heads, which 3 does not divide; expected one of 1, 2, 4"),
        ("llama2", 8, "4 attention heads, which 8 does not divide"),
    ],
)
def test_sizes_that_do_not_divide(family: str, size: int, message: str, tmp_path: Path) -> None:
    save_checkpoint(family, tmp_path)
    with pytest.raises(NaiadError, match=message):
        small_engine(tmp_path, tensor_parallel_size=size)


def test_other_families_say_that_they_cannot_be_split(tmp_path: Path) -> None:
    from tests.unit.llm.checkpoints import save_model

    config = transformers.GPT2Config(n_embd=32, n_layer=1, n_head=2, vocab_size=64)
    save_model(config, tmp_path)
    with pytest.raises(NaiadError, match="models of type 'gpt2' cannot be split"):
        small_engine(tmp_path, tensor_parallel_size=2)


def test_more_ranks_than_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    assert rank_devices(torch.device("cuda:0"), 2) == ["cuda:0", "cuda:1"]
    with pytest.raises(NaiadError, match="tensor_parallel_size is 4, but torch sees 2 GPUs"):
        rank_devices(torch.device("cuda:0"), 4)
    with pytest.raises(NaiadError, match="of which the first 1 are not this instance's"):
        rank_devices(torch.device("cuda:1"), 2)


def test_every_row_belongs_to_a_rank_and_kv_heads_may_be_shared() -> None:
    from naiad.llm.models.registry import FAMILIES as KNOWN

    raw = {
        "model_type": "llama", "vocab_size": 10, "hidden_size": 64, "intermediate_size": 96,
        "num_hidden_layers": 1, "num_attention_heads": 8, "num_key_value_heads": 2,
    }  # fmt: skip
    config = KNOWN["llama"].read_config(raw)
    ranks = [Shard(rank, 4) for rank in range(4)]
    assert [rank.tokens(config) for rank in ranks] == [(0, 3), (3, 6), (6, 9), (9, 10)]
    assert [rank.rows(config, "qkv")[0] for rank in ranks] == [
        (16 * rank, 16 * rank + 16) for rank in range(4)
    ]
    keys = [rank.rows(config, "qkv")[1] for rank in ranks]
    assert keys == [(64, 72), (64, 72), (72, 80), (72, 80)]
    assert ranks[3].rows(config, "up") == [(72, 96), (168, 192)]
    assert ranks[3].config(config).num_kv_heads == 1


def test_a_rank_reads_only_its_part(tmp_path: Path, open_engine: Open) -> None:
    from naiad.llm.checkpoint.safetensors_source import SafetensorsSource

    save_checkpoint("llama3", tmp_path)
    whole: list[str] = []
    real = SafetensorsSource.get

    def get(self: SafetensorsSource, name: str) -> Any:
        whole.append(name)
        return real(self, name)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(SafetensorsSource, "get", get)
        open_engine(tmp_path, tensor_parallel_size=2)
    assert {name for name in whole if "norm" not in name} == set()


def tokenized(folder: Path) -> Path:
    from tests.server.llm_checkpoint import write_checkpoint

    return write_checkpoint(folder / "chat")


def run_to_the_end(engine: Engine) -> None:
    while engine.has_work:
        engine.step()


@pytest.mark.parametrize("signal_number", [signal.SIGKILL, signal.SIGSTOP])
def test_a_rank_that_dies_or_hangs_is_an_error(signal_number: int, tmp_path: Path) -> None:
    """Real processes. The watchdog turns the hang into an error."""
    save_checkpoint("llama3", tmp_path)
    limit_s = 3.0
    engine = small_engine(tmp_path, tensor_parallel_size=2, collective_timeout_s=limit_s)
    assert engine.ranks is not None
    (pid,) = engine.ranks.pids
    lost: list[str] = []
    engine.ranks.on_lost = lost.append
    try:
        engine.submit(request("a", [1, 2, 3], max_tokens=100))
        for _ in range(3):
            engine.step()
        os.kill(pid, signal_number)
        started = time.monotonic()
        with pytest.raises(RankLostError) as raised:
            run_to_the_end(engine)
        assert time.monotonic() - started < 20 * limit_s
        if signal_number == signal.SIGKILL:
            assert "rank 1 of 2 was killed by SIGKILL" in str(raised.value)
            deadline = time.monotonic() + 10
            while not lost and time.monotonic() < deadline:
                time.sleep(0.01)
            assert lost == ["rank 1 of 2 was killed by SIGKILL"]
        engine.submit(request("b", [1, 2], max_tokens=2))
        with pytest.raises(RankLostError):
            run_to_the_end(engine)
    finally:
        engine.ranks.close()
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)


def test_a_rank_that_fails_to_load_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, open_engine: Open
) -> None:
    from naiad.errors import unavailable
    from naiad.llm.parallel import rank_process

    save_checkpoint("llama3", tmp_path)

    def fail(*_: Any) -> Engine:
        raise unavailable("no memory on this GPU")

    monkeypatch.setattr(rank_process, "load_rank", fail)
    with pytest.raises(NaiadError, match="rank 1 of 2: no memory on this GPU"):
        open_engine(tmp_path, tensor_parallel_size=2)


def test_one_rank_has_nothing_of_it(tmp_path: Path) -> None:
    from naiad.llm.models.decoder import Decoder
    from naiad.llm.step.runner import Runner
    from naiad.llm.step.torch_sampler import TorchSampler

    save_checkpoint("llama3", tmp_path)
    engine = small_engine(tmp_path)
    assert engine.ranks is None
    assert type(engine.runner) is Runner
    assert type(engine.runner.model) is Decoder
    assert type(engine.runner.sampler) is TorchSampler
