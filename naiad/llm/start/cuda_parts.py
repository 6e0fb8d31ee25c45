"""What an engine on a GPU is made of, instead of the PyTorch parts: operations, attention and
sampler in Triton, chunk planner.

Imported only where it is used: it needs triton, which comes with torch's CUDA builds. Runs in
Triton's interpreter too, for tests.
"""

from __future__ import annotations

import torch
from torch import Tensor

from naiad.llm.kernels.gemm_plan import GemmPlan
from naiad.llm.kernels.paged_attention import TritonPagedAttention
from naiad.llm.kernels.sampling import TritonSampler
from naiad.llm.kernels.triton_operations import TritonOperations
from naiad.llm.step.chunk_plan import ChunkPlanner
from naiad.llm.step.slot_table import SlotTable

NUM_SMS_WITHOUT_GPU = 4


def build_planner(num_kv_heads: int, device: torch.device) -> ChunkPlanner:
    return ChunkPlanner(_num_sms(device), num_kv_heads)


def build_attention(table: SlotTable, planner: ChunkPlanner) -> TritonPagedAttention:
    max_rows = table.num_slots + 1
    return TritonPagedAttention(max_rows, planner.max_chunks(max_rows), table.device)


def build_operations(
    cos: Tensor, sin: Tensor, table: SlotTable, planner: ChunkPlanner, dtype: torch.dtype
) -> TritonOperations:
    return TritonOperations(
        cos,
        sin,
        table.next_tokens,
        build_attention(table, planner),
        GemmPlan(_num_sms(table.device)),
        dtype,
    )


def build_sampler(table: SlotTable) -> TritonSampler:
    return TritonSampler(table)


def _num_sms(device: torch.device) -> int:
    if device.type != "cuda":
        return NUM_SMS_WITHOUT_GPU
    return int(torch.cuda.get_device_properties(device).multi_processor_count)
