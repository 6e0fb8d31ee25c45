"""Builds the config.pbtxt files that `naiad init llm` writes."""

from __future__ import annotations

from collections.abc import Iterable

from naiad.repository.deploy.llm_config import string_parameter

MAX_BATCH_SIZE = 64
_Tensor = tuple[str, str, str]
"""The name, type and dims of a tensor."""

_SCALARS: list[_Tensor] = [
    ("num_return_sequences", "INT32", "1"), ("end_id", "INT32", "1"), ("pad_id", "INT32", "1"),
    ("top_k", "INT32", "1"), ("top_p", "FP32", "1"), ("temperature", "FP32", "1"),
    ("length_penalty", "FP32", "1"), ("repetition_penalty", "FP32", "1"),
    ("min_tokens", "INT32", "1"), ("presence_penalty", "FP32", "1"),
    ("frequency_penalty", "FP32", "1"), ("seed", "UINT64", "1"), ("return_log_probs", "BOOL", "1"),
    ("beam_width", "INT32", "1"), ("stream", "BOOL", "1"),
]  # fmt: skip
_CLIENT_INPUTS: list[_Tensor] = [("text_input", "STRING", "1"), ("max_tokens", "INT32", "1")]
_CLIENT_OPTIONS: list[_Tensor] = [
    ("bad_words", "STRING", "-1"), ("stop_words", "STRING", "-1"),
    ("embedding_bias_words", "STRING", "-1"), ("embedding_bias_weights", "FP32", "-1"), *_SCALARS,
]  # fmt: skip
_RESULTS: list[_Tensor] = [("cum_log_probs", "FP32", "-1"), ("output_log_probs", "FP32", "-1, -1")]
_ENGINE_NAMES = {
    "top_k": "runtime_top_k",
    "top_p": "runtime_top_p",
    "length_penalty": "len_penalty",
    "stream": "streaming",
}
_MADE_BY_PREPROCESSING = {"end_id": "OUT_END_ID", "pad_id": "OUT_PAD_ID"}


def parallel_parameter(size: int) -> str:
    return string_parameter("tensor_parallel_size", str(size))


def preprocessing_config(checkpoint: str) -> str:
    required = [("QUERY", "STRING", "1"), ("REQUEST_OUTPUT_LEN", "INT32", "1")]
    optional = [
        ("BAD_WORDS_DICT", "STRING", "-1"), ("STOP_WORDS_DICT", "STRING", "-1"),
        ("EMBEDDING_BIAS_WORDS", "STRING", "-1"), ("EMBEDDING_BIAS_WEIGHTS", "FP32", "-1"),
        ("END_ID", "INT32", "1"), ("PAD_ID", "INT32", "1"),
    ]  # fmt: skip
    outputs = [
        ("INPUT_ID", "INT32", "-1"), ("REQUEST_INPUT_LEN", "INT32", "1"),
        ("BAD_WORDS_IDS", "INT32", "2, -1"), ("STOP_WORDS_IDS", "INT32", "2, -1"),
        ("EMBEDDING_BIAS", "FP32", "-1"), ("REQUEST_OUTPUT_LEN", "INT32", "-1"),
        ("OUT_END_ID", "INT32", "1"), ("OUT_PAD_ID", "INT32", "1"),
    ]  # fmt: skip
    return (
        f'backend: "python"\nmax_batch_size: {MAX_BATCH_SIZE}\n'
        + _tensors(required, optional, outputs)
        + string_parameter("tokenizer_dir", checkpoint)
        + string_parameter("add_special_tokens", "true")
        + "instance_group [ { count: 1 kind: KIND_CPU } ]\n"
    )


def tensorrt_llm_config(checkpoint: str, is_decoupled: bool) -> str:
    required = [
        ("input_ids", "INT32", "-1"),
        ("input_lengths", "INT32", "1"),
        ("request_output_len", "INT32", "1"),
    ]
    optional = [
        ("stop_words_list", "INT32", "2, -1"), ("bad_words_list", "INT32", "2, -1"),
        ("embedding_bias", "FP32", "-1"), ("exclude_input_in_output", "BOOL", "1"),
        ("stop", "BOOL", "1"),
        *((_ENGINE_NAMES.get(name, name), kind, dims) for name, kind, dims in _SCALARS),
    ]  # fmt: skip
    outputs = [("output_ids", "INT32", "-1, -1"), ("sequence_length", "INT32", "-1"), *_RESULTS]
    return (
        f'backend: "tensorrtllm"\nmax_batch_size: {MAX_BATCH_SIZE}\n'
        f"model_transaction_policy {{ decoupled: {_bool(is_decoupled)} }}\n"
        "dynamic_batching { }\n"
        + _tensors(required, optional, outputs, is_ragged=True)
        + string_parameter("gpt_model_path", checkpoint)
        + string_parameter("exclude_input_in_output", "true")
    )


def postprocessing_config(checkpoint: str) -> str:
    inputs = [("TOKENS_BATCH", "INT32", "-1, -1"), ("SEQUENCE_LENGTH", "INT32", "-1")]
    return (
        f'backend: "python"\nmax_batch_size: {MAX_BATCH_SIZE}\ndynamic_batching {{ }}\n'
        + _tensors(inputs, [], [("OUTPUT", "STRING", "-1")])
        + string_parameter("tokenizer_dir", checkpoint)
        + string_parameter("skip_special_tokens", "true")
        + "instance_group [ { count: 1 kind: KIND_CPU } ]\n"
    )


