"""Opens an onnxruntime session for a model.onnx, with the options of its config.

In:  a file, a ServedConfig with Triton's names for the options, and the instance's device.
Out: an InferenceSession, or NaiadError if the file or an option is invalid.
"""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

import onnxruntime

from naiad.backends.onnx.file_fault import onnx_fault
from naiad.backends.onnx.idle_memory import SHRINK, share_arena, shares_arena
from naiad.backends.served_config import Accelerator, ServedConfig, read_integer
from naiad.errors import Code, NaiadError, internal, invalid_arg
from naiad.ipc.work import LoadArguments

CPU_PROVIDER = "CPUExecutionProvider"
CUDA_PROVIDER = "CUDAExecutionProvider"
_LOG_ERRORS = 3

Level = onnxruntime.GraphOptimizationLevel
_GRAPH_LEVELS = {
    -1: Level.ORT_ENABLE_BASIC,
    0: Level.ORT_ENABLE_ALL,
    1: Level.ORT_ENABLE_EXTENDED,
    2: Level.ORT_DISABLE_ALL,
}
_CUDNN_SEARCH = {0: "EXHAUSTIVE", 1: "HEURISTIC", 2: "DEFAULT"}
_ARENA_STRATEGY = {0: "kNextPowerOfTwo", 1: "kSameAsRequested"}
_SPINNING = "session.intra_op.allow_spinning"

Provider = str | tuple[str, dict[str, str]]


def model_path(arguments: LoadArguments) -> str:
    """Returns the path of the file, which may be in a folder with that name.

    Models with external data are stored as folders.
    """
    name = arguments.model_filename or "model.onnx"
    path = os.path.join(arguments.model_dir, str(arguments.model_version), name)
    inner = os.path.join(path, "model.onnx")
    if os.path.isdir(path):
        path = inner
    if not os.path.isfile(path):
        raise internal(
            f"unable to find '{arguments.model_name}/{arguments.model_version}/{name}' for model "
            f"'{arguments.model_name}': no such file"
        )
    return path


def open_session(
    arguments: LoadArguments, config: ServedConfig, warnings: list[str]
) -> onnxruntime.InferenceSession:
    """Raises NaiadError."""
    options = session_options(config, arguments)
    providers = execution_providers(config, arguments, warnings)
    path = model_path(arguments)
    if shares_arena(config, providers):
        share_arena(options)
    try:
        return onnxruntime.InferenceSession(path, options, providers=providers)
    except NaiadError:
        raise
    except Exception as error:
        text = f"onnx runtime error: {_without_paths(str(error), arguments)}"
        raise NaiadError(Code.INTERNAL, text, details=_finding(path)) from error


def _finding(path: str) -> str:
    """What `naiad check` says about the file, for the log: onnxruntime only says "Protobuf parsing
    failed"."""
    fault = ""
    with contextlib.suppress(OSError, ValueError):
        fault = onnx_fault(Path(path))
    return f"found: {fault}; export or copy the model again" if fault else ""


def session_options(config: ServedConfig, arguments: LoadArguments) -> onnxruntime.SessionOptions:
    options = onnxruntime.SessionOptions()
    options.log_severity_level = _LOG_ERRORS
    options.graph_optimization_level = _graph_level(config)
    defaults = arguments.backend_config
    intra = read_integer("intra_op_thread_count", defaults.get("intra_op_thread_count", ""), 0)
    inter = read_integer("inter_op_thread_count", defaults.get("inter_op_thread_count", ""), 0)
    options.intra_op_num_threads = (
        config.integer("intra_op_thread_count", intra) or config.threads()
    )
    options.inter_op_num_threads = config.integer("inter_op_thread_count", inter)
    mode = config.integer("execution_mode", 0)
    if mode not in (0, 1):
        raise invalid_arg(
            f"parameter 'execution_mode' of model '{config.name}' is '{mode}', expected 0 "
            "(sequential) or 1 (parallel)"
        )
    options.execution_mode = (
        onnxruntime.ExecutionMode.ORT_SEQUENTIAL,
        onnxruntime.ExecutionMode.ORT_PARALLEL,
    )[mode]
    options.enable_cpu_mem_arena = config.flag("enable_mem_arena", True)
    options.enable_mem_pattern = config.flag("enable_mem_pattern", True)
    for name, parameter in config.parameters.items():
        if name.startswith(("session.", "optimization.", "ep.")):
            options.add_session_config_entry(name, parameter.string_value)
    if not config.has(_SPINNING):
        # Threads that spin while they wait take CPU from other instances and from the server.
        # Measured, spinning doubles the CPU per inference and does not lower the latency.
        options.add_session_config_entry(_SPINNING, "0")
    for library in config.model_operations.op_library_filename:
        _register_operators(options, library, arguments)
    return options


def _graph_level(config: ServedConfig) -> onnxruntime.GraphOptimizationLevel:
    level = config.optimization.graph.level
    if level not in _GRAPH_LEVELS:
        raise invalid_arg(
            f"unexpected optimization.graph.level {level} for model '{config.name}', expected -1, "
            "0, 1 or 2"
        )
    return _GRAPH_LEVELS[level]


