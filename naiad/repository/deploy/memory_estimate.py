"""How much memory a model will need, estimated from its files before it is loaded.

In:  a config, and the sizes of its files or its checkpoint. Out: an Estimate, with the parts that
     it adds up.
Rule: an estimate says what it is made of. What cannot be known is said too, never guessed.
"""

from __future__ import annotations

from pathlib import Path

import msgspec

from naiad.backends.llm.checkpoint import find_local
from naiad.errors import NaiadError
from naiad.machine.memory import machine_memory_bytes
from naiad.pb.model_config_pb2 import ModelConfig, ModelInstanceGroup

PROCESS_BYTES = {
    "python": 32 << 20,
    "onnxruntime": 56 << 20,
    "openvino": 150 << 20,
    "pytorch": 200 << 20,
    "llm": 700 << 20,
}
"""A worker without a model: the interpreter and the libraries of its backend."""
OTHER_PROCESS_BYTES = 100 << 20
KV_CACHE_BYTES = 1 << 30
"""What the llm backend reserves on a CPU unless `kv_cache_bytes` says otherwise."""
_WEIGHTS = (".safetensors", ".bin", ".gguf")


class Part(msgspec.Struct, frozen=True):
    title: str
    num_bytes: int


class Estimate(msgspec.Struct, frozen=True):
    parts: list[Part]
    """What one instance takes."""
    num_instances: int
    total_bytes: int
    free_bytes: int
    """What the machine, or its container, has left now."""
    note: str = ""
    """What is not included."""

    @property
    def is_enough(self) -> bool:
        return self.total_bytes <= self.free_bytes


def estimate_memory(
    config: ModelConfig, version_folder: Path | None, model_folder: Path, num_gpus: int
) -> Estimate:
    """`version_folder` is None for a model without a file of its own. Blocks."""
    is_language = config.backend in ("llm", "vllm", "tensorrtllm")
    note = ""
    weights: int | None
    if is_language:
        weights, note = _checkpoint_bytes(config, version_folder, model_folder)
    else:
        weights = _folder_bytes(version_folder) if version_folder is not None else 0
    parts = [Part("weights, as large as the files", weights)] if weights else []
    parts.append(
        Part("process and libraries", PROCESS_BYTES.get(config.backend, OTHER_PROCESS_BYTES))
    )
    if is_language:
        value = (
            config.parameters["kv_cache_bytes"].string_value
            if "kv_cache_bytes" in config.parameters
            else ""
        )
        parts.append(Part("KV cache", int(value) if value.isdigit() else KV_CACHE_BYTES))
    elif config.backend == "python":
        note = "What the model's code loads by itself is not included."
    num_instances = count_instances(config, num_gpus)
    one = sum(part.num_bytes for part in parts)
    return Estimate(parts, num_instances, one * num_instances, free_memory_bytes(), note)


def count_instances(config: ModelConfig, num_gpus: int) -> int:
    """The processes of a completed config."""
    total = 0
    for group in config.instance_group:
        is_gpu = group.kind == ModelInstanceGroup.KIND_GPU
        total += max(group.count, 1) * (max(len(group.gpus) or num_gpus, 1) if is_gpu else 1)
    return total or 1


def free_memory_bytes(meminfo: Path = Path("/proc/meminfo")) -> int:
    """What is free now, or the limit of the container if that is less."""
    limit = machine_memory_bytes()
    try:
        for line in meminfo.read_text().splitlines():
            name, _, value = line.partition(":")
            if name == "MemAvailable":
                return min(int(value.split()[0]) * 1024, limit)
    except (OSError, ValueError, IndexError):
        pass
    return limit


def _checkpoint_bytes(
    config: ModelConfig, version_folder: Path | None, model_folder: Path
) -> tuple[int | None, str]:
    name = _parameter(config, "checkpoint")
    bases = [folder for folder in (version_folder, model_folder) if folder is not None]
    try:
        path = find_local(name or ".", bases)
    except NaiadError:
        path = None
    if path is None:
        return None, "The checkpoint is not on this machine yet, so its weights are not included."
    if path.is_file():
        return path.stat().st_size, ""
    files = [file for file in path.iterdir() if file.name.endswith(_WEIGHTS) and file.is_file()]
    has_tensors = any(file.name.endswith(".safetensors") for file in files)
    return sum(
        file.stat().st_size for file in files if not (has_tensors and file.name.endswith(".bin"))
    ), ""


def _folder_bytes(folder: Path) -> int:
    return sum(file.stat().st_size for file in folder.rglob("*") if file.is_file())


def _parameter(config: ModelConfig, name: str) -> str:
    return config.parameters[name].string_value if name in config.parameters else ""