def bls_config(is_decoupled: bool) -> str:
    return (
        f'backend: "python"\nmax_batch_size: {MAX_BATCH_SIZE}\n'
        f"model_transaction_policy {{ decoupled: {_bool(is_decoupled)} }}\n"
        + _tensors(_CLIENT_INPUTS, _CLIENT_OPTIONS, [("text_output", "STRING", "-1"), *_RESULTS])
        + string_parameter("tensorrt_llm_model_name", "tensorrt_llm")
        + string_parameter("accumulate_tokens", "false")
        # An instance serves one request at a time, so four instances serve four at once.
        + "instance_group [ { count: 4 kind: KIND_CPU } ]\n"
    )


def ensemble_config() -> str:
    preprocessing = _step(
        "preprocessing",
        {
            "QUERY": "text_input",
            "REQUEST_OUTPUT_LEN": "max_tokens",
            "BAD_WORDS_DICT": "bad_words",
            "STOP_WORDS_DICT": "stop_words",
            "EMBEDDING_BIAS_WORDS": "embedding_bias_words",
            "EMBEDDING_BIAS_WEIGHTS": "embedding_bias_weights",
            "END_ID": "end_id",
            "PAD_ID": "pad_id",
        },
        {
            "INPUT_ID": "_INPUT_ID",
            "REQUEST_INPUT_LEN": "_REQUEST_INPUT_LEN",
            "REQUEST_OUTPUT_LEN": "_REQUEST_OUTPUT_LEN",
            "BAD_WORDS_IDS": "_BAD_WORDS_IDS",
            "STOP_WORDS_IDS": "_STOP_WORDS_IDS",
            "EMBEDDING_BIAS": "_EMBEDDING_BIAS",
            "OUT_END_ID": "_OUT_END_ID",
            "OUT_PAD_ID": "_OUT_PAD_ID",
        },
    )
    scalars = {
        _ENGINE_NAMES.get(name, name): f"_{_MADE_BY_PREPROCESSING[name]}"
        if name in _MADE_BY_PREPROCESSING
        else name
        for name, _, _ in _SCALARS
    }
    engine = _step(
        "tensorrt_llm",
        {
            "input_ids": "_INPUT_ID",
            "input_lengths": "_REQUEST_INPUT_LEN",
            "request_output_len": "_REQUEST_OUTPUT_LEN",
            "stop_words_list": "_STOP_WORDS_IDS",
            "bad_words_list": "_BAD_WORDS_IDS",
            "embedding_bias": "_EMBEDDING_BIAS",
            **scalars,
        },
        {
            "output_ids": "_TOKENS_BATCH",
            "sequence_length": "_SEQUENCE_LENGTH",
            "cum_log_probs": "cum_log_probs",
            "output_log_probs": "output_log_probs",
        },
    )
    postprocessing = _step(
        "postprocessing",
        {"TOKENS_BATCH": "_TOKENS_BATCH", "SEQUENCE_LENGTH": "_SEQUENCE_LENGTH"},
        {"OUTPUT": "text_output"},
    )
    steps = ",\n".join([preprocessing, engine, postprocessing])
    return (
        f'platform: "ensemble"\nmax_batch_size: {MAX_BATCH_SIZE}\n'
        + _tensors(_CLIENT_INPUTS, _CLIENT_OPTIONS, [("text_output", "STRING", "-1"), *_RESULTS])
        + f"ensemble_scheduling {{\n  step [\n{steps}\n  ]\n}}\n"
    )


def _step(model: str, inputs: dict[str, str], outputs: dict[str, str]) -> str:
    maps = [f'      input_map {{ key: "{key}" value: "{value}" }}' for key, value in inputs.items()]
    maps += [
        f'      output_map {{ key: "{key}" value: "{value}" }}' for key, value in outputs.items()
    ]
    return (
        f'    {{\n      model_name: "{model}"\n      model_version: -1\n'
        + "\n".join(maps)
        + "\n    }"
    )


def _tensors(
    required: Iterable[_Tensor],
    optional: Iterable[_Tensor],
    outputs: Iterable[_Tensor],
    *,
    is_ragged: bool = False,
) -> str:
    inputs = [_tensor(tensor, "", is_ragged) for tensor in required]
    inputs += [_tensor(tensor, " optional: true", is_ragged) for tensor in optional]
    input_text = ",\n".join(inputs)
    output_text = ",\n".join(_tensor(tensor, "", False) for tensor in outputs)
    return f"input [\n{input_text}\n]\noutput [\n{output_text}\n]\n"


def _tensor(tensor: _Tensor, extra_fields: str, is_ragged: bool) -> str:
    name, kind, dims = tensor
    ragged = " allow_ragged_batch: true" if is_ragged and "-1" in dims else ""
    return f'  {{ name: "{name}" data_type: TYPE_{kind} dims: [ {dims} ]{extra_fields}{ragged} }}'


def _bool(value: bool) -> str:
    return "true" if value else "false"
