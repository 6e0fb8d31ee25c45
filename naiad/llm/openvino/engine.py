"""OpenVINO GenAI's continuous batching behind the engine's interface: the default without a GPU for
GGUF files and OpenVINO IR.

In:  submit(GenerationRequest), cancel(id). Out: step() returns what every completion gained, as
     naiad.llm.engine does.
Rule: a parameter that this engine lacks is the request's INVALID_ARG, by its name. Text is made by
      our own detokenizer and stop strings. Import it in a worker only: openvino starts threads.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import openvino
import openvino_genai

from naiad.errors import NaiadError, internal, invalid_arg, unavailable
from naiad.llm.engine_settings import EngineSettings
from naiad.llm.engine_statistics import EngineLoad, EngineStatistics
from naiad.llm.generation import FinishReason, GenerationRequest, TokenLogprobs, TokenOutput
from naiad.llm.openvino.checkpoint import OpenvinoCheckpoint, read_checkpoint
from naiad.llm.openvino.conversion import Conversion, convert
from naiad.llm.openvino.form import ModelForm, choose_form
from naiad.llm.openvino.key_places import KeyPlaces
from naiad.llm.openvino.sequence import OpenvinoSequence, build_sequences
from naiad.llm.request_shares import RequestShares
from naiad.llm.text.tokenizer import Tokenizer
from naiad.machine.cpus import multiplies_bytes

BLOCK_SIZE = 32
"""Tokens in a block of the KV cache of OpenVINO's CPU plugin."""
DEFAULT_KV_BYTES = 1 << 30
DEFAULT_BATCHED_TOKENS = 512
MIN_SHARED_PLACES = 4
SHARED_PLACES_PER_THREAD = 2
"""How many completions run while several API keys are active. More of them would make each step
longer, and a step is what a new request waits for."""
EXACT = {
    "INFERENCE_PRECISION_HINT": "f32",
    "DYNAMIC_QUANTIZATION_GROUP_SIZE": "0",
    "KV_CACHE_PRECISION": "f16",
}
"""OpenVINO's own choice, eight-bit activations or bfloat16 where the processor has them, chooses
another token than float32 does at one place in twenty; in a small model a chat then goes another
way within its first words (bench/llm_agreement.py)."""

Log = Callable[[str], None]

_MAX_HARMFUL = 256


