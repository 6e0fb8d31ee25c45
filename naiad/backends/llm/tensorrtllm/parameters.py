"""Reads `parameters` of a tensorrt_llm config.pbtxt, as fill_template left them, into LlmOptions.

Rule: a parameter is honoured, or has no effect here and is reported, or must have one of the values
      that fit; any other parameter is rejected with its name. `${x}` means unset.
"""

from __future__ import annotations

import msgspec

from naiad.backends.llm.options import (
    OWN_NAMES,
    SETTING_NAMES,
    LlmOptions,
    read_settings,
    set_parameters,
)
from naiad.backends.served_config import ServedConfig
from naiad.errors import NaiadError, invalid_arg

_CHECKPOINT = ("gpt_model_path", "engine_dir", "checkpoint")
_WITHOUT_EFFECT = frozenset({
    "kv_cache_host_memory_bytes", "kv_cache_onboard_blocks", "enable_trt_overlap",
    "cancellation_check_period_ms", "stats_check_period_ms",
    "iter_stats_max_iterations", "request_stats_max_iterations", "normalize_log_probs",
    "enable_chunked_context", "cross_kv_cache_fraction",
    "lora_cache_optimal_adapter_size", "lora_cache_max_adapter_size",
    "lora_cache_gpu_memory_fraction", "lora_cache_host_memory_bytes",
    "executor_worker_path", "enable_context_fmha_fp32_acc", "multi_block_mode",
    "cuda_graph_cache_size",
    "speculative_decoding_fast_logits", "tokenizer_dir", "xgrammar_tokenizer_info_path",
    "batch_scheduler_policy", "gpt_model_type",
    "batching_type", "recv_poll_period_ms", "prompt_embedding_table_data_type", "logits_datatype",
    "mm_embedding_offloading", "scheduler_policy",
})  # fmt: skip
_ONLY: dict[str, tuple[str, ...]] = {
    "max_beam_width": ("0", "1"), "num_nodes": ("1",), "sink_token_length": ("0",),
    "gpu_weights_percent": ("1", "1.0"),
    "decoding_mode": ("auto", "top_k", "top_p", "top_k_top_p"),
    "guided_decoding_backend": ("xgrammar",),
    "medusa_choices": (), "eagle_choices": (), "lookahead_window_size": (),
    "lookahead_ngram_size": (),
    "lookahead_verification_set_size": (), "encoder_model_path": (), "lora_prefetch_dir": (),
}  # fmt: skip
_TRUE = frozenset({"true", "1", "yes"})


class TensorrtllmParameters(msgspec.Struct, frozen=True):
    options: LlmOptions
    exclude_input_in_output: bool
    ignored: list[str]


def read_parameters(config: ServedConfig) -> TensorrtllmParameters:
    """Raises NaiadError."""
    parameters = set_parameters(config)
    checkpoint = next((parameters[name] for name in _CHECKPOINT if name in parameters), "")
    settings = {name: value for name, value in parameters.items() if name in SETTING_NAMES}
    ignored = [name for name in parameters if name in _WITHOUT_EFFECT]
    for name, value in parameters.items():
        if name in _ONLY and value.lower() not in _ONLY[name]:
            raise _rejection(config, name, value)
        match name:
            case "enable_kv_cache_reuse":
                settings["enable_prefix_caching"] = value
            case "cuda_graph_mode":
                settings["use_cuda_graphs"] = value
            case "max_tokens_in_paged_kv_cache":
                settings["num_kv_blocks"] = str(_blocks(config, value, parameters))
            case "participant_ids":
                if "," in value or ";" in value:
                    raise _rejection(config, name, value)
            case "gpu_device_ids":
                settings.setdefault("tensor_parallel_size", str(_num_gpus(config, value)))
            case "max_attention_window_size":
                # Beyond the window the output would differ; a context that ends there is correct.
                settings.setdefault("max_model_len", value)
            case "max_num_tokens":
                settings.setdefault("max_num_batched_tokens", value)
    known = {*_CHECKPOINT, *_ONLY, *_WITHOUT_EFFECT, *SETTING_NAMES, *OWN_NAMES, *_SPECIAL}
    for name in parameters:
        if name not in known and not config.is_for_server(name):
            raise invalid_arg(
                f"model '{config.name}' has a parameter '{name}', "
                f"which the tensorrtllm backend does not know"
            )
    if (
        "gpu_device_ids" in parameters
        and "device" not in settings
        and any(group.kind == "KIND_GPU" for group in config.instance_group)
    ):
        settings["device"] = f"cuda:{parameters['gpu_device_ids'].partition(',')[0]}"
    options = LlmOptions(
        checkpoint=checkpoint,
        engine=parameters.get("engine", "auto"),
        settings=read_settings(config.name, settings),
        num_threads=config.integer("num_threads", 0),
    )
    return TensorrtllmParameters(
        options, parameters.get("exclude_input_in_output", "").lower() in _TRUE, ignored
    )


_SPECIAL = (
    "enable_kv_cache_reuse", "cuda_graph_mode", "max_tokens_in_paged_kv_cache", "gpu_device_ids",
    "participant_ids",
    "max_attention_window_size", "max_num_tokens", "exclude_input_in_output",
)  # fmt: skip


def _num_gpus(config: ServedConfig, value: str) -> int:
    """Returns the number of GPUs, one rank on each. They must follow each other, as in 2,3."""
    try:
        gpus = [int(gpu) for gpu in value.split(",")]
    except ValueError:
        raise _rejection(config, "gpu_device_ids", value) from None
    if gpus != list(range(gpus[0], gpus[0] + len(gpus))):
        raise _rejection(config, "gpu_device_ids", value)
    return len(gpus)


def _blocks(config: ServedConfig, value: str, parameters: dict[str, str]) -> int:
    """Returns the number of blocks that hold `value` tokens, plus the block that is never used."""
    try:
        return -(-int(value) // int(parameters.get("block_size", "16"))) + 1
    except ValueError:
        raise _rejection(config, "max_tokens_in_paged_kv_cache", value) from None


def _rejection(config: ServedConfig, name: str, value: str) -> NaiadError:
    expected = f", expected {' or '.join(_ONLY[name])}" if _ONLY.get(name) else ""
    return invalid_arg(
        f"parameter '{name}' of model '{config.name}' is '{value}', "
        f"which cannot be honoured{expected}"
    )
