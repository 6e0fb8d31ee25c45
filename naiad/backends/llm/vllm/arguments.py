"""Reads vLLM's engine arguments from `1/model.json` into LlmOptions.

Rule: an argument is honoured, or has no effect here and is reported, or must have the one value
      that fits; any other argument is rejected with its name.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from naiad.backends.llm.options import LlmOptions, read_settings
from naiad.errors import invalid_arg

ENGINE_FILE = "model.json"
LORA_FILE = "multi_lora.json"

_SETTINGS = {
    "gpu_memory_utilization", "max_model_len", "max_num_seqs", "max_num_batched_tokens",
    "block_size", "seed", "enable_prefix_caching", "share_prefix_cache",
    "trust_remote_code", "trust_request_chat_template", "device", "quantization", "kv_cache_dtype",
    "tensor_parallel_size", "use_fast_tokenizer",
}  # fmt: skip
_DTYPES = {"half": "float16", "float": "float32"}
_WITHOUT_EFFECT = {
    "disable_log_requests", "disable_log_stats", "enable_log_requests", "swap_space",
    "max_seq_len_to_capture", "enable_chunked_prefill",
    "guided_decoding_backend", "distributed_executor_backend", "disable_custom_all_reduce",
    "limit_mm_per_prompt", "load_format",
    "download_dir", "compilation_config", "max_log_len", "use_v2_block_manager",
    "num_scheduler_steps", "multi_step_stream_outputs",
    "disable_async_output_proc", "preemption_mode", "scheduling_policy", "served_model_name",
    "worker_use_ray", "task",
    "runner", "async_scheduling", "max_parallel_loading_workers", "ray_workers_use_nsight",
    "enable_sleep_mode",
    "max_context_len_to_capture", "tokenizer_mode", "use_tqdm_on_load",
}  # fmt: skip
_ONLY: dict[str, tuple[Any, ...]] = {
    "pipeline_parallel_size": (1, None),
    "data_parallel_size": (1, None), "cpu_offload_gb": (0, None),
    "enable_lora": (False, None), "speculative_model": (None,), "speculative_config": (None,),
    "num_speculative_tokens": (None,),
    "rope_scaling": (None,), "rope_theta": (None,),
    "hf_overrides": (None,), "skip_tokenizer_init":
    (False, None), "disable_sliding_window": (False, None), "revision": (None,),
    "tokenizer_revision": (None,), "code_revision": (None,),
}  # fmt: skip


def read_arguments(model_name: str, path: Path) -> tuple[LlmOptions, list[str]]:
    """Returns the options and the names of arguments that have no effect. Raises NaiadError."""
    try:
        arguments: Any = json.loads(path.read_text())
    except OSError as error:
        raise invalid_arg(
            f"model '{model_name}' needs a {path.parent.name}/{ENGINE_FILE}: {error.strerror}"
        ) from None
    except ValueError as error:
        raise invalid_arg(f"{ENGINE_FILE} of model '{model_name}' is not JSON: {error}") from None
    if not isinstance(arguments, dict) or not isinstance(arguments.get("model"), str):
        raise invalid_arg(f"{ENGINE_FILE} of model '{model_name}' has no 'model'")
    settings: dict[str, Any] = {}
    ignored: list[str] = []
    for name, value in arguments.items():
        if name in _SETTINGS:
            if value is not None:
                settings[name] = value
        elif name == "dtype":
            settings["dtype"] = _DTYPES.get(value, value)
        elif name == "load_format" and value == "dummy":
            settings["load_format"] = value
        elif name == "enforce_eager":
            settings["use_cuda_graphs"] = not value
        elif name == "num_gpu_blocks_override":
            settings["num_kv_blocks"] = value
        elif name in _WITHOUT_EFFECT:
            ignored.append(name)
        elif name == "tokenizer":
            _require_own_tokenizer(model_name, arguments)
        elif name != "model":
            _require_only(model_name, name, value)
    options = LlmOptions(
        checkpoint=arguments["model"], settings=read_settings(model_name, settings)
    )
    return options, ignored


def _require_own_tokenizer(model_name: str, arguments: dict[str, Any]) -> None:
    if arguments["tokenizer"] not in (None, arguments["model"]):
        raise invalid_arg(
            f"'tokenizer' in {ENGINE_FILE} of model '{model_name}' differs from 'model', "
            f"which cannot be honoured"
        )


def _require_only(model_name: str, name: str, value: Any) -> None:
    if name not in _ONLY:
        raise invalid_arg(f"'{name}' in {ENGINE_FILE} of model '{model_name}' is not known")
    if value not in _ONLY[name]:
        raise invalid_arg(
            f"'{name}' in {ENGINE_FILE} of model '{model_name}' is {json.dumps(value)}, "
            f"which cannot be honoured"
        )
