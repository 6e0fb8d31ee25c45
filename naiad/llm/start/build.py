"""An engine around a model whose weights are on the device: KV cache, tables, sampler, graphs.
Everything is allocated before it returns.

Two ways in: `build_engine` for the decoder families, `build_transformers_engine` for all others.
load.py gets the weights there.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch

from naiad.llm.block_pool import BlockPool
from naiad.llm.engine import Engine
from naiad.llm.engine_settings import EngineSettings
from naiad.llm.kv_events import KvEventPublisher
from naiad.llm.models.decoder import Decoder
from naiad.llm.models.decoder_config import DecoderConfig
from naiad.llm.models.decoder_weights import DecoderWeights
from naiad.llm.models.description import ModelDescription, describe
from naiad.llm.models.operations import Operations
from naiad.llm.models.packed_linear import pack_weights
from naiad.llm.models.quantized_linear import widening_bytes
from naiad.llm.models.rope_tables import rope_tables
from naiad.llm.models.torch_operations import TorchOperations
from naiad.llm.sequence_builder import SequenceBuilder
from naiad.llm.start.kv_precision import describe_kv_cache, kv_cache_dtype
from naiad.llm.start.memory_plan import num_kv_blocks
from naiad.llm.start.warm_up import warm_up
from naiad.llm.step.batch_ladder import ladder
from naiad.llm.step.chunk_plan import ChunkPlanner
from naiad.llm.step.kv_cache import KvScales, allocate_kv_cache
from naiad.llm.step.runner import Model, Runner, Sampler
from naiad.llm.step.slot_table import SlotTable
from naiad.llm.step.step_stager import StepStager
from naiad.llm.step.torch_sampler import TorchSampler
from naiad.llm.text.tokenizer import Tokenizer
from naiad.llm.token_scheduler import TokenScheduler

if TYPE_CHECKING:
    from naiad.llm.parallel.peers import Peers

DEFAULT_CPU_TOKENS = 1024
DEFAULT_GPU_TOKENS = 8192

ModelMaker = Callable[[SlotTable, int, ChunkPlanner | None], Model]
"""Given the slot table, the longest sequence, and the chunk planner where Triton computes."""


def build_engine(
    config: DecoderConfig,
    weights: DecoderWeights,
    tokenizer: Tokenizer | None,
    eos_token_ids: list[int],
    settings: EngineSettings,
    is_half_enough: bool = False,
    kv_scales: list[KvScales] | None = None,
    peers: Peers | None = None,
) -> Engine:
    """On a CPU the weights are packed where they are; `is_half_enough` lets their matrices be kept
    in float16. With `peers` the config and the weights are one rank's part."""
    device = weights.embedding.device

    def decoder(operations: Operations, table: SlotTable) -> Decoder:
        if peers is None:
            return Decoder(config, weights, operations)
        from naiad.llm.parallel.sharded_decoder import ShardedDecoder

        return ShardedDecoder(config, weights, operations, peers.collectives, table.next_tokens)

    def make_decoder(table: SlotTable, max_model_len: int, planner: ChunkPlanner | None) -> Decoder:
        cos, sin = rope_tables(config.rope, max_model_len, device)
        if planner is None:
            pack_weights(weights, is_half_enough)
            return decoder(TorchOperations(cos, sin, table.next_tokens), table)
        from naiad.llm.start import cuda_parts  # triton is there only with torch's CUDA builds

        dtype = weights.embedding.dtype
        return decoder(cuda_parts.build_operations(cos, sin, table, planner, dtype), table)

    return _assemble(
        describe(config),
        make_decoder,
        device,
        weights.embedding.dtype,
        tokenizer,
        eos_token_ids,
        settings,
        kv_scales,
        widening_bytes(weights),
        peers,
    )


def build_transformers_engine(
    model: Any,
    description: ModelDescription,
    tokenizer: Tokenizer | None,
    eos_token_ids: list[int],
    settings: EngineSettings,
) -> Engine:
    # transformers takes seconds to import
    from naiad.llm.models.transformers_model import TransformersModel

    parameter = next(model.parameters())

    def make_model(
        table: SlotTable, max_model_len: int, planner: ChunkPlanner | None
    ) -> TransformersModel:
        if planner is None:
            none = torch.empty((max_model_len, 0))
            return TransformersModel(
                model, TorchOperations(none, none, table.next_tokens), table.next_tokens
            )
        from naiad.llm.start import cuda_parts  # triton is there only with torch's CUDA builds

        return TransformersModel(
            model, cuda_parts.build_attention(table, planner), table.next_tokens
        )

    return _assemble(
        description,
        make_model,
        parameter.device,
        parameter.dtype,
        tokenizer,
        eos_token_ids,
        settings,
    )


