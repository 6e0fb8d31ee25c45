"""Measures the engine alone with random weights on one device: batches, a closed loop, the
nano-vllm benchmark, prefill rates and a kernel profile.

Every case runs once to warm up and once to measure, with different prompts, so that the prefix
cache does not help. `share` is the hardware limit divided by the measured time. The limit for
decode steps is the time to read weights, keys and values at 4.27 TB/s; for prefill it is the time
of the floating-point operations at 790 TFLOP/s.
"""

from __future__ import annotations

import gc
import random
import time

import msgspec
import torch

from bench.llm_shapes import SHAPES
from naiad.llm.engine import Engine
from naiad.llm.engine_settings import EngineSettings
from naiad.llm.generation import GenerationRequest
from naiad.llm.models.decoder_config import DecoderConfig
from naiad.llm.models.decoder_weights import random_weights
from naiad.llm.models.registry import FAMILIES
from naiad.llm.parameters import SamplingParameters
from naiad.llm.start.build import build_engine
from naiad.llm.start.quantize_load import plan_rounding

BYTES_PER_SECOND = 4.27e12
FLOPS_PER_SECOND = 790e12


class Row(msgspec.Struct):
    case: str
    model: str
    tokens_per_s: float
    seconds: float
    share: float
    gate: float


GATES = {
    ("batch 1", "llama-3.1-8b"): 220,
    ("batch 16", "llama-3.1-8b"): 3200,
    ("batch 64", "llama-3.1-8b"): 9300,
    ("batch 256", "llama-3.1-8b"): 16500,
    ("nano-vllm", "qwen3-0.6b"): 20100,
    ("nano-vllm", "llama-3.1-8b"): 9800,
    ("nano-vllm", "qwen3-14b"): 6100,
    ("prefill 2048", "llama-3.1-8b"): 41000,
    ("batch 1", "llama-3.1-8b fp8"): 360,
    ("batch 16", "llama-3.1-8b fp8"): 4500,
    ("batch 64", "llama-3.1-8b fp8"): 12300,
    ("batch 256", "llama-3.1-8b fp8"): 22000,
    ("prefill 2048", "llama-3.1-8b fp8"): 62000,
    ("batch 1", "llama-3.1-8b int4"): 450,
    ("batch 16", "llama-3.1-8b int4"): 4200,
    ("batch 64", "llama-3.1-8b int4"): 9500,
    ("batch 256", "llama-3.1-8b int4"): 16500,
    ("prefill 2048", "llama-3.1-8b int4"): 42000,
}


