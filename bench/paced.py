"""The backend `paced`: the llm backend around a device that is only a clock.

A step takes as long as it would on the GPU that the parameters describe, and its tokens are random.
This measures the host's work per token on a machine without a GPU, even at rates beyond any real
model.

Parameters:
- step_us: duration of a step.
- prompt_tokens_per_s: rate of prompt tokens.
- graph_us: time that the engine's thread needs to launch a step of one-token rows.
- launch_us: time that it needs to launch any other step. Such a step is launched kernel by kernel,
  as on a GPU: the thread releases the interpreter lock after each kernel, and the device cannot
  finish before the last kernel is launched.
"""

from __future__ import annotations

import random
import select
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from naiad.backends.backend import Runtime
from naiad.backends.llm import service as llm_service
from naiad.backends.llm.backend import LlmBackend
from naiad.backends.llm.chat import read_chat_templates
from naiad.backends.llm.model import OpenModel
from naiad.backends.llm.options import LlmOptions
from naiad.backends.llm.text_process import TextProcesses
from naiad.backends.served_config import read_config
from naiad.ipc.work import LoadArguments
from naiad.llm.block_pool import BlockPool
from naiad.llm.checkpoint.folder import open_folder, read_tokenizer
from naiad.llm.engine import Engine
from naiad.llm.engine_settings import EngineSettings
from naiad.llm.generation import TokenLogprobs
from naiad.llm.sequence_builder import SequenceBuilder
from naiad.llm.text.tokenizer import Tokenizer
from naiad.llm.token_scheduler import StepPlan, TokenScheduler

NUM_BLOCKS = 16384
NUM_TOKENS = 8192
MAX_LEN = 1024
NUM_KERNELS = 320
"""Number of kernels of a step without a captured graph: 32 layers with 10 kernels each."""


class PacedStep:
    def __init__(self, plan: StepPlan, tokens: list[int], ready_s: float) -> None:
        self.plan = plan
        self.failures: list[object] = []
        self._tokens = tokens
        self._ready_s = ready_s

    def wait(self) -> list[int]:
        time.sleep(max(0.0, self._ready_s - time.monotonic()))
        return self._tokens

    def take_logprobs(self, tokens: list[int]) -> dict[int, TokenLogprobs]:
        return {}


class PacedRunner:
    def __init__(
        self,
        config: Callable[[str, int], int],
        vocab_size: int,
        readings: NDArray[np.float64] | None = None,
    ) -> None:
        self._step_s = config("step_us", 5070) / 1e6
        self._prompt_rate = config("prompt_tokens_per_s", 59500)
        self._graph_s = config("graph_us", 200) / 1e6
        self._launch_s = config("launch_us", 1500) / 1e6
        self._vocab_size = vocab_size
        self._poll = select.poll()
        self._free_s = 0.0
        """Time at which the device has finished all launched steps."""
        self._readings = np.zeros(3) if readings is None else readings
        """Number of steps, number of rows, and busy seconds of the device."""

    def launch(self, plan: StepPlan) -> PacedStep:
        begin_s = time.monotonic()
        is_single = plan.num_single == len(plan.rows)
        num_kernels = 1 if is_single else NUM_KERNELS
        for _ in range(num_kernels):
            busy_until_s = (
                time.monotonic() + (self._graph_s if is_single else self._launch_s) / num_kernels
            )
            while time.monotonic() < busy_until_s:
                pass
            self._poll.poll(0)  # releases the interpreter lock
        took_s = (
            self._step_s + (plan.num_tokens - plan.num_single) / self._prompt_rate
            if self._step_s
            else 0.0
        )
        self._free_s = max(
            max(self._free_s, begin_s) + took_s, time.monotonic() + took_s / num_kernels
        )
        self._readings += (1, len(plan.rows), took_s)
        count = sum(row.is_sampled for row in plan.rows)
        return PacedStep(
            plan, [random.randrange(self._vocab_size) for _ in range(count)], self._free_s
        )


def build_engine(
    runner: PacedRunner, tokenizer: Tokenizer | None, vocab_size: int, settings: EngineSettings
) -> Engine:
    scheduler = TokenScheduler(BlockPool(NUM_BLOCKS, 16), 256, NUM_TOKENS)
    return Engine(
        runner,  # type: ignore[arg-type]
        scheduler,
        SequenceBuilder(tokenizer, vocab_size, [], MAX_LEN),
        settings,
        True,
    )


class PacedBackend(LlmBackend):
    def load(self, arguments: LoadArguments, runtime: Runtime) -> None:
        config = read_config(arguments)

        def open_paced(
            options: LlmOptions,
            bases: list[Path],
            num_threads: int,
            processes: TextProcesses,
            log: Callable[[str], None],
        ) -> OpenModel:
            folder = open_folder(Path(config.text("PACED_CHECKPOINT")))
            tokenizer = read_tokenizer(folder)
            vocab_size = int(folder.config["vocab_size"])
            readings = np.memmap(config.text("PACED_READINGS"), np.float64, "r+")
            runner = PacedRunner(
                lambda name, default: config.integer(name.upper(), default), vocab_size, readings
            )
            engine = build_engine(runner, tokenizer, vocab_size, options.settings)
            chat = read_chat_templates(folder.path, processes)
            processes.open_tokenizer(folder.path, uses_fast=options.settings.use_fast_tokenizer)
            return OpenModel(
                engine,
                tokenizer,
                chat,
                MAX_LEN,
                vocab_size,
                256,
                16,
                NUM_BLOCKS,
                "paced",
            )

        llm_service.open_model = open_paced  # type: ignore[attr-defined]
        super().load(arguments, runtime)
