"""Options -> a language model that is ready, on the engine that fits the checkpoint and the
machine.

OpenVINO is the choice for GGUF and for its own IR where there is no GPU and it is installed;
everything else is native. Heavy libraries are imported by the engine that needs them, in the
worker.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from functools import partial
from importlib.util import find_spec
from pathlib import Path

import msgspec

from naiad.backends.llm.chat import ChatTemplates, read_chat_templates
from naiad.backends.llm.checkpoint import cache_dir, find_checkpoint
from naiad.backends.llm.checkpoint_kind import num_engine_ranks, readable_checkpoint
from naiad.backends.llm.model import OpenModel
from naiad.backends.llm.options import LlmOptions
from naiad.backends.llm.text_process import TextProcesses
from naiad.core.install_advice import install_command
from naiad.errors import invalid_arg
from naiad.llm.engine_settings import ROUNDED

Log = Callable[[str], None]
OPENVINO_MODEL = "openvino_model.xml"
ERROR_RESPONSE_S = 1.0
"""How long the engine's thread has to respond after a rank was lost."""


def open_model(
    options: LlmOptions, bases: list[Path], num_threads: int, processes: TextProcesses, log: Log
) -> OpenModel:
    """Raises NaiadError."""
    given = find_checkpoint(options.checkpoint or ".", bases)
    path = readable_checkpoint(given, bases[-1].absolute().parent if bases else None)
    if path != given:
        log(
            f"'{given.name}' is a TensorRT-LLM engine: its checkpoint '{path.name}' is used instead"
        )
        options = _with_engines_ranks(options, num_engine_ranks(given), log)
    template = _find_file(options.chat_template, bases) if options.chat_template else None
    is_rounded = options.settings.quantization in ROUNDED
    engine = options.engine
    if engine == "auto":
        is_native = is_rounded or options.settings.tensor_parallel_size > 1
        engine = "native" if is_native else choose_engine(path, options.settings.device)
    if engine == "openvino" and options.settings.tensor_parallel_size > 1:
        raise invalid_arg(
            f"tensor_parallel_size is {options.settings.tensor_parallel_size}, which the native "
            "engine does; the engine is openvino"
        )
    if engine == "openvino" and is_rounded:
        raise invalid_arg(
            f"quantization is '{options.settings.quantization}', which the native engine does; "
            "the engine is openvino"
        )
    if engine == "openvino" and options.settings.kv_cache_dtype != "auto":
        raise invalid_arg(
            f"kv_cache_dtype is '{options.settings.kv_cache_dtype}', which the native engine has "
            "on a GPU; the engine is openvino"
        )
    if engine == "openvino" and options.settings.kv_events_endpoint:
        raise invalid_arg(
            f"kv_events_endpoint is '{options.settings.kv_events_endpoint}', but only the native "
            "engine publishes KV events; the engine is openvino"
        )
    if engine == "native" and options.settings.activations != "float32":
        raise invalid_arg(
            f"activations is '{options.settings.activations}', which the openvino engine does; the "
            "engine is native"
        )
    chat = read_chat_templates(path, processes, template)
    processes.open_tokenizer(path, uses_fast=options.settings.use_fast_tokenizer)
    log(f"opening '{path.name}' on the {engine} engine")
    if engine == "openvino":
        if find_spec("openvino_genai") is None:
            raise invalid_arg(
                f"the openvino engine needs openvino-genai: {install_command('openvino-llm')}"
            )
        from naiad.llm.openvino.engine import open_openvino

        openvino = open_openvino(path, options.settings, num_threads, cache_dir(), log)
        return OpenModel(
            openvino, openvino.tokenizer, chat, openvino.max_model_len,
            openvino.tokenizer.vocab_size, options.settings.max_num_seqs,
            openvino.block_size, openvino.num_kv_blocks, "openvino",
        )  # fmt: skip
    if find_spec("torch") is None:
        raise invalid_arg(
            f"checkpoint '{path.name}' needs an engine: {install_command('openvino-llm')} for a "
            "CPU, "
            f"or {install_command('llm')} for the native engine"
            if path.suffix == ".gguf"
            else f"checkpoint '{path.name}' needs the native engine, and that needs torch: "
            + install_command("llm")
        )
    return _open_native(path, options, chat, num_threads, log)


def _with_engines_ranks(options: LlmOptions, count: int, log: Log) -> LlmOptions:
    """A checkpoint whose engine was built for several GPUs is split over them, where there are so
    many."""
    settings = options.settings
    if count == 1 or settings.tensor_parallel_size > 1:
        return options
    num_gpus = 0
    if settings.device.partition(":")[0] in ("auto", "cuda") and find_spec("torch") is not None:
        import torch

        num_gpus = torch.cuda.device_count()
    if num_gpus < count:
        log(f"the engine was built for {count} GPUs, and there are {num_gpus}: one rank serves it")
        return options
    settings = msgspec.structs.replace(settings, tensor_parallel_size=count)
    return msgspec.structs.replace(options, settings=settings)


def _open_native(
    path: Path, options: LlmOptions, chat: ChatTemplates, num_threads: int, log: Log
) -> OpenModel:
    import torch

    from naiad.llm.start.load import load_engine

    torch.set_num_threads(num_threads)
    last = [-1]

    def progress(done: int, total: int) -> None:
        tenth = 10 * done // max(total, 1)
        if tenth != last[0]:
            last[0] = tenth
            log(f"loading '{path.name}': {tenth * 10} %")

    engine = load_engine(path, options.settings, progress, cache_dir(), log)
    if engine.code:
        log(f"'{path.name}' runs by {engine.code} with our paged attention, slower than by our own")
    if engine.quantization:
        log(f"'{path.name}' is quantized: {engine.quantization}")
    if engine.kv_cache:
        log(f"'{path.name}': {engine.kv_cache}")
    if engine.ranks is not None:
        engine.ranks.on_lost = partial(_end_process, log)
        log(f"'{path.name}' is split over {engine.ranks.shard.size} ranks")
    builder, pool = engine.builder, engine.scheduler.pool
    return OpenModel(
        engine, builder.tokenizer, chat, builder.max_model_len, builder.vocab_size,
        options.settings.max_num_seqs,
        options.settings.block_size, pool.capacity, "native", engine.quantization, engine.kv_cache,
        engine.code,
    )  # fmt: skip


def _end_process(log: Log, reason: str) -> None:
    """Ends the worker, so that the server starts it and all its ranks again. A step that is under
    way fails first and ends the process itself, after its requests got their errors."""
    log(f"{reason}: the instance is started again")
    time.sleep(ERROR_RESPONSE_S)
    os._exit(1)


def choose_engine(path: Path, device: str) -> str:
    is_ir = path.is_dir() and (path / OPENVINO_MODEL).exists()
    if is_ir:
        return "openvino"
    if (
        path.suffix == ".gguf"
        and device.partition(":")[0] in ("auto", "cpu")
        and find_spec("openvino_genai") is not None
        and not _has_gpu(device)
    ):
        return "openvino"
    return "native"


def _has_gpu(device: str) -> bool:
    """Asks without touching the device: a worker that only runs OpenVINO needs no CUDA context."""
    return (
        device == "auto"
        and find_spec("torch") is not None
        and any(Path("/dev").glob("nvidia[0-9]*"))
    )


def _find_file(text: str, bases: list[Path]) -> Path:
    for base in bases:
        if (base / text).is_file():
            return base / text
    raise invalid_arg(f"parameter 'chat_template' is '{text}', which is no file beside the model")