class OfflineBench:
    def __init__(self, model: str, settings: EngineSettings) -> None:
        """`settings.device` is "cuda", or "cpu" to try the script."""
        self.model = model
        self.rows: list[Row] = []
        self._num_runs = 0
        started = time.monotonic()
        self.config = read_shape(model)
        device = torch.device(settings.device)
        dtype = torch.float32 if device.type == "cpu" else torch.bfloat16
        plan = (
            None
            if settings.quantization == "auto"
            else plan_rounding(self.config, settings, device, dtype)
        )
        weights = random_weights(
            self.config,
            device,
            dtype,
            finish=plan.rounded.round_layer if plan and plan.rounded else None,
        )
        if plan is not None:
            self.model = f"{model} {settings.quantization}"
            print(plan.describe())
        synchronize()
        self.weight_bytes = weights.num_bytes() - (
            0 if self.config.tie_embeddings else weights.embedding.nbytes
        )
        weights_s = time.monotonic() - started
        self.engine = build_engine(self.config, weights, None, [], settings)
        synchronize()
        gc.collect()
        gc.freeze()  # like a worker after loading its model
        memory = torch.cuda.memory_allocated() / 1e9 if device.type == "cuda" else 0.0
        print(
            f"{model}: weights {weights_s:.1f} s, "
            f"engine {time.monotonic() - started - weights_s:.1f} s, "
            f"{self.engine.scheduler.pool.num_blocks} KV blocks, {memory:.1f} GB",
            flush=True,
        )

    def batch(self, size: int, num_in: int = 128, num_out: int = 128) -> None:
        lengths = [(num_in, num_out)] * size
        self._run(lengths)
        seconds = self._run(lengths)
        self._add(f"batch {size}", size * num_out / seconds, seconds, self._decode_s(lengths))

    def first_token(self, num_in: int = 128) -> None:
        """Measures the time to first token of one request on an idle engine; median of nine."""
        times = sorted(self._run([(num_in, 1)]) for _ in range(9))
        print(f"  first token of {num_in}: {times[4] * 1e3:.2f} ms", flush=True)

    def closed_loop(
        self, size: int, num_in: int = 128, num_out: int = 128, seconds: float = 4.0
    ) -> None:
        """Runs `size` clients that send the next request immediately, so that prompts arrive while
        other requests decode."""
        self._num_runs += 1
        engine, source = self.engine, random.Random(self._num_runs)

        def submit(index: int, length: int) -> None:
            prompt = random_prompt(source, num_in, self.config.vocab_size)
            parameters = SamplingParameters(temperature=0.6, max_tokens=length, ignore_eos=True)
            engine.submit(
                GenerationRequest(
                    id=str(index), prompt=prompt, parameters=parameters, should_detokenize=False
                )
            )

        for index in range(size):
            submit(index, source.randint(1, num_out))
        submitted, num_tokens, num_steps, started = size, 0, 0, 0.0
        warm_until = time.monotonic() + 1.0
        while not started or time.monotonic() < started + seconds:
            outputs = engine.step()
            if not started and time.monotonic() >= warm_until:
                started, num_tokens, num_steps = time.monotonic(), 0, 0
            num_tokens, num_steps = (
                num_tokens + sum(len(output.token_ids) for output in outputs),
                num_steps + 1,
            )
            for output in outputs:
                if output.finish_reason is not None:
                    submit(submitted, num_out)
                    submitted += 1
        taken = time.monotonic() - started
        while engine.has_work:
            engine.step()
        print(f"  {num_steps / taken:.0f} steps per second")
        self._add(f"closed loop {size}", num_tokens / taken, taken, 0.0)

    def nano(self) -> None:
        # Draws random numbers in the order of nano-vllm's benchmark: the length and the tokens of
        # each prompt, then all output lengths.
        source = random.Random(0)
        prompts = [
            [source.randint(0, 10000) for _ in range(source.randint(100, 1024))] for _ in range(256)
        ]
        num_out = [source.randint(100, 1024) for _ in range(256)]
        self._run([(64, 8)] * 256)
        seconds = run_prompts(self.engine, prompts, num_out, temperature=0.6)
        lengths = [(len(prompt), out) for prompt, out in zip(prompts, num_out, strict=True)]
        self._add(
            "nano-vllm",
            sum(num_out) / seconds,
            seconds,
            self._decode_s(lengths) + self._prefill_s(lengths),
        )

    def prefill(self, num_in: int, count: int) -> None:
        self._run([(num_in, 1)] * 4)
        seconds = self._run([(num_in, 1)] * count)
        self._add(
            f"prefill {num_in}",
            num_in * count / seconds,
            seconds,
            self._prefill_s([(num_in, 1)] * count),
        )

    def _run(self, lengths: list[tuple[int, int]]) -> float:
        """Runs new prompts and returns the seconds."""
        self._num_runs += 1
        source = random.Random(self._num_runs)
        prompts = [random_prompt(source, num_in, self.config.vocab_size) for num_in, _ in lengths]
        return run_prompts(self.engine, prompts, [out for _, out in lengths], temperature=0.6)

    def _add(self, case: str, rate: float, seconds: float, limit_s: float) -> None:
        row = Row(
            case, self.model, rate, seconds, limit_s / seconds, GATES.get((case, self.model), 0.0)
        )
        self.rows.append(row)
        print(
            f"  {case:14} {rate:10.1f} tok/s  {seconds:7.3f} s  share {row.share:5.1%}"
            f"  gate {row.gate:g}",
            flush=True,
        )

    def _decode_s(self, lengths: list[tuple[int, int]]) -> float:
        per_token = self.config.kv_bytes_per_token(2)
        num_steps = max(out for _, out in lengths)
        read = num_steps * self.weight_bytes
        read += sum(per_token * sum(range(num_in, num_in + out)) for num_in, out in lengths)
        return read / BYTES_PER_SECOND

    def _prefill_s(self, lengths: list[tuple[int, int]]) -> float:
        matrices = self.weight_bytes / 2 - self.config.vocab_size * self.config.hidden_size
        flops = sum(
            2 * matrices * n + 2 * self.config.num_layers * self.config.q_size * n * n
            for n, _ in lengths
        )
        return flops / FLOPS_PER_SECOND


