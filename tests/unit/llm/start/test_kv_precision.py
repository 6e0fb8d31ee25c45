"""The dtype of the KV cache, and the scales that checkpoints have for it."""

from __future__ import annotations

from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="needs torch (the llm extra)")

from naiad.errors import NaiadError
from naiad.llm.engine_settings import EngineSettings
from naiad.llm.start.kv_precision import describe_kv_cache, kv_cache_dtype, read_kv_scales
from naiad.llm.step.kv_cache import UNSCALED, KvScales

PREFIX = "model.layers.{}."
CPU = torch.device("cpu")


class DictSource:
    """`TensorSource` of checkpoint/source.py."""

    def __init__(self, tensors: dict[str, Any]) -> None:
        self._tensors = tensors

    def names(self) -> set[str]:
        return set(self._tensors)

    def get(self, name: str) -> Any:
        return self._tensors[name]


def test_auto_is_the_dtype_of_the_activations() -> None:
    assert kv_cache_dtype(EngineSettings(), CPU, torch.bfloat16) == torch.bfloat16


def test_fp8_needs_a_gpu() -> None:
    settings = EngineSettings(kv_cache_dtype="fp8")
    with pytest.raises(NaiadError, match=r"needs a GPU of compute capability 8.9 or newer; the"):
        kv_cache_dtype(settings, CPU, torch.float32)


def test_an_unknown_dtype_is_refused_with_the_known_ones() -> None:
    with pytest.raises(NaiadError, match="kv_cache_dtype is 'int8', expected one of auto, fp8, "):
        EngineSettings(kv_cache_dtype="int8").check()


def test_scales_of_each_tool_are_read() -> None:
    names = {"self_attn.k_scale": 0.5, "self_attn.v_scale": 0.25}
    source = {f"model.layers.0.{name}": torch.tensor(value) for name, value in names.items()}
    source["model.layers.1.self_attn.k_proj.k_scale"] = torch.tensor([2.0])
    source["model.layers.1.self_attn.v_proj.v_scale"] = torch.tensor([3.0])
    found = read_kv_scales(DictSource(source), PREFIX, 3)
    assert found == [KvScales(0.5, 0.25), KvScales(2.0, 3.0), UNSCALED]


def test_one_scale_may_serve_keys_and_values() -> None:
    source = {"model.layers.0.self_attn.kv_scale": torch.tensor(0.125)}
    assert read_kv_scales(DictSource(source), PREFIX, 1) == [KvScales(0.125, 0.125)]


@pytest.mark.parametrize("value", [0.0, -1.0, float("nan"), float("inf")])
def test_a_scale_that_cannot_be_is_refused_by_name(value: float) -> None:
    source = {"model.layers.0.self_attn.v_scale": torch.tensor(value)}
    with pytest.raises(NaiadError, match=r"model\.layers\.0\.self_attn\.v_scale"):
        read_kv_scales(DictSource(source), PREFIX, 1)


def test_the_log_says_where_scales_come_from() -> None:
    fp8 = torch.float8_e4m3fn
    assert describe_kv_cache(torch.bfloat16, None) == ""
    assert describe_kv_cache(fp8, [UNSCALED]) == "KV cache in fp8, scales of 1"
    assert describe_kv_cache(fp8, [KvScales(0.5, 1)]) == "KV cache in fp8, calibrated scales"