def _register_operators(
    options: onnxruntime.SessionOptions, library: str, arguments: LoadArguments
) -> None:
    path = os.path.join(arguments.model_dir, str(arguments.model_version), library)
    try:
        options.register_custom_ops_library(path if os.path.exists(path) else library)
    except Exception as error:
        raise internal(
            f"failed to load custom operators '{library}': {_without_paths(str(error), arguments)}"
        ) from error


def run_options(config: ServedConfig) -> onnxruntime.RunOptions | None:
    if not config.text(SHRINK):
        return None
    options = onnxruntime.RunOptions()
    options.add_run_config_entry(SHRINK, config.text(SHRINK))
    return options


def execution_providers(
    config: ServedConfig, arguments: LoadArguments, warnings: list[str]
) -> list[Provider]:
    """Returns the providers in order of preference. The CPU is always the last."""
    available = onnxruntime.get_available_providers()
    accelerators = config.optimization.execution_accelerators
    providers: list[Provider] = []
    if arguments.instance_kind == "GPU":
        if CUDA_PROVIDER in available:
            cuda: dict[str, str] = {}
            for accelerator in accelerators.gpu_execution_accelerator:
                if accelerator.name == "cuda":
                    cuda = dict(accelerator.parameters)
                else:
                    providers.append(_gpu_accelerator(accelerator, arguments.device_id, available))
            providers.append((CUDA_PROVIDER, _cuda_options(config, arguments.device_id, cuda)))
        else:
            warnings.append(
                f"model '{config.name}' is to run on a GPU, but this onnxruntime has no "
                f"{CUDA_PROVIDER}: it runs on the CPU. Install onnxruntime-gpu instead of "
                "onnxruntime, or use KIND_CPU"
            )
    providers += [
        _cpu_accelerator(accelerator, available)
        for accelerator in accelerators.cpu_execution_accelerator
    ]
    return [*providers, CPU_PROVIDER]


def _cuda_options(
    config: ServedConfig, device_id: int, parameters: dict[str, str]
) -> dict[str, str]:
    options = {
        "cudnn_conv_algo_search": _choice(config, "cudnn_conv_algo_search", _CUDNN_SEARCH),
        "arena_extend_strategy": _choice(config, "arena_extend_strategy", _ARENA_STRATEGY),
        "do_copy_in_default_stream": config.text("do_copy_in_default_stream", "1"),
    }
    if config.has("gpu_mem_limit"):
        options["gpu_mem_limit"] = config.text("gpu_mem_limit")
    return {**options, **parameters, "device_id": str(device_id)}


def _choice(config: ServedConfig, name: str, choices: dict[int, str]) -> str:
    value = config.integer(name, 0)
    if value not in choices:
        raise invalid_arg(f"unsupported {name} value '{value}' is requested")
    return choices[value]


def _gpu_accelerator(accelerator: Accelerator, device_id: int, available: list[str]) -> Provider:
    if accelerator.name != "tensorrt":
        raise invalid_arg(f"unknown Execution Accelerator '{accelerator.name}' is requested")
    _require(accelerator, "TensorrtExecutionProvider", available)
    options: dict[str, str] = {"device_id": str(device_id)}
    for key, value in accelerator.parameters.items():
        if key == "precision_mode":
            if value not in ("FP32", "FP16", "INT8"):
                raise invalid_arg(f"unsupported precision mode '{value}' is requested")
            options |= {
                "FP32": {},
                "FP16": {"trt_fp16_enable": "1"},
                "INT8": {"trt_int8_enable": "1"},
            }[value]
        elif key == "max_workspace_size_bytes":
            options["trt_max_workspace_size"] = value
        elif key.startswith("trt_"):
            options[key] = value
        else:
            raise invalid_arg(
                f"unknown parameter '{key}' is provided for TensorRT Execution Accelerator"
            )
    return "TensorrtExecutionProvider", options


def _cpu_accelerator(accelerator: Accelerator, available: list[str]) -> Provider:
    if accelerator.name != "openvino":
        raise invalid_arg(f"unknown Execution Accelerator '{accelerator.name}' is requested")
    _require(accelerator, "OpenVINOExecutionProvider", available)
    return "OpenVINOExecutionProvider", {"device_type": "CPU", **accelerator.parameters}


def _require(accelerator: Accelerator, provider: str, available: list[str]) -> None:
    if provider not in available:
        raise invalid_arg(
            f"Execution Accelerator '{accelerator.name}' is requested, but this onnxruntime has no "
            f"{provider}; it has {', '.join(available)}"
        )


def _without_paths(text: str, arguments: LoadArguments) -> str:
    """Removes the path of the repository, because clients see load errors."""
    root = os.path.dirname(os.path.abspath(arguments.model_dir))
    return text.replace(root + os.sep, "")
