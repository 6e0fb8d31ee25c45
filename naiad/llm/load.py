"""From a checkpoint to an engine that is ready: device, weights, KV cache, graphs.

In:  a folder (or GGUF file) and EngineSettings. Out: an Engine. Everything it needs is allocated before it returns.
"""

from __future__ import annotations

from pathlib import Path

import torch

from naiad.errors import invalid_arg, unavailable
from naiad.llm.block_pool import BlockPool
from naiad.llm.checkpoint.folder import open_folder, read_tokenizer
from naiad.llm.checkpoint.load_weights import Progress, load_weights
from naiad.llm.checkpoint.safetensors_source import SafetensorsSource
from naiad.llm.engine import Engine
from naiad.llm.engine_settings import EngineSettings
from naiad.llm.kv_cache import KvCache, allocate_kv_cache, block_bytes
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

DEFAULT_CPU_KV_BYTES = 1 << 30


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
    max_model_len = min(settings.max_model_len or config.max_position_embeddings, config.max_position_embeddings)
    num_batched = settings.max_num_batched_tokens or 1024
    table = SlotTable(settings.max_num_seqs, config.vocab_size, device)
    num_blocks = _num_blocks(config, settings, dtype)
    max_model_len = min(max_model_len, (num_blocks - 1) * settings.block_size)
    cache = allocate_kv_cache(config, num_blocks, settings.block_size, settings.max_num_seqs, max_model_len, device, dtype)
    cos, sin = rope_tables(config.rope, max_model_len, device)
    decoder = Decoder(config, weights, TorchOperations(cos, sin, table.next_tokens))
    stager = StepStager(num_batched, settings.max_num_seqs, None, device)
    runner = Runner(decoder, cache, table, TorchSampler(table), stager)
    scheduler = TokenScheduler(BlockPool(num_blocks, settings.block_size), settings.max_num_seqs, num_batched, settings.enable_prefix_caching)
    builder = SequenceBuilder(tokenizer, config.vocab_size, eos_token_ids, max_model_len)
    return Engine(runner, scheduler, builder, settings, bool(settings.is_asynchronous))


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


def _num_blocks(config: DecoderConfig, settings: EngineSettings, dtype: torch.dtype) -> int:
    if settings.num_kv_blocks is not None:
        return settings.num_kv_blocks + 1
    each = block_bytes(config, settings.block_size, dtype)
    wanted = settings.max_num_seqs * -(-config.max_position_embeddings // settings.block_size)
    num_blocks = min((settings.kv_cache_bytes or DEFAULT_CPU_KV_BYTES) // each, wanted)
    if num_blocks < 1:
        raise unavailable("there is no memory for a single KV block")
    return num_blocks + 1