class OpenvinoEngine:
    block_size = BLOCK_SIZE

    def __init__(
        self,
        pipeline: Any,
        tokenizer: Tokenizer,
        max_model_len: int,
        num_kv_blocks: int,
        settings: EngineSettings,
        reopen: Callable[[], Any],
        clock_ns: Callable[[], int] = time.monotonic_ns,
        num_shared: int = MIN_SHARED_PLACES,
    ) -> None:
        """`reopen` makes another pipeline of the same model. `num_shared` is how many completions
        run while several API keys are active."""
        self._pipeline = pipeline
        self._reopen = reopen
        self.tokenizer = tokenizer
        self.max_model_len = max_model_len
        self.num_kv_blocks = num_kv_blocks
        self.settings = settings
        self.statistics = EngineStatistics()
        self._clock_ns = clock_ns
        self._random = random.Random(settings.seed)
        self._numbers = iter(range(1, 1 << 62))
        self._sequences: dict[str, list[OpenvinoSequence]] = {}
        self._outputs: list[TokenOutput] = []
        self._shares: RequestShares[OpenvinoSequence] = RequestShares(
            max(1, int(settings.max_num_seqs * settings.max_request_share))
        )
        self._places: KeyPlaces[OpenvinoSequence] = KeyPlaces(settings.max_num_seqs, num_shared)
        self._harmful: dict[str, None] = {}
        """The last grammars that broke a step, the oldest first."""
        self.can_follow_grammars = True
        self.properties = EXACT
        """With which the pipeline was opened."""
        self.conversion: Conversion | None = None
        """Held for as long as a pipeline may be opened again."""

    def submit(self, request: GenerationRequest) -> None:
        """Raises NaiadError: INVALID_ARG for what is wrong with the request, UNAVAILABLE when too
        many wait already."""
        if request.id in self._sequences:
            raise invalid_arg(f"a request with id '{request.id}' is under way already")
        num_open = sum(map(len, self._sequences.values()))
        limit = self.settings.max_num_seqs + self.settings.max_waiting_requests
        request.parameters.check(self.tokenizer.vocab_size)
        request.parameters.check_room(limit)
        if num_open + request.parameters.n > limit:
            raise unavailable(f"{num_open} requests are open already, the limit is {limit}", 1)
        sequences = build_sequences(request, self.tokenizer, self.max_model_len, self._random)
        if sequences[0].grammar is not None and not self.can_follow_grammars:
            raise invalid_arg(
                "OpenVINO cannot read the tokenizer of this file, which grammars need; the "
                "native engine can"
            )
        if sequences[0].grammar in self._harmful:
            raise invalid_arg("OpenVINO cannot use the grammar of the request")
        for sequence in sequences:
            sequence.arrival_ns = self._clock_ns()
        first, *others = sequences
        if self._shares.admit(first):
            self._places.add(first)
            try:
                self._begin_waiting(first)
            except RuntimeError as error:
                self._release(first)
                raise _refusal(error) from None
        self._sequences[request.id] = sequences
        for sequence in others:  # they differ from the first one only in their seeds
            if self._shares.admit(sequence):
                self._places.add(sequence)

    def _begin_waiting(self, new: OpenvinoSequence | None = None) -> None:
        """Hands completions to the pipeline as far as there are places. Raises RuntimeError if the
        pipeline refuses `new`."""
        refusal: RuntimeError | None = None
        while begun := self._places.begin(self._clock_ns()):
            for sequence in begun:
                sequence.begin_ns = sequence.begin_ns or self._clock_ns()
                try:
                    self._add(sequence, sequence.go_on())
                except RuntimeError as error:
                    if sequence is new:
                        refusal = error
                        continue
                    output = TokenOutput(
                        sequence.request.id, sequence.index, [], error=_refusal(error)
                    )
                    self._finish(sequence, output, FinishReason.ERROR)
        if refusal is not None:
            raise refusal

    def _release(self, sequence: OpenvinoSequence) -> None:
        self._places.remove(sequence, self._clock_ns())
        following = self._shares.release(sequence)
        if following is not None:
            self._places.add(following)

    def _add(self, sequence: OpenvinoSequence, prompt: list[int]) -> None:
        tensor = openvino.Tensor(np.asarray([prompt], np.int64))
        sequence.handle = self._pipeline.add_request(next(self._numbers), tensor, sequence.config)

    def cancel(self, request_id: str) -> None:
        # In reverse, so that none begins only to be cancelled.
        for sequence in reversed(self._sequences.get(request_id, [])):
            if not sequence.is_finished:
                if sequence.handle is not None:
                    sequence.handle.cancel()
                self._finish(
                    sequence, TokenOutput(request_id, sequence.index, []), FinishReason.CANCELLED
                )

    @property
    def has_work(self) -> bool:
        return bool(self._sequences or self._outputs) or self._pipeline.has_non_finished_requests()

    @property
    def is_ahead(self) -> bool:
        return False

    def step(self, on_launched: Callable[[], None] | None = None) -> list[TokenOutput]:
        """Computes here, so there is no launch to tell of. Raises what a step without new grammars
        in it failed with."""
        for sequence in self._places.pause(self._clock_ns()):
            sequence.handle.cancel()
            sequence.handle = None
        self._begin_waiting()
        statistics, has_stepped = self.statistics, False
        num_tokens = statistics.prompt_tokens + statistics.generation_tokens
        if self._pipeline.has_non_finished_requests():
            try:
                self._pipeline.step()
            except RuntimeError as error:
                self._come_back(error)
            has_stepped = True
        now_ns = self._clock_ns()
        for sequences in list(self._sequences.values()):
            for sequence in sequences:
                if not sequence.is_finished and sequence.handle is not None:
                    self._read(sequence, now_ns)
        if has_stepped:
            num_tokens = statistics.prompt_tokens + statistics.generation_tokens - num_tokens
            statistics.record_step(num_tokens, (), now_ns)
        outputs, self._outputs = self._outputs, []
        return outputs

    def _come_back(self, error: RuntimeError) -> None:
        """Replaces a pipeline whose step failed, because it would fail forever. The new pipeline
        gets all requests except those that may have caused the failure.

        OpenVINO reads a grammar when its request is to get the first token, so the new ones are the
        suspects. What has tokens goes on after them, with its random stream and its penalties begun
        anew; a grammar cannot be taken up in its middle.
        """
        alive = [
            sequence
            for sequences in self._sequences.values()
            for sequence in sequences
            if not sequence.is_finished and sequence.handle is not None
        ]
        suspects = [
            sequence for sequence in alive if sequence.grammar is not None and not sequence.tokens
        ]
        for sequence in alive:
            sequence.handle = None
        self._pipeline = None  # before there are two in memory
        self._pipeline = self._reopen()
        if not suspects:
            raise error
        for sequence in suspects:
            if sequence.grammar is not None:
                self._harmful[sequence.grammar] = None
        while len(self._harmful) > _MAX_HARMFUL:
            del self._harmful[next(iter(self._harmful))]
        for sequence in alive:
            output = TokenOutput(sequence.request.id, sequence.index, [])
            if sequence in suspects:
                output.error = internal(
                    f"OpenVINO could not use the grammar of the request: {_last_line(error)}"
                )
                self._finish(sequence, output, FinishReason.ERROR)
            elif sequence.grammar is not None:
                output.error = unavailable(
                    "the engine had to be opened again, and a grammar cannot be taken up in its "
                    "middle",
                    1,
                )
                self._finish(sequence, output, FinishReason.ERROR)
            else:
                self._add(sequence, sequence.go_on())

    def load(self) -> EngineLoad:
        metrics = self._pipeline.get_metrics()
        num_open = sum(map(len, self._sequences.values()))
        num_running = self._places.num_running
        # its last reading stays when nothing runs
        usage = metrics.cache_usage / 100 if num_open else 0.0
        return EngineLoad(num_running, num_open - num_running, usage, 0, 0, 0)

    def _read(self, sequence: OpenvinoSequence, now_ns: int) -> None:
        """A step gives a sequence one reading at most."""
        handle = sequence.handle
        if handle.can_read():
            for gained in handle.read().values():
                self._append(sequence, gained, now_ns)
        elif handle.get_status() != openvino_genai.GenerationStatus.RUNNING:
            self._end_unread(sequence)

    def _end_unread(self, sequence: OpenvinoSequence) -> None:
        """Finished without a last token: a prompt that fits no free memory is ignored by the
        pipeline."""
        output = TokenOutput(sequence.request.id, sequence.index, [])
        if sequence.num_tokens:
            self._finish(sequence, output, FinishReason.LENGTH)
            return
        output.error = internal(
            "OpenVINO ended the request without an answer: the KV cache is too small for it"
        )
        self._finish(sequence, output, FinishReason.ERROR)

    def _append(self, sequence: OpenvinoSequence, gained: Any, now_ns: int) -> None:
        tokens, reason = list(gained.generated_ids), gained.finish_reason
        output = TokenOutput(
            sequence.request.id, sequence.index, tokens, num_prompt_tokens=len(sequence.prompt)
        )
        if sequence.request.parameters.logprobs is not None:
            count = sequence.request.parameters.logprobs
            pairs = zip(tokens, gained.generated_log_probs, strict=True)
            output.logprobs = [
                TokenLogprobs(token, value, [(token, value)][:count]) for token, value in pairs
            ]
        for token in tokens:
            self._count_token(sequence, token, now_ns)
            is_end = (
                token in sequence.end_token_ids
                and sequence.num_tokens > sequence.request.parameters.min_tokens
            )
            if not is_end and sequence.text is not None:
                output.text += sequence.text.append(
                    token, sequence.num_tokens >= sequence.request.parameters.min_tokens
                )
                if sequence.text.matched_stop is not None:
                    sequence.handle.stop()
                    self._finish(sequence, output, FinishReason.STOP, sequence.text.matched_stop)
                    return
        if reason == openvino_genai.GenerationFinishReason.STOP:
            last = tokens[-1] if tokens else None
            self._finish(
                sequence,
                output,
                FinishReason.STOP,
                last if last in sequence.request.parameters.stop_token_ids else None,
            )
        elif reason == openvino_genai.GenerationFinishReason.LENGTH:
            self._finish(sequence, output, FinishReason.LENGTH)
        elif tokens:
            self._outputs.append(output)

    def _count_token(self, sequence: OpenvinoSequence, token: int, now_ns: int) -> None:
        sequence.tokens.append(token)
        self.statistics.record_token(sequence, len(sequence.prompt), now_ns)

    def _finish(
        self,
        sequence: OpenvinoSequence,
        output: TokenOutput,
        reason: FinishReason,
        stop: int | str | None = None,
    ) -> None:
        if (
            sequence.text is not None
            and sequence.text.matched_stop is None
            and reason in (FinishReason.STOP, FinishReason.LENGTH)
        ):
            output.text += sequence.text.finish()
            if sequence.text.matched_stop is not None:
                reason, stop = FinishReason.STOP, sequence.text.matched_stop
        output.finish_reason, output.stop_reason = reason, stop
        sequence.is_finished = True
        self._outputs.append(output)
        if not self._shares.drop_held(sequence):
            self._release(sequence)
        self.statistics.record_finish(sequence, reason, self._clock_ns())
        if all(sibling.is_finished for sibling in self._sequences.get(sequence.request.id, [])):
            self._sequences.pop(sequence.request.id, None)