def synchronize() -> None:
    if torch.cuda.is_available():
        torch.cuda.synchronize()


def read_shape(model: str) -> DecoderConfig:
    raw = SHAPES[model]
    return FAMILIES[raw["model_type"]].read_config(dict(raw))


def random_prompt(source: random.Random, num_tokens: int, vocab_size: int) -> list[int]:
    return [source.randrange(min(vocab_size, 10001)) for _ in range(num_tokens)]


def run_prompts(
    engine: Engine, prompts: list[list[int]], num_out: list[int], temperature: float
) -> float:
    """Returns the seconds from the first submit to the last token."""
    synchronize()
    started = time.monotonic()
    for index, (prompt, out) in enumerate(zip(prompts, num_out, strict=True)):
        parameters = SamplingParameters(temperature=temperature, max_tokens=out, ignore_eos=True)
        engine.submit(
            GenerationRequest(
                id=str(index), prompt=prompt, parameters=parameters, should_detokenize=False
            )
        )
    num_tokens = 0
    while engine.has_work:
        num_tokens += sum(len(output.token_ids) for output in engine.step())
    seconds = time.monotonic() - started
    assert num_tokens == sum(num_out), f"{num_tokens} tokens generated, expected {sum(num_out)}"
    assert engine.scheduler.pool.num_used == 0, "some blocks are still in use"
    return seconds


def profile(bench: OfflineBench, size: int, num_in: int) -> None:
    """Prints the kernel times of 20 decode steps."""
    engine = bench.engine
    source = random.Random(11)
    for index in range(size):
        prompt = random_prompt(source, num_in, bench.config.vocab_size)
        engine.submit(
            GenerationRequest(
                id=f"p{index}",
                prompt=prompt,
                parameters=SamplingParameters(temperature=0.6, max_tokens=60, ignore_eos=True),
            )
        )
    for _ in range(30):
        engine.step()
    synchronize()
    with torch.profiler.profile(
        activities=[torch.profiler.ProfilerActivity.CUDA, torch.profiler.ProfilerActivity.CPU]
    ) as trace:
        started = time.monotonic()
        for _ in range(20):
            engine.step()
        synchronize()
        print(f"  {(time.monotonic() - started) / 20 * 1e3:.3f} ms per step under the profiler")
    rows = [
        event
        for event in trace.key_averages()
        if event.device_type == torch.autograd.DeviceType.CUDA
    ]
    rows.sort(key=lambda event: -event.self_device_time_total)
    total = sum(event.self_device_time_total for event in rows) / 20e3
    print(
        f"  profile of batch {size}, {num_in} tokens of context: {total:.3f} ms of kernels per step"
    )
    for event in rows[:22]:
        each_us = event.self_device_time_total / event.count
        total_ms = event.self_device_time_total / 20e3
        count = event.count / 20
        print(f"    {total_ms:8.4f} ms  {count:6.1f} x {each_us:8.2f} us  {event.key[:90]}")
    while engine.has_work:
        engine.step()
