"""What the models of a repository need from a machine: GPUs, memory, and time to load.

In:  repositories on this machine, as `naiad serve` gets them. Out: a Requirement for each model,
     with the reason for each number.
Rule: nothing is loaded and no framework is imported: sizes of files, configs, and for language
      models the checkpoint's own config.json are enough.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import msgspec

from naiad.errors import invalid_arg
from naiad.ipc.generation_call import LANGUAGE_BACKENDS
from naiad.pb.model_config_pb2 import ModelConfig, ModelInstanceGroup
from naiad.repository.config.config import ConfigOptions, read_model_config
from naiad.repository.store import LocalStore

MIB = 1 << 20
GIB = 1 << 30
SERVER_BYTES = 512 * MIB
"""The server process, with room for requests."""
WORKER_BYTES = 192 * MIB
"""An instance besides its model: Python, numpy and the framework."""
FILE_FACTOR = 2.0
"""What a model occupies for each byte of its files: weights, and what is computed from them."""
HOST_FACTOR = 1.2
"""Host memory for each byte of a checkpoint that is loaded onto a GPU."""
CPU_FACTOR = 2.5
"""Memory for each byte of a checkpoint on a CPU: the file, its conversion and activations."""
ENGINE_BYTES = 2 * GIB
"""A language model besides weights and KV cache: the framework, the tokenizer, the text
processes."""
DEFAULT_KV_BYTES = GIB
GRAPH_BYTES = 2 * GIB
"""On a GPU: captured graphs, activations and the libraries' workspaces."""
LOAD_BYTES_PER_S = 100 * MIB
"""A slow disk or network, for the time to load without a measurement."""
LOAD_S = 2.0
"""The time to load a model besides reading its files."""
ENGINE_LOAD_S = 60.0
"""Time to load a language model besides reading it: importing, compiling, warming up."""


class Requirement(msgspec.Struct, frozen=True):
    model: str
    num_gpus: int
    num_instances: int
    memory_bytes: int
    """Host memory, over all instances."""
    load_s: float
    reason: str
    is_language: bool = False
    gpu_memory_bytes: int = 0
    """What the model needs at least on one GPU; 0 if it is not known."""


def read_requirements(repositories: Iterable[Path]) -> list[Requirement]:
    """Raises NaiadError for a model that would not load, or whose size cannot be found out."""
    requirements: list[Requirement] = []
    for path in repositories:
        store = LocalStore(path)
        for name in sorted(store.names()):
            directory = store.directory(name)
            if directory is None:
                continue
            file = read_model_config(directory, options=ConfigOptions())
            requirement = _requirement(file.config, path / name)
            if requirement is not None:
                requirements.append(requirement)
    return requirements


def _requirement(config: ModelConfig, folder: Path) -> Requirement | None:
    """Returns None for an ensemble, which has no process of its own."""
    if config.HasField("ensemble_scheduling"):
        return None
    groups = config.instance_group
    num_gpus = max((_group_gpus(group) for group in groups), default=0)
    count = sum(max(1, group.count) * max(1, len(group.gpus)) for group in groups) or 1
    if config.backend in LANGUAGE_BACKENDS:
        return _language(config, folder, count)
    num_bytes = folder_bytes(folder)
    memory = count * (WORKER_BYTES + int(FILE_FACTOR * num_bytes))
    return Requirement(
        config.name,
        num_gpus,
        count,
        memory,
        LOAD_S + num_bytes / LOAD_BYTES_PER_S,
        f"{count} x ({shown(WORKER_BYTES)} + {FILE_FACTOR:g} x {shown(num_bytes)} of files)",
    )


def _group_gpus(group: ModelInstanceGroup) -> int:
    if group.kind != ModelInstanceGroup.KIND_GPU:
        return 0
    return max(group.gpus) + 1 if group.gpus else 1


def _language(config: ModelConfig, folder: Path, count: int) -> Requirement:
    parameters = {name: value.string_value for name, value in config.parameters.items()}
    checkpoint = find_checkpoint(parameters, folder)
    weights = folder_bytes(checkpoint)
    engine = parameters.get("engine", "auto")
    is_on_cpu = engine == "openvino" or _is_for_openvino(checkpoint)
    load_s = ENGINE_LOAD_S + weights / LOAD_BYTES_PER_S
    if is_on_cpu:
        kv_bytes = int(parameters.get("kv_cache_bytes") or DEFAULT_KV_BYTES)
        memory = count * (ENGINE_BYTES + kv_bytes + int(CPU_FACTOR * weights))
        reason = (
            f"{count} x ({shown(ENGINE_BYTES)} + {shown(kv_bytes)} KV cache + {CPU_FACTOR:g} x "
            f"{shown(weights)} of weights)"
        )
        return Requirement(config.name, 0, count, memory, load_s, reason, is_language=True)
    kv_bytes = _least_kv_bytes(checkpoint, parameters)
    fraction = float(parameters.get("gpu_memory_utilization") or 0.9)
    gpu_bytes = math.ceil((weights + GRAPH_BYTES + kv_bytes) / fraction)
    memory = count * (ENGINE_BYTES + int(HOST_FACTOR * weights))
    reason = (
        f"{count} x ({shown(ENGINE_BYTES)} + {HOST_FACTOR:g} x {shown(weights)} of weights); on "
        f"the GPU at least {shown(gpu_bytes)}: ({shown(weights)} + {shown(GRAPH_BYTES)} + "
        f"{shown(kv_bytes)} KV cache for one full context) / {fraction:g}"
    )
    return Requirement(config.name, count, count, memory, load_s, reason, True, gpu_bytes)


def find_checkpoint(parameters: dict[str, str], folder: Path) -> Path:
    text = parameters.get("checkpoint", "")
    versions = sorted((path for path in folder.glob("[0-9]*") if path.is_dir()), reverse=True)
    candidates = [Path(text)] if text else []
    candidates += [version / text for version in versions]
    found = next((path for path in candidates if path.exists()), None)
    if found is None:
        raise invalid_arg(
            f"model '{folder.name}': the size of the checkpoint '{text}' is not known, because it "
            "is not on this machine; download it first, or give --memory and --gpus"
        )
    return found


def _is_for_openvino(checkpoint: Path) -> bool:
    return checkpoint.suffix == ".gguf" or (checkpoint / "openvino_model.xml").exists()


def _least_kv_bytes(checkpoint: Path, parameters: dict[str, str]) -> int:
    """Keys and values of one sequence of the greatest length; 0 if config.json does not say."""
    try:
        config: dict[str, Any] = json.loads((checkpoint / "config.json").read_text())
        num_heads = config["num_attention_heads"]
        head_dim = config.get("head_dim") or config["hidden_size"] // num_heads
        length = int(parameters.get("max_model_len") or config["max_position_embeddings"])
        num_kv_heads = config.get("num_key_value_heads") or num_heads
        num_bytes = 1 if parameters.get("kv_cache_dtype", "").startswith("fp8") else 2
        return int(2 * config["num_hidden_layers"] * num_kv_heads * head_dim * length * num_bytes)
    except (OSError, ValueError, KeyError, TypeError):
        return 0


def folder_bytes(path: Path) -> int:
    """The size of a file, or of all files in a folder. Links are followed."""
    if path.is_file():
        return path.stat().st_size
    return sum(file.stat().st_size for file in path.rglob("*") if file.is_file())


def shown(num_bytes: int) -> str:
    return f"{num_bytes / GIB:.1f} GiB" if num_bytes >= GIB else f"{num_bytes / MIB:.0f} MiB"
