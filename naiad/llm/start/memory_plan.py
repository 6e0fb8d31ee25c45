"""Decides how many KV blocks an engine gets: a configured number, a configured size in bytes, or
the memory that the device has left besides the largest step.

Rule: this runs before the cache exists, so the cache may use the memory that is left; the settings
      define how much of it.
"""

from __future__ import annotations

import torch

from naiad.errors import unavailable
from naiad.llm.accelerator import accelerator_of
from naiad.llm.engine_settings import EngineSettings
from naiad.llm.models.description import ModelDescription
from naiad.llm.step.batch_ladder import num_kept_rows
from naiad.llm.step.kv_cache import block_bytes

DEFAULT_CPU_BYTES = 1 << 30
GRAPH_BYTES = 1 << 30
"""Reserve for memory that captured graphs share, library workspaces and fragmentation."""


def activation_bytes(
    description: ModelDescription, num_tokens: int, max_num_seqs: int, dtype: torch.dtype
) -> int:
    """Returns the memory of the largest step: its widest projections at the same time, and the
    logits of all sequences, once as they are and once widened."""
    return (
        num_tokens * description.activation_width * dtype.itemsize
        + max_num_seqs * description.vocab_size * (dtype.itemsize + 4)
    )


def graph_bytes(description: ModelDescription, settings: EngineSettings, dtype: torch.dtype) -> int:
    """Returns the memory of captured graphs. Each graph keeps its own logits, which are gigabytes
    if vocabulary and batch are large."""
    if not description.is_captured or not settings.use_cuda_graphs:
        return GRAPH_BYTES
    logit_bytes = 4 if description.has_wide_logits else dtype.itemsize
    return GRAPH_BYTES + num_kept_rows(settings.max_num_seqs) * description.vocab_size * logit_bytes


def num_kv_blocks(
    description: ModelDescription,
    settings: EngineSettings,
    num_tokens: int,
    device: torch.device,
    dtype: torch.dtype,
    cache_dtype: torch.dtype | None = None,
    scratch_bytes: int = 0,
) -> int:
    """Returns the number of blocks, including the one that padding uses. Called after the weights
    are on the device. `scratch_bytes` is what a step needs besides activations."""
    if settings.num_kv_blocks is not None:
        return settings.num_kv_blocks + 1
    num_bytes = settings.kv_cache_bytes
    if num_bytes is None:
        num_bytes = (
            DEFAULT_CPU_BYTES
            if accelerator_of(device).memory(device) is None
            else _free_bytes(description, settings, num_tokens, device, dtype) - scratch_bytes
        )
    most_useful = settings.max_num_seqs * -(
        -(settings.max_model_len or description.max_position_embeddings) // settings.block_size
    )
    size = block_bytes(description, settings.block_size, cache_dtype or dtype)
    count = min(num_bytes // size, most_useful + 1)
    if count < 2:
        raise unavailable(
            f"{max(0, num_bytes)} bytes are left for the KV cache, "
            f"which is not enough for one block"
        )
    return count


def _free_bytes(
    description: ModelDescription,
    settings: EngineSettings,
    num_tokens: int,
    device: torch.device,
    dtype: torch.dtype,
) -> int:
    accelerator = accelerator_of(device)
    accelerator.empty_cache()
    memory = accelerator.memory(device)
    assert memory is not None
    free, total = memory
    reserve = graph_bytes(description, settings, dtype) + activation_bytes(
        description, num_tokens, settings.max_num_seqs, dtype
    )
    if settings.kv_cache_free_gpu_mem_fraction is not None:
        return int((free - reserve) * settings.kv_cache_free_gpu_mem_fraction)
    return int(free - total * (1.0 - settings.gpu_memory_utilization)) - reserve
