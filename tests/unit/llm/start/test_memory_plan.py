"""How many blocks the KV cache gets of a GPU's memory."""

from __future__ import annotations

import pytest

pytest.importorskip("torch", reason="needs torch (the llm extra)")

import torch

from naiad.errors import NaiadError
from naiad.llm.engine_settings import EngineSettings
from naiad.llm.models.description import KvShape, ModelDescription
from naiad.llm.start.memory_plan import activation_bytes, graph_bytes, num_kv_blocks
from naiad.llm.step.batch_ladder import kinds, ladder, num_kept_rows

GIB = 1 << 30
MODEL = ModelDescription(
    vocab_size=128_000,
    max_position_embeddings=8192,
    kv_shapes=[KvShape(8, 128)] * 32,
    activation_width=50_000,
    is_captured=True,
)
BLOCK_BYTES = 32 * 2 * 8 * 128 * 16 * 2


@pytest.mark.parametrize("max_num_seqs", [1, 2, 3, 63, 80, 81, 256, 257, 1000])
def test_the_ladder_ends_with_the_largest_batch(max_num_seqs: int) -> None:
    sizes = ladder(max_num_seqs)
    assert sizes == sorted(set(sizes))
    assert sizes[-1] == max_num_seqs
    assert num_kept_rows(max_num_seqs) == sum(size for size in sizes for _ in kinds(size))


def test_the_cache_leaves_room_for_the_logits_that_graphs_keep(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (60 * GIB, 80 * GIB))
    device = torch.device("cuda", 0)
    for settings in (
        EngineSettings(),
        EngineSettings(max_num_seqs=512),
        EngineSettings(use_cuda_graphs=False),
    ):
        blocks = num_kv_blocks(MODEL, settings, 8192, device, torch.bfloat16)
        taken = blocks * BLOCK_BYTES + activation_bytes(
            MODEL, 8192, settings.max_num_seqs, torch.bfloat16
        )
        kept = num_kept_rows(settings.max_num_seqs) * 128_000 * 2 if settings.use_cuda_graphs else 0
        assert 52 * GIB - BLOCK_BYTES <= taken + kept + GIB <= 52 * GIB


def test_rejects_too_little_memory_before_anything_is_captured(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (10 * GIB, 24 * GIB))
    with pytest.raises(NaiadError, match="left for the KV cache"):
        num_kv_blocks(
            MODEL, EngineSettings(max_num_seqs=1024), 8192, torch.device("cuda", 0), torch.bfloat16
        )


def test_wide_logits_take_twice_as_much() -> None:
    wide = ModelDescription(
        vocab_size=256_000,
        max_position_embeddings=1,
        kv_shapes=[],
        activation_width=1,
        is_captured=True,
        has_wide_logits=True,
    )
    assert graph_bytes(wide, EngineSettings(), torch.bfloat16) > 5 * GIB
    assert graph_bytes(wide, EngineSettings(use_cuda_graphs=False), torch.bfloat16) == GIB
