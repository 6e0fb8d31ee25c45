"""Reads the inputs of one tensorrt_llm request into a prompt, sampling parameters and a grammar,
with TensorRT-LLM's meanings and defaults.

Without top_k and top_p (or with both 0) decoding is greedy. An end_id replaces the checkpoint's own
end tokens; -1 means none.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from naiad.backends.llm.model import OpenModel
from naiad.backends.llm.tensorrtllm.tensors import UNUSABLE_FLAGS, UNUSABLE_INPUTS, UNUSABLE_VALUES
from naiad.backends.llm.tensors import Inputs
from naiad.errors import invalid_arg
from naiad.ipc.generation_call import GrammarCall
from naiad.llm.parameters import MAX_LOGIT_BIAS, SamplingParameters

MAX_WORDS = MAX_LOGIT_BIAS
"""Maximum number of stop words or bad words. Those of several tokens have lower limits."""
_GUIDES = {
    "json": "json_object",
    "json_schema": "json_schema",
    "regex": "regex",
    "ebnf_grammar": "ebnf",
    "structural_tag": "structural_tag",
}


def reject_unusable(inputs: Inputs) -> None:
    """Raises NaiadError with the input's name."""
    for name, purpose in UNUSABLE_INPUTS.items():
        array = inputs.array(name)
        if array is not None and array.size and bool(np.any(array)):
            raise invalid_arg(
                f"input '{name}' cannot be honoured: Naiad does not support {purpose}"
            )
    # The preprocessing model of an inflight_batcher_llm repository sends one pad token to the
    # decoder even if the model has none.
    decoder = inputs.array("decoder_input_ids")
    if decoder is not None and decoder.shape[-1] > 1:
        raise invalid_arg(
            "input 'decoder_input_ids' cannot be honoured: "
            "Naiad does not support encoder-decoder models"
        )
    for name in UNUSABLE_FLAGS:
        if inputs.flag(name):
            raise invalid_arg(f"input '{name}' cannot be honoured")
    for name, only in UNUSABLE_VALUES.items():
        value = inputs.scalar(name)
        if value is not None and value != 0 and not math.isclose(value, only, rel_tol=1e-3):
            raise invalid_arg(f"input '{name}' is {value:g}, expected {only:g}")


def read_prompt(inputs: Inputs) -> list[int]:
    array = inputs.array("input_ids")
    if array is None:
        raise invalid_arg("input 'input_ids' is missing")
    if array.ndim > 1 and array.shape[0] > 1:
        raise invalid_arg(
            f"input 'input_ids' holds {array.shape[0]} prompts, expected one per request: "
            f"requests are batched in flight"
        )
    tokens = [int(token) for token in array.ravel().tolist()]
    length = inputs.scalar("input_lengths")
    if length is None:
        return tokens
    if not 0 <= length <= len(tokens):
        raise invalid_arg(
            f"input 'input_lengths' is {length}, but 'input_ids' has {len(tokens)} tokens"
        )
    return tokens[:length]


def read_request_sampling(inputs: Inputs, model: OpenModel) -> SamplingParameters:
    """Raises NaiadError."""
    max_tokens = inputs.scalar("request_output_len")
    values: dict[str, Any] = {
        "max_tokens": max_tokens,
        "n": inputs.scalar("num_return_sequences") or 1,
    }
    values.update(_distribution(inputs))
    for ours, names in (
        ("repetition_penalty", ("repetition_penalty",)),
        ("presence_penalty", ("presence_penalty",)),
        ("frequency_penalty", ("frequency_penalty",)),
        ("min_tokens", ("min_tokens", "min_length")),
        ("seed", ("seed", "random_seed")),
    ):
        value = next((inputs.scalar(name) for name in names if name in inputs), None)
        if value is not None:
            values[ours] = value
    values.update(_ends(inputs, model))
    values.update(_biases(inputs, model))
    if inputs.flag("return_log_probs"):
        values["logprobs"] = 0
    parameters = SamplingParameters(**values)
    parameters.check_ranges()
    return parameters


def _distribution(inputs: Inputs) -> dict[str, Any]:
    top_k, top_p = inputs.scalar("runtime_top_k") or 0, inputs.scalar("runtime_top_p") or 0.0
    temperature = inputs.scalar("temperature")
    if top_k == 1 or (top_k == 0 and top_p == 0.0):
        return {"temperature": 0.0}
    values: dict[str, Any] = {"top_k": top_k, "top_p": top_p or 1.0}
    return values if temperature is None else {**values, "temperature": temperature}


def _ends(inputs: Inputs, model: OpenModel) -> dict[str, Any]:
    end_id = inputs.scalar("end_id")
    values: dict[str, Any] = {"ignore_eos": True} if end_id is not None else {}
    ends = [end_id] if end_id is not None and end_id >= 0 else []
    texts: list[str] = []
    for word in split_words(inputs, "stop_words_list"):
        if len(word) == 1:
            ends.append(word[0])
        else:
            texts.append(_text(word, model, "stop_words_list"))
    if ends:
        values["stop_token_ids"] = ends
    if texts:
        values["stop"] = texts
    return values


def _biases(inputs: Inputs, model: OpenModel) -> dict[str, Any]:
    bias: dict[int, float] = {}
    array = inputs.array("embedding_bias")
    if array is not None:
        flat = array.ravel()
        bias = {int(token): float(flat[token]) for token in np.flatnonzero(flat)}
    texts: list[str] = []
    for word in split_words(inputs, "bad_words_list"):
        if len(word) == 1:
            bias[word[0]] = -math.inf
        else:
            texts.append(_text(word, model, "bad_words_list"))
    return {"logit_bias": bias, "bad_words": texts} if bias or texts else {}


def split_words(inputs: Inputs, name: str) -> list[list[int]]:
    """Splits a tensor of shape [2, N]: the first row has the tokens of all words, the second the
    end offset of each word, filled up with -1."""
    array = inputs.array(name)
    if array is None or not array.size:
        return []
    rows = array.reshape(-1, array.shape[-1])
    if rows.shape[0] != 2:
        raise invalid_arg(f"input '{name}' has shape {list(array.shape)}, expected [2, N]")
    tokens, ends = rows[0].tolist(), rows[1][rows[1] > 0].tolist()
    if len(ends) > MAX_WORDS:
        raise invalid_arg(f"input '{name}' has {len(ends)} words, expected at most {MAX_WORDS}")
    words, start = [], 0
    for end in ends:
        if not start < end <= len(tokens):
            raise invalid_arg(
                f"input '{name}' has a word that ends at {end}, "
                f"expected {start + 1} to {len(tokens)}"
            )
        words.append(tokens[start:end])
        start = end
    return words


def _text(word: list[int], model: OpenModel, name: str) -> str:
    if model.tokenizer is None:
        raise invalid_arg(
            f"input '{name}' has a word of several tokens, which needs the checkpoint's tokenizer"
        )
    if not all(0 <= token < model.vocab_size for token in word):
        raise invalid_arg(f"input '{name}' names a token outside the vocabulary")
    return model.tokenizer.decode(word, skip_special_tokens=False)


def grammar_call(inputs: Inputs) -> GrammarCall | None:
    kind = inputs.text("guided_decoding_guide_type")
    if not kind:
        return None
    if kind not in _GUIDES:
        raise invalid_arg(
            f"input 'guided_decoding_guide_type' is '{kind}', expected one of {', '.join(_GUIDES)}"
        )
    return GrammarCall(_GUIDES[kind], inputs.text("guided_decoding_guide") or "")
