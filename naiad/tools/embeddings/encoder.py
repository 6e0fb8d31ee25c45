"""An encoder of BERT's make, read from a checkpoint folder as sentence-transformers writes it.

In:  the folder. Out: an Encoder, or NaiadError that names what this cannot express.
Rule: whatever would change the numbers and is not understood is refused.
"""

from __future__ import annotations

import struct
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from naiad.errors import invalid_arg, unsupported
from naiad.files.regular_file import read_json_list, read_json_object, require_regular

FIRST_POSITION = {"bert": 0, "roberta": 1, "xlm-roberta": 1, "camembert": 1}
"""model_type -> what is added to the id of padding for the first position; BERT counts from 0."""
_WORDS = "embeddings.word_embeddings.weight"
_MAX_HEADER_BYTES = 100 << 20
_POOLING = {"cls": "pooling_mode_cls_token", "mean": "pooling_mode_mean_tokens"}
_FLOATS = {"F32": "<f4", "F16": "<f2", "BF16": "<u2"}
"""Other tensors are buffers of ids, which no weight is."""
_MODULES = ("Transformer", "Pooling", "Normalize")


class Encoder(msgspec.Struct, frozen=True):
    weights: dict[str, np.ndarray[Any, Any]]
    num_layers: int
    num_heads: int
    hidden_size: int
    epsilon: float
    first_position: int
    pooling: str
    """`mean` or `cls`."""
    is_normalized: bool
    max_tokens: int


def read_encoder(folder: Path) -> Encoder:
    """Raises NaiadError."""
    owner = f"checkpoint '{folder.name}'"
    config = read_json_object(folder / "config.json", owner)
    kind = config.get("model_type")
    if kind not in FIRST_POSITION:
        raise unsupported(
            f"{owner} has model_type '{kind}', expected one of {', '.join(FIRST_POSITION)}. Serve "
            "it with a model.py: docs/openai.md#embedding-models says what /v1/embeddings needs"
        )
    for name, expected in (("hidden_act", "gelu"), ("position_embedding_type", "absolute")):
        if config.get(name, expected) != expected:
            raise unsupported(f"{owner} has {name} '{config[name]}', expected '{expected}'")
    pooling, is_normalized = _read_modules(folder, owner)
    first = 0 if kind == "bert" else _number(config, "pad_token_id", owner) + FIRST_POSITION[kind]
    positions = _number(config, "max_position_embeddings", owner) - first
    sentence = folder / "sentence_bert_config.json"
    longest = read_json_object(sentence, owner).get("max_seq_length") if sentence.exists() else None
    return Encoder(
        weights=_read_weights(folder, owner),
        num_layers=_number(config, "num_hidden_layers", owner),
        num_heads=_number(config, "num_attention_heads", owner),
        hidden_size=_number(config, "hidden_size", owner),
        epsilon=float(config.get("layer_norm_eps", 1e-12)),
        first_position=first,
        pooling=pooling,
        is_normalized=is_normalized,
        max_tokens=min(longest, positions) if isinstance(longest, int) else positions,
    )


def _number(config: dict[str, Any], name: str, owner: str) -> int:
    value = config.get(name)
    if type(value) is not int or value < 0:
        raise invalid_arg(f"config.json of {owner} has {name} '{value}', expected a number")
    return value


def _read_modules(folder: Path, owner: str) -> tuple[str, bool]:
    """How tokens become one vector. Without modules.json: their mean, of length one."""
    path = folder / "modules.json"
    if not path.exists():
        return "mean", True
    modules = {
        str(entry.get("type")).rpartition(".")[2]: str(entry.get("path", ""))
        for entry in read_json_list(path, owner)
    }
    for name in modules:
        if name not in _MODULES:
            raise unsupported(f"{owner} has a module '{name}', expected only {', '.join(_MODULES)}")
    pooling = read_json_object(folder / modules.get("Pooling", "1_Pooling") / "config.json", owner)
    wanted = [name for name, key in _POOLING.items() if pooling.get(key)]
    others = [key for key in pooling if key.startswith("pooling_mode_") and pooling[key] is True]
    if "pooling_mode" in pooling:
        wanted = others = [str(pooling["pooling_mode"])]
    if len(wanted) != 1 or len(others) != 1 or wanted[0] not in _POOLING:
        raise unsupported(
            f"{owner} pools by {', '.join(others) or 'nothing'}, expected mean or cls"
        )
    return wanted[0], "Normalize" in modules


def _read_weights(folder: Path, owner: str) -> dict[str, np.ndarray[Any, Any]]:
    files = sorted(folder.glob("*.safetensors"))
    if not files:
        raise invalid_arg(f"{owner} has no safetensors file, which its weights are read from")
    tensors: dict[str, np.ndarray[Any, Any]] = {}
    for file in files:
        require_regular(file, owner)
        tensors |= _read_safetensors(file, owner)
    prefix = next((name.removesuffix(_WORDS) for name in tensors if name.endswith(_WORDS)), None)
    if prefix is None:
        raise invalid_arg(f"{owner} has no tensor '{_WORDS}'")
    return {name.removeprefix(prefix): tensor for name, tensor in tensors.items()}


def _read_safetensors(file: Path, owner: str) -> dict[str, np.ndarray[Any, Any]]:
    """Here, because the library needs torch for bfloat16."""
    try:
        data = np.memmap(file, np.uint8, "r")
        (size,) = struct.unpack("<Q", data[:8].tobytes())
        if size > min(_MAX_HEADER_BYTES, len(data)):
            raise ValueError("its header is too long")
        header = msgspec.json.decode(data[8 : 8 + size].tobytes(), type=dict[str, Any])
        header.pop("__metadata__", None)
        found: dict[str, np.ndarray[Any, Any]] = {}
        for name, entry in header.items():
            start, end = (8 + size + offset for offset in entry["data_offsets"])
            if entry["dtype"] in _FLOATS:
                found[name] = _as_float(data[start:end], entry["dtype"]).reshape(entry["shape"])
    except (ValueError, KeyError, TypeError, struct.error) as error:
        raise invalid_arg(f"{file.name} of {owner} is not a safetensors file: {error}") from error
    return found


def _as_float(data: np.ndarray[Any, Any], dtype: str) -> np.ndarray[Any, Any]:
    if dtype == "BF16":
        return (data.view(np.uint16).astype(np.uint32) << 16).view(np.float32)
    return data.view(_FLOATS[dtype]).astype(np.float32, copy=False)
