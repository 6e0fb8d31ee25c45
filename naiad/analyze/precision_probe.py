"""The process that measures precisions: opens an engine for each and compares the distributions.

In:  a ProbeRequest as JSON on standard input. Out: a PrecisionOutcome as a line of JSON on standard
     output, for each precision in turn.
"""

from __future__ import annotations

import gc
import sys
from collections.abc import Iterator
from pathlib import Path

import msgspec
import torch
from torch import Tensor

from naiad.analyze.precision import PLAIN, Precision, PrecisionOutcome
from naiad.analyze.precision_search import ProbeRequest
from naiad.errors import NaiadError, unsupported
from naiad.llm.engine import Engine
from naiad.llm.engine_settings import EngineSettings
from naiad.llm.generation import GenerationRequest
from naiad.llm.models.decoder import Decoder
from naiad.llm.parameters import SamplingParameters
from naiad.llm.quantization.linears import WIDENED
from naiad.llm.start.load import load_engine
from naiad.llm.step.kv_cache import KvCache
from naiad.llm.step.step_input import StepInput
from naiad.tools.quantize.calibration import cut_tokens, read_text
from naiad.tools.quantize.measurement import compare

STRETCH_TOKENS = 256
CHUNK_TOKENS = 128
"""Less than a stretch, so that later tokens read the KV cache and its rounding counts."""
MIB = 1e6


class AllRows:
    """Runs a decoder as the runner does, and keeps the logits of every token of a prompt."""

    def __init__(self, decoder: Decoder) -> None:
        self._decoder = decoder
        self.chunks: list[Tensor] = []

    def forward(self, step: StepInput, cache: KvCache) -> Tensor:
        sampled, step.sample_rows = step.sample_rows, None
        logits = self._decoder.logits(self._decoder.run_layers(step, cache), step)
        step.sample_rows = sampled
        self.chunks.append(logits.float().cpu())
        return logits if sampled is None else logits[sampled.long()]


class Probe:
    def __init__(self, request: ProbeRequest) -> None:
        self._request = request
        self._tokens = torch.empty(0)
        self._plain: list[Tensor] = []
        """Log probabilities of the unquantized model, a tensor per stretch."""

    def outcomes(self) -> Iterator[PrecisionOutcome]:
        for precision in self._request.precisions:
            try:
                figures = self._measure(precision)
            except (NaiadError, RuntimeError, MemoryError) as error:  # RuntimeError: torch's own
                reason = (str(error).splitlines() or [type(error).__name__])[0]
                yield PrecisionOutcome(self._request.model, precision, reason=reason)
            else:
                yield PrecisionOutcome(self._request.model, precision, figures)
            gc.collect()
            if torch.cuda.is_available():
                torch.cuda.empty_cache()

    def _measure(self, precision: Precision) -> dict[str, float]:
        settings = msgspec.structs.replace(
            self._request.settings,
            quantization=precision.quantization,
            kv_cache_dtype=precision.kv_cache_dtype,
            max_num_seqs=1,
            max_num_batched_tokens=CHUNK_TOKENS,
            max_model_len=2 * STRETCH_TOKENS,
            kv_cache_bytes=None,
            num_kv_blocks=-(-2 * STRETCH_TOKENS // self._request.settings.block_size),
            enable_prefix_caching=False,
            use_cuda_graphs=False,
        )
        engine = load_engine(Path(self._request.checkpoint), settings)
        _check_kernels(engine, settings)
        figures = _memory_figures(engine)
        if not self._tokens.numel():
            self._tokens = self._read_tokens(engine)
        found = [_log_probs(engine, stretch.tolist()) for stretch in self._tokens]
        if not self._plain:
            if precision != Precision():
                raise unsupported("the unquantized model, which it is compared with, cannot run")
            self._plain = found
        quality = compare(self._plain.__getitem__, found.__getitem__, self._tokens)
        return figures | {
            "divergence": quality.divergence,
            "agreement": 100.0 * quality.agreement,
            "perplexity": quality.perplexity_after,
        }

    def _read_tokens(self, engine: Engine) -> Tensor:
        tokenizer = engine.builder.tokenizer
        if tokenizer is None:
            raise unsupported("the checkpoint has no tokenizer, which the prompts need")
        text = read_text(Path(self._request.text_file) if self._request.text_file else None)
        return cut_tokens(tokenizer.encode(text), 0, STRETCH_TOKENS)[1]


def _check_kernels(engine: Engine, settings: EngineSettings) -> None:
    """Raises NaiadError if the engine widens what it was to quantize, which gains nothing."""
    if settings.quantization != PLAIN and WIDENED in engine.quantization:
        raise unsupported(
            f"'{settings.quantization}' has no kernel on this device: {engine.quantization}"
        )


def _memory_figures(engine: Engine) -> dict[str, float]:
    cache = engine.runner.cache
    num_bytes = sum(tensor.nbytes for tensor in (*cache.keys, *cache.values))
    num_tokens = cache.num_blocks * cache.block_size
    figures = {"kv_cache_per_token": num_bytes / num_tokens / 1e3}
    if engine.runner.device.type == "cuda":
        figures["weight_memory"] = (torch.cuda.memory_allocated() - num_bytes) / MIB
    return figures


def _log_probs(engine: Engine, prompt: list[int]) -> Tensor:
    decoder = engine.runner.model
    if not isinstance(decoder, Decoder):
        raise unsupported("the model runs with transformers' code, which cannot be quantized here")
    engine.runner.model = rows = AllRows(decoder)
    parameters = SamplingParameters(temperature=0.0, max_tokens=1, ignore_eos=True)
    request = GenerationRequest(
        id="probe", prompt=prompt, parameters=parameters, should_detokenize=False
    )
    try:
        for output in engine.run([request]):
            if output.error is not None:
                raise output.error
    finally:
        engine.runner.model = decoder
    return torch.log_softmax(torch.cat(rows.chunks)[: len(prompt)], dim=-1)


def main() -> None:
    request = msgspec.json.decode(sys.stdin.buffer.read(), type=ProbeRequest)
    for outcome in Probe(request).outcomes():
        sys.stdout.buffer.write(msgspec.json.encode(outcome) + b"\n")
        sys.stdout.buffer.flush()


if __name__ == "__main__":
    main()
