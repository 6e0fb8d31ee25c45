"""What `naiad quantize` was asked for, checked. Names are those of TensorRT-LLM's quantize.py."""

from __future__ import annotations

from pathlib import Path

import msgspec

from naiad.errors import invalid_arg, unsupported
from naiad.llm.quantization.matrix import WeightKind

QFORMATS = ("int4_awq", "int4_gptq", "int4_wo", "fp8", "int8_wo", "full_prec")
NOT_MADE = (
    "nvfp4",
    "w4a8_awq",
    "int8_sq",
    "fp8_pc_pt",
    "mxfp8",
    "w4a8_mxfp4_fp8",
    "w4a8_nvfp4_fp8",
    "int4_blockwise",
)
"""Formats of TensorRT-LLM's tool that are refused by name."""
KV_CACHE_DTYPES = ("", "fp8")
LAYOUTS = ("compressed-tensors", "awq")


class QuantizeOptions(msgspec.Struct, frozen=True, kw_only=True):
    model_dir: Path
    output_dir: Path
    qformat: str
    dtype: str = "auto"
    awq_block_size: int = 128
    batch_size: int = 8
    calib_dataset: Path | None = None
    calib_size: int = 128
    calib_max_seq_length: int = 512
    kv_cache_dtype: str = ""
    """Empty, or fp8: the checkpoint gets calibrated scales for the KV cache."""
    quantize_lm_head: bool = False
    device: str = "auto"
    seed: int = 1234
    layout: str = "compressed-tensors"

    def check(self) -> None:
        if self.qformat in NOT_MADE:
            raise unsupported(
                f"qformat '{self.qformat}' is not made here; the nearest are int4_awq and fp8"
            )
        if self.qformat not in QFORMATS:
            raise invalid_arg(f"qformat is '{self.qformat}', expected one of {', '.join(QFORMATS)}")
        if self.awq_block_size not in (32, 64, 128):
            raise invalid_arg(f"awq_block_size is {self.awq_block_size}, expected 32, 64 or 128")
        if self.layout == "awq" and self.kind is not WeightKind.INT4:
            raise invalid_arg(f"--form awq goes with int4 formats, and qformat is '{self.qformat}'")
        if self.kv_cache_dtype not in KV_CACHE_DTYPES:
            raise invalid_arg(
                f"kv_cache_dtype is '{self.kv_cache_dtype}', expected fp8, or nothing for 16 bits"
            )
        if self.kv_cache_dtype and self.layout == "awq":
            raise invalid_arg(
                "kv_cache_dtype goes with compressed-tensors: AutoAWQ's layout has no place for it"
            )
        for name in ("batch_size", "calib_size", "calib_max_seq_length"):
            if getattr(self, name) < 1:
                raise invalid_arg(f"{name} is {getattr(self, name)}, expected at least 1")

    @property
    def kind(self) -> WeightKind | None:
        """None: weights stay as they are."""
        kinds = {"fp8": WeightKind.FP8, "int8_wo": WeightKind.INT8, "full_prec": None}
        return kinds.get(self.qformat, WeightKind.INT4)

    @property
    def is_calibrated(self) -> bool:
        is_measured = self.qformat in ("int4_awq", "int4_gptq", "fp8")
        return is_measured or bool(self.kv_cache_dtype)
