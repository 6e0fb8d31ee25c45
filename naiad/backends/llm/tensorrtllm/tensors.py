"""Lists the tensors of the tensorrt_llm model, for configs that leave them out, and the inputs that
cannot be honoured."""

from __future__ import annotations

from naiad.backends.llm.tensors import tensor

_SCALARS = {
    "TYPE_INT32": (
        "num_return_sequences", "end_id", "pad_id", "beam_width", "runtime_top_k",
        "runtime_top_p_reset_ids", "min_tokens", "min_length",
        "prompt_vocab_size", "retention_decode_priority", "retention_decode_duration_ms",
    ),
    "TYPE_FP32": (
        "temperature", "runtime_top_p", "runtime_top_p_min", "runtime_top_p_decay", "len_penalty",
        "repetition_penalty",
        "beam_search_diversity_rate", "presence_penalty", "frequency_penalty",
    ),
    "TYPE_BOOL": (
        "early_stopping", "return_log_probs", "return_context_logits", "return_generation_logits",
        "return_perf_metrics",
        "return_num_input_tokens", "return_num_output_tokens", "exclude_input_in_output", "stop",
        "streaming",
    ),
    "TYPE_UINT64": ("seed", "random_seed", "lora_task_id"),
    "TYPE_STRING": ("guided_decoding_guide_type", "guided_decoding_guide"),
}  # fmt: skip
INPUTS = [
    tensor("input_ids", "TYPE_INT32", [-1]),
    tensor("input_lengths", "TYPE_INT32", [1]),
    tensor("request_output_len", "TYPE_INT32", [1]),
    tensor("stop_words_list", "TYPE_INT32", [2, -1], is_optional=True),
    tensor("bad_words_list", "TYPE_INT32", [2, -1], is_optional=True),
    tensor("embedding_bias", "TYPE_FP32", [-1], is_optional=True),
    *(
        tensor(name, kind, [1], is_optional=True)
        for kind, names in _SCALARS.items()
        for name in names
    ),
]
OUTPUTS = [
    tensor("output_ids", "TYPE_INT32", [-1, -1]),
    tensor("sequence_length", "TYPE_INT32", [-1]),
    tensor("cum_log_probs", "TYPE_FP32", [-1]),
    tensor("output_log_probs", "TYPE_FP32", [-1, -1]),
    tensor("batch_index", "TYPE_INT32", [1]),
    tensor("sequence_index", "TYPE_INT32", [1]),
    tensor("num_input_tokens", "TYPE_INT32", [1]),
    tensor("num_output_tokens", "TYPE_INT32", [1]),
]

UNUSABLE_INPUTS = {
    "draft_input_ids": "speculative decoding", "draft_logits": "speculative decoding",
    "draft_acceptance_threshold": "speculative decoding",
    "encoder_input_features": "encoder-decoder models",
    "encoder_output_lengths": "encoder-decoder models",
    "cross_attention_mask": "encoder-decoder models",
    "skip_cross_attn_blocks": "encoder-decoder models",
    "prompt_embedding_table": "prompt tuning", "prompt_table_extra_ids": "prompt tuning",
    "prompt_vocab_size": "prompt tuning",
    "lora_task_id": "LoRA adapters", "lora_weights": "LoRA adapters",
    "lora_config": "LoRA adapters",
    "mrope_rotary_cos_sin": "multimodal rope", "mrope_position_deltas": "multimodal rope",
    "context_phase_params": "disaggregated serving",
    "lookahead_window_size": "lookahead decoding", "lookahead_ngram_size": "lookahead decoding",
    "lookahead_verification_set_size": "lookahead decoding",
}  # fmt: skip
"""Input that cannot be honoured -> the feature it belongs to. Empty tensors are accepted, because
an ensemble passes them on."""
UNUSABLE_FLAGS = ("return_context_logits", "return_generation_logits", "return_perf_metrics")
UNUSABLE_VALUES: dict[str, float] = {
    "beam_width": 1,
    "runtime_top_p_decay": 1.0,
    "runtime_top_p_min": 1e-6,
    "runtime_top_p_reset_ids": -1,
}
"""Input -> the only value that can be honoured; zero means unset."""
