"""Writes a repository with one model per way to use the engine, all from one tiny checkpoint."""

from __future__ import annotations

import json
from pathlib import Path

from tests.server.llm_checkpoint import parameter, write_checkpoint, write_model

SMALL = {"device": "cpu", "num_threads": 1, "kv_cache_bytes": 1 << 24, "max_num_seqs": 8}


def write_repository(folder: Path) -> Path:
    checkpoint = write_checkpoint(folder / "checkpoint", max_positions=4096)
    repository = folder / "repository"
    small = "".join(parameter(name, value) for name, value in SMALL.items())
    write_model(
        repository, "tiny", 'backend: "llm"\n' + parameter("checkpoint", checkpoint) + small
    )
    narrow = {**SMALL, "max_num_seqs": 1, "max_waiting_requests": 2}
    settings = "".join(parameter(name, value) for name, value in narrow.items())
    write_model(
        repository, "narrow", 'backend: "llm"\n' + parameter("checkpoint", checkpoint) + settings
    )
    write_model(
        repository,
        "trusting",
        'backend: "llm"\n'
        + parameter("checkpoint", checkpoint)
        + small
        + parameter("trust_request_chat_template", "true"),
    )
    write_model(
        repository, "fragile", 'backend: "llm"\n' + parameter("checkpoint", checkpoint) + small
    )
    write_model(
        repository,
        "tiny_vllm",
        'backend: "vllm"\ninstance_group [ { count: 1 kind: KIND_MODEL } ]\n',
        {
            "1/model.json": json.dumps(
                {
                    "model": str(checkpoint),
                    "max_num_seqs": 8,
                    "device": "cpu",
                    "disable_log_requests": True,
                }
            )
        },
    )
    write_model(repository, "tensorrt_llm", tensorrt_llm_config(checkpoint, is_decoupled=True))
    write_model(
        repository, "tensorrt_llm_whole", tensorrt_llm_config(checkpoint, is_decoupled=False)
    )
    return repository


_OPTIONAL = """
input { name: "%(name)s" data_type: %(kind)s dims: [ 1 ] reshape: { shape: [ ] } optional: true }"""
_SCALARS = {
    "TYPE_INT32": [
        "num_return_sequences", "decoder_input_lengths", "end_id", "pad_id", "beam_width",
        "runtime_top_k", "min_tokens",
    ],
    "TYPE_FP32": [
        "temperature", "runtime_top_p", "len_penalty", "repetition_penalty", "presence_penalty",
        "frequency_penalty",
    ],
    "TYPE_BOOL": [
        "return_log_probs", "return_context_logits", "return_generation_logits",
        "return_num_input_tokens", "return_num_output_tokens", "exclude_input_in_output", "stop",
        "streaming",
    ],
    "TYPE_UINT64": ["seed"],
}  # fmt: skip


def tensorrt_llm_config(checkpoint: Path, *, is_decoupled: bool) -> str:
    """Returns a config as fill_template leaves it, with some values set and others still
    placeholders."""
    scalars = "".join(
        _OPTIONAL % {"name": name, "kind": kind}
        for kind, names in _SCALARS.items()
        for name in names
    )
    ragged = "optional: true allow_ragged_batch: true"
    return (
        f"""
backend: "tensorrtllm"
max_batch_size: 4
model_transaction_policy {{ decoupled: {str(is_decoupled).lower()} }}
dynamic_batching {{ max_queue_delay_microseconds: 0 default_queue_policy: {{ max_queue_size: 0 }} }}
input [
  {{ name: "input_ids" data_type: TYPE_INT32 dims: [ -1 ] allow_ragged_batch: true }},
  {{ name: "input_lengths" data_type: TYPE_INT32 dims: [ 1 ] reshape: {{ shape: [ ] }} }},
  {{ name: "request_output_len" data_type: TYPE_INT32 dims: [ 1 ] reshape: {{ shape: [ ] }} }},
  {{ name: "stop_words_list" data_type: TYPE_INT32 dims: [ 2, -1 ] {ragged} }},
  {{ name: "bad_words_list" data_type: TYPE_INT32 dims: [ 2, -1 ] {ragged} }},
  {{ name: "decoder_input_ids" data_type: TYPE_INT32 dims: [ -1 ] {ragged} }},
  {{ name: "embedding_bias" data_type: TYPE_FP32 dims: [ -1 ] {ragged} }},
  {{ name: "prompt_embedding_table" data_type: TYPE_FP16 dims: [ -1, -1 ] {ragged} }}
]
{scalars}
output [
  {{ name: "output_ids" data_type: TYPE_INT32 dims: [ -1, -1 ] }},
  {{ name: "sequence_length" data_type: TYPE_INT32 dims: [ -1 ] }},
  {{ name: "cum_log_probs" data_type: TYPE_FP32 dims: [ -1 ] }},
  {{ name: "output_log_probs" data_type: TYPE_FP32 dims: [ -1, -1 ] }},
  {{ name: "context_logits" data_type: TYPE_FP32 dims: [ -1, -1 ] }},
  {{ name: "generation_logits" data_type: TYPE_FP32 dims: [ -1, -1, -1 ] }},
  {{ name: "sequence_index" data_type: TYPE_INT32 dims: [ 1 ] }},
  {{ name: "num_input_tokens" data_type: TYPE_INT32 dims: [ 1 ] }},
  {{ name: "num_output_tokens" data_type: TYPE_INT32 dims: [ 1 ] }}
]
instance_group [ {{ count: 1 kind: KIND_CPU }} ]
"""
        + parameter("max_beam_width", "1")
        + parameter("gpt_model_type", "inflight_fused_batching")
        + parameter("gpt_model_path", checkpoint)
        + parameter("FORCE_CPU_ONLY_INPUT_TENSORS", "no")
        + parameter("encoder_model_path", "${encoder_engine_dir}")
        + parameter("max_tokens_in_paged_kv_cache", "8192")
        + parameter("batch_scheduler_policy", "max_utilization")
        + parameter("kv_cache_free_gpu_mem_fraction", "0.5")
        + parameter("enable_kv_cache_reuse", "true")
        + parameter("decoding_mode", "${decoding_mode}")
        + parameter("medusa_choices", "${medusa_choices}")
        + parameter("num_threads", 1)
    )