def _assemble(
    description: ModelDescription,
    make_model: ModelMaker,
    device: torch.device,
    dtype: torch.dtype,
    tokenizer: Tokenizer | None,
    eos_token_ids: list[int],
    settings: EngineSettings,
    kv_scales: list[KvScales] | None = None,
    scratch_bytes: int = 0,
    peers: Peers | None = None,
) -> Engine:
    is_gpu = device.type == "cuda"
    num_tokens = settings.max_num_batched_tokens or (
        DEFAULT_GPU_TOKENS if is_gpu else DEFAULT_CPU_TOKENS
    )
    table = SlotTable(settings.max_num_seqs, description.vocab_size, device)
    cache_dtype = kv_cache_dtype(settings, device, dtype)
    num_blocks = num_kv_blocks(
        description, settings, num_tokens, device, dtype, cache_dtype, scratch_bytes
    )
    if peers is not None:
        num_blocks = peers.agree(num_blocks)
    make_runner = Runner if peers is None else peers.make_runner
    wanted_len = min(
        settings.max_model_len or description.max_position_embeddings,
        description.max_position_embeddings,
    )
    # A sequence that may grow beyond the whole cache could never finish.
    max_model_len = min(wanted_len, (num_blocks - 1) * settings.block_size)
    cache = allocate_kv_cache(
        description,
        num_blocks,
        settings.block_size,
        settings.max_num_seqs,
        max_model_len,
        device,
        cache_dtype,
        kv_scales if cache_dtype != dtype else None,
    )
    if is_gpu or settings.use_triton_interpreter:
        from naiad.llm.start import cuda_parts  # triton is there only with torch's CUDA builds

        # triton is there only with torch's CUDA builds
        from naiad.llm.step import cuda_graphs, prompt_graphs

        planner = cuda_parts.build_planner(description.kv_shapes[0].num_kv_heads, device)
        model = make_model(table, max_model_len, planner)
        captured = (
            model if is_gpu and settings.use_cuda_graphs and isinstance(model, Decoder) else None
        )
        sizes = (
            prompt_graphs.prompt_ladder(num_tokens, captured.weights.num_bytes() // dtype.itemsize)
            if captured is not None
            else ()
        )
        stager = StepStager(
            num_tokens, settings.max_num_seqs, planner, device, max(sizes, default=0)
        )
        sampler: Sampler = cuda_parts.build_sampler(table)
        if peers is not None:
            sampler = peers.make_sampler(sampler, table)
        runner = make_runner(model, cache, table, sampler, stager)
        if captured is not None:
            single = cuda_graphs.GraphLadder(
                captured, runner.sampler, cache, stager, ladder(settings.max_num_seqs)
            )
            runner.graphs = [
                single,
                prompt_graphs.PromptGraphs(
                    captured, runner.sampler, cache, stager, sizes, single.pool
                ),
            ]
    else:
        stager = StepStager(num_tokens, settings.max_num_seqs, None, device)
        sampler = TorchSampler(table)
        if peers is not None:
            sampler = peers.make_sampler(sampler, table)
        runner = make_runner(make_model(table, max_model_len, None), cache, table, sampler, stager)
    scheduler = TokenScheduler(
        BlockPool(num_blocks, settings.block_size),
        settings.max_num_seqs,
        num_tokens,
        settings.enable_prefix_caching,
        settings.max_request_share,
        settings.max_token_delay_ms,
    )
    builder = SequenceBuilder(tokenizer, description.vocab_size, eos_token_ids, max_model_len)
    is_asynchronous = is_gpu if settings.is_asynchronous is None else settings.is_asynchronous
    engine = Engine(runner, scheduler, builder, settings, is_asynchronous)
    engine.kv_cache = describe_kv_cache(cache_dtype, kv_scales)
    if is_gpu and (peers is None or peers.shard.rank == 0):
        warm_up(engine)
    if settings.kv_events_endpoint:
        engine.publish_to(
            KvEventPublisher(
                settings.kv_events_endpoint,
                settings.kv_events_replay_endpoint,
                settings.kv_events_topic,
            )
        )
    return engine
