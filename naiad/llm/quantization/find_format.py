"""config.json -> the format that its quantization_config names; None where weights are plain."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from naiad.errors import invalid_arg, unsupported
from naiad.llm.quantization.awq import AwqFormat
from naiad.llm.quantization.compressed_tensors import CompressedTensorsFormat
from naiad.llm.quantization.format import QuantizationFormat
from naiad.llm.quantization.fp8 import Fp8Format, ModeloptFormat
from naiad.llm.quantization.gptq import GptqFormat
from naiad.llm.quantization.tensorrt_llm import METHOD, TensorrtLlmFormat

FORMATS: dict[str, Callable[[dict[str, Any]], QuantizationFormat]] = {
    "awq": AwqFormat,
    "gptq": GptqFormat,
    "compressed-tensors": CompressedTensorsFormat,
    "fp8": Fp8Format,
    "modelopt": ModeloptFormat,
    METHOD: TensorrtLlmFormat,
}
MODELOPT_FILE = "hf_quant_config.json"


def find_format(config: dict[str, Any], folder: Path) -> QuantizationFormat | None:
    raw = config.get("quantization_config") or config.get("compression_config")
    if raw is None:
        raw = _read_modelopt(folder)
    if raw is None:
        return None
    if not isinstance(raw, dict):
        raise invalid_arg("quantization_config of config.json is not an object")
    method = str(raw.get("quant_method", "")).lower()
    if method not in FORMATS:
        nearest = (
            "`naiad quantize` makes compressed-tensors (fp8, int8, int4) of the checkpoint "
            "that it was made from"
        )
        raise unsupported(
            f"quant_method '{method}' of config.json has no kernel here, expected one of "
            f"{', '.join(FORMATS)}; {nearest}"
        )
    return FORMATS[method](raw)


def _read_modelopt(folder: Path) -> dict[str, Any] | None:
    """Older exports of modelopt say it in a file of its own."""
    path = folder / MODELOPT_FILE
    if not path.exists():
        return None
    try:
        inner = json.loads(path.read_text()).get("quantization")
    except (ValueError, AttributeError) as error:
        raise invalid_arg(
            f"{MODELOPT_FILE} of checkpoint '{folder.name}' cannot be read: {error}"
        ) from error
    return (
        {**inner, "quant_method": "modelopt"}
        if isinstance(inner, dict) and inner.get("quant_algo")
        else None
    )
