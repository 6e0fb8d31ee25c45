"""Applies Triton's parameters of a PyTorch model to PyTorch.

The settings hold for the whole process, which serves a single instance.
"""

from __future__ import annotations

from typing import Any

import torch

from naiad.backends.served_config import ServedConfig
from naiad.errors import invalid_arg
from naiad.ipc.work import LoadArguments


def choose_device(arguments: LoadArguments) -> Any:
    """Returns None for KIND_MODEL: the model chooses its own devices."""
    if arguments.instance_kind == "MODEL":
        return None
    if arguments.instance_kind != "GPU":
        return torch.device("cpu")
    if not torch.cuda.is_available():
        reason = (
            "this PyTorch is built without CUDA"
            if torch.version.cuda is None
            else "CUDA is not available to it"
        )
        raise invalid_arg(
            f"instance '{arguments.instance_name}' is to run on GPU {arguments.device_id}, but "
            f"{reason}"
        )
    if arguments.device_id >= torch.cuda.device_count():
        raise invalid_arg(
            f"instance '{arguments.instance_name}' is to run on GPU {arguments.device_id}, which "
            "PyTorch does not see"
        )
    device = torch.device("cuda", arguments.device_id)
    torch.cuda.set_device(device)
    return device


def apply_options(config: ServedConfig) -> list[str]:
    """Applies the settings and returns warnings for the log. Raises NaiadError."""
    torch.set_num_threads(config.openmp_threads("INTRA_OP_THREAD_COUNT", "NUM_THREADS"))
    inter = config.integer("INTER_OP_THREAD_COUNT", config.integer("NUM_INTEROP_THREADS", 0))
    if inter > 0:
        torch.set_num_interop_threads(inter)
    if config.flag("DISABLE_CUDNN", False):
        torch.backends.cudnn.enabled = False
    if config.flag("DISABLE_OPTIMIZED_EXECUTION", False):
        torch._C._set_graph_executor_optimize(False)
    if config.has("ENABLE_JIT_EXECUTOR"):
        torch._C._jit_set_profiling_executor(config.flag("ENABLE_JIT_EXECUTOR", True))
    if config.has("ENABLE_JIT_PROFILING"):
        torch._C._jit_set_profiling_mode(config.flag("ENABLE_JIT_PROFILING", True))
    if config.has("ENABLE_TENSOR_FUSER"):
        torch._C._jit_set_texpr_fuser_enabled(config.flag("ENABLE_TENSOR_FUSER", True))
    notes: list[str] = []
    if config.flag("ENABLE_WEIGHT_SHARING", False):
        notes.append(
            f"ENABLE_WEIGHT_SHARING has no effect for model '{config.name}': every instance is a "
            "separate process"
        )
    return notes


def inference_context(config: ServedConfig) -> Any:
    """Returns the function that makes the context manager for each call of `forward`."""
    return torch.inference_mode if config.flag("INFERENCE_MODE", True) else torch.no_grad