def _refusal(error: RuntimeError) -> NaiadError:
    return invalid_arg(f"OpenVINO refuses the request: {_last_line(error)}")


def _last_line(error: Exception) -> str:
    """OpenVINO's words end with what was wrong; before them stand places in its source."""
    lines = [line for line in str(error).splitlines() if line.strip()]
    return lines[-1].strip() if lines else "no reason given"


def pipeline_properties(form: ModelForm) -> dict[str, str]:
    """OpenVINO rounds the inputs of the matrices that model.py lets it round, and of no others."""
    return {**EXACT, "DYNAMIC_QUANTIZATION_GROUP_SIZE": str(form.byte_group)}


def open_openvino(
    path: Path, settings: EngineSettings, num_threads: int, cache: Path, log: Log
) -> OpenvinoEngine:
    """`path`: a GGUF file, or a folder with openvino_model.xml. `cache`: where converted files are
    kept. Raises NaiadError."""
    settings.check()
    checkpoint = read_checkpoint(path)
    if settings.activations == "int8" and checkpoint.gguf is None:
        raise invalid_arg(
            f"activations is 'int8', which is for GGUF files; '{path.name}' is OpenVINO IR"
        )
    folder, conversion, properties = path, None, EXACT
    if checkpoint.gguf is not None:
        form = choose_form(*checkpoint.gguf, settings, multiplies_bytes())
        conversion = convert(path, *checkpoint.gguf, cache, log, form)
        folder = conversion.folder
        properties = pipeline_properties(form)
    num_kv_blocks = settings.num_kv_blocks or _num_blocks(
        checkpoint, settings.kv_cache_bytes or DEFAULT_KV_BYTES
    )
    scheduler = openvino_genai.SchedulerConfig()
    scheduler.cache_size = 0
    scheduler.num_kv_blocks = num_kv_blocks
    scheduler.max_num_seqs = settings.max_num_seqs
    scheduler.max_num_batched_tokens = settings.max_num_batched_tokens or DEFAULT_BATCHED_TOKENS
    scheduler.enable_prefix_caching = settings.enable_prefix_caching
    scheduler.dynamic_split_fuse = True

    def open_pipeline() -> Any:
        try:
            # Without a tokenizer in the folder this one is empty: only grammars need it.
            tokenizer = openvino_genai.Tokenizer(str(folder))
            pipeline = openvino_genai.ContinuousBatchingPipeline(
                str(folder),
                tokenizer,
                scheduler,
                "CPU",
                INFERENCE_NUM_THREADS=num_threads,
                **properties,
            )
        except Exception as error:  # OpenVINO raises whatever it stumbles over
            raise invalid_arg(f"OpenVINO cannot open '{path.name}': {_last_line(error)}") from None
        _warm_up(pipeline)
        return pipeline

    wanted = min(
        settings.max_model_len or checkpoint.max_position_embeddings,
        checkpoint.max_position_embeddings,
    )
    max_model_len = min(wanted, (num_kv_blocks - 1) * BLOCK_SIZE)
    engine = OpenvinoEngine(
        open_pipeline(),
        checkpoint.tokenizer,
        max_model_len,
        num_kv_blocks,
        settings,
        open_pipeline,
        num_shared=max(MIN_SHARED_PLACES, SHARED_PLACES_PER_THREAD * num_threads),
    )
    engine.can_follow_grammars = conversion is None or conversion.has_tokenizer
    engine.properties = properties
    engine.conversion = conversion
    return engine


def _warm_up(pipeline: Any) -> None:
    """The first step allocates and compiles: better now than under a client's request."""
    config = openvino_genai.GenerationConfig()
    config.max_new_tokens = 2
    config.apply_chat_template = False
    config.ignore_eos = True
    config.set_eos_token_id(
        0
    )  # unset it becomes the tokenizer's, which has none where the folder has no tokenizer
    pipeline.add_request(0, openvino.Tensor(np.ones((1, 2), np.int64)), config)
    while pipeline.has_non_finished_requests():
        pipeline.step()


def _num_blocks(checkpoint: OpenvinoCheckpoint, num_bytes: int) -> int:
    """Never more than 256 whole contexts: small models would reserve memory that nothing can
    fill."""
    most = 256 * checkpoint.max_position_embeddings // BLOCK_SIZE
    return max(16, min(most, num_bytes // (checkpoint.kv_bytes_per_token * BLOCK_SIZE)))
