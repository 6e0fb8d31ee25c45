"""From a checkpoint to an engine that is ready: device, weights, KV cache, graphs.

In:  a folder (or GGUF file) and EngineSettings. Out: an Engine. Everything it needs is allocated before it returns.
"""

from __future__ import annotations

from pathlib import Path

import torch

from naiad.errors import invalid_arg
from naiad.llm.block_pool import BlockPool
from naiad.llm.checkpoint.folder import open_folder, read_tokenizer
from naiad.llm.checkpoint.load_weights import Progress, load_weights
from naiad.llm.checkpoint.safetensors_source import SafetensorsSource
from naiad.llm.engine import Engine
from naiad.llm.engine_settings import EngineSettings
from naiad.llm.kv_cache import KvCache, allocate_kv_cache
from naiad.llm.memory_plan import num_kv_blocks
from naiad.llm.models.decoder import Decoder
from naiad.llm.models.decoder_config import DecoderConfig
from naiad.llm.models.decoder_weights import DecoderWeights
from naiad.llm.models.registry import find_family
from naiad.llm.models.rope import rope_tables
from naiad.llm.models.torch_operations import TorchOperations
from naiad.llm.runner import Runner
from naiad.llm.sequence_builder import SequenceBuilder
from naiad.llm.slot_table import SlotTable
from naiad.llm.step_stager import StepStager
from naiad.llm.token_scheduler import TokenScheduler
from naiad.llm.tokenizer import Tokenizer
from naiad.llm.torch_sampler import TorchSampler

DEFAULT_CPU_TOKENS = 1024
DEFAULT_GPU_TOKENS = 8192


def load_engine(path: Path, settings: EngineSettings | None = None, progress: Progress | None = None) -> Engine:
    settings = settings or EngineSettings()
    settings.check()
    folder = open_folder(path)
    family = find_family(folder.config["model_type"])
    if family is None:
        raise invalid_arg(f"model_type '{folder.config['model_type']}' has no fast path")
    config = family.read_config(folder.config)
    device = choose_device(settings)
    weights = load_weights(config, family, SafetensorsSource(path, device), device, choose_dtype(settings, config, device), progress)
    return build_engine(config, weights, read_tokenizer(folder), folder.eos_token_ids, settings)


def build_engine(
    config: DecoderConfig, weights: DecoderWeights, tokenizer: Tokenizer | None, eos_token_ids: list[int], settings: EngineSettings
) -> Engine:
    device, dtype = weights.embedding.device, weights.embedding.dtype
    is_gpu = device.type == "cuda"
    num_tokens = settings.max_num_batched_tokens or (DEFAULT_GPU_TOKENS if is_gpu else DEFAULT_CPU_TOKENS)
    table = SlotTable(settings.max_num_seqs, config.vocab_size, device)
    num_blocks = num_kv_blocks(config, settings, num_tokens, device, dtype)
    wanted_len = min(settings.max_model_len or config.max_position_embeddings, config.max_position_embeddings)
    max_model_len = min(wanted_len, (num_blocks - 1) * settings.block_size)
    cache = allocate_kv_cache(config, num_blocks, settings.block_size, settings.max_num_seqs, max_model_len, device, dtype)
    runner = build_runner(config, weights, cache, table, num_tokens, max_model_len, settings)
    scheduler = TokenScheduler(
        BlockPool(num_blocks, settings.block_size), settings.max_num_seqs, num_tokens, settings.enable_prefix_caching
    )
    builder = SequenceBuilder(tokenizer, config.vocab_size, eos_token_ids, max_model_len)
    is_asynchronous = is_gpu if settings.is_asynchronous is None else settings.is_asynchronous
    return Engine(runner, scheduler, builder, settings, is_asynchronous)


def build_runner(
    config: DecoderConfig,
    weights: DecoderWeights,
    cache: KvCache,
    table: SlotTable,
    num_tokens: int,
    max_model_len: int,
    settings: EngineSettings,
) -> Runner:
    device = table.device
    cos, sin = rope_tables(config.rope, max_model_len, device)
    if device.type != "cuda" and not settings.use_triton_interpreter:
        decoder = Decoder(config, weights, TorchOperations(cos, sin, table.next_tokens))
        return Runner(decoder, cache, table, TorchSampler(table), StepStager(num_tokens, settings.max_num_seqs, None, device))
    from naiad.llm import cuda_graphs, cuda_parts  # triton is there only with torch's CUDA builds

    planner = cuda_parts.build_planner(config, device)
    sampler = cuda_parts.build_sampler(table)
    decoder = Decoder(config, weights, cuda_parts.build_operations(config, cos, sin, table, planner))
    stager = StepStager(num_tokens, settings.max_num_seqs, planner, device)
    runner = Runner(decoder, cache, table, sampler, stager)
    if device.type == "cuda" and settings.use_cuda_graphs:
        with torch.inference_mode():
            runner.graphs = cuda_graphs.GraphLadder(decoder, sampler, cache, stager, cuda_graphs.ladder(settings.max_num_seqs))
    return runner


def choose_device(settings: EngineSettings) -> torch.device:
    if settings.device == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    return torch.device(settings.device)


def choose_dtype(settings: EngineSettings, config: DecoderConfig, device: torch.device) -> torch.dtype:
    name = settings.dtype
    if name == "auto":
        name = "float32" if device.type == "cpu" else config.dtype
    dtype: torch.dtype = getattr(torch, name)
    return dtype
