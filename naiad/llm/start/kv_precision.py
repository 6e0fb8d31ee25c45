"""Decides the dtype of the KV cache, and reads the scales that a checkpoint has for it.

In:  EngineSettings, the device, and the checkpoint's tensors. Out: a dtype, and KvScales per layer.
"""

from __future__ import annotations

import torch

from naiad.errors import invalid_arg
from naiad.llm.checkpoint.source import TensorSource
from naiad.llm.engine_settings import EngineSettings
from naiad.llm.quantization.format import check_scales
from naiad.llm.step.kv_cache import UNSCALED, KvScales

FP8_CAPABILITY = (8, 9)
KEY_SCALES = (
    "self_attn.k_scale",  # compressed-tensors
    "self_attn.k_proj.k_scale",  # modelopt
    "self_attn.k_proj.output_scale",  # earlier compressed-tensors
    "self_attn.kv_scale",  # AutoFP8: one scale for both
    "attention.kv_cache_scaling_factor",  # TensorRT-LLM: one scale for both
)
VALUE_SCALES = (
    "self_attn.v_scale",
    "self_attn.v_proj.v_scale",
    "self_attn.v_proj.output_scale",
    *KEY_SCALES[3:],
)


def kv_cache_dtype(
    settings: EngineSettings, device: torch.device, dtype: torch.dtype
) -> torch.dtype:
    """Raises NaiadError if the device cannot compute with the wanted dtype."""
    if settings.kv_cache_dtype == "auto":
        return dtype
    wanted = f"kv_cache_dtype is '{settings.kv_cache_dtype}', which needs a GPU of compute "
    expected = f"capability {FP8_CAPABILITY[0]}.{FP8_CAPABILITY[1]} or newer"
    if device.type == "cuda":
        capability = torch.cuda.get_device_capability(device)
        if capability < FP8_CAPABILITY:
            raise invalid_arg(
                f"{wanted}{expected}; this one has {capability[0]}.{capability[1]}, leave it out"
            )
    elif not settings.use_triton_interpreter:
        raise invalid_arg(f"{wanted}{expected}; the device is {device.type}, leave it out")
    return torch.float8_e4m3fn


def read_kv_scales(source: TensorSource, layer_prefix: str, num_layers: int) -> list[KvScales]:
    """Returns scales of 1 for layers without any, which fp8's range suits as well. Raises
    NaiadError with the name of a scale that is not a positive number."""
    names = source.names()

    def read(layer: int, candidates: tuple[str, ...]) -> float:
        prefix = layer_prefix.format(layer)
        for name in candidates:
            if prefix + name in names:
                scale = float(check_scales(prefix + name, source.get(prefix + name)).amax())
                if scale <= 0.0:
                    raise invalid_arg(
                        f"tensor '{prefix}{name}' is {scale:g}, expected a scale above 0"
                    )
                return scale
        return 1.0

    return [
        KvScales(read(layer, KEY_SCALES), read(layer, VALUE_SCALES)) for layer in range(num_layers)
    ]


def describe_kv_cache(dtype: torch.dtype, scales: list[KvScales] | None) -> str:
    """Returns a text for the log; empty if the cache has the dtype of the activations."""
    if dtype != torch.float8_e4m3fn:
        return ""
    is_calibrated = scales is not None and any(each != UNSCALED for each in scales)
    return "KV cache in fp8, " + ("calibrated scales" if is_calibrated else "scales of 1")
