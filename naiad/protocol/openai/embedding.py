"""POST /v1/embeddings: texts -> batches for a model that takes text and gives vectors -> OpenAI's
list of embeddings.

An embedding model has one required input, of texts (BYTES, one for each row), and a floating-point
output with a vector for each row: the one whose name holds "embed", or the only one where the
config's parameter `task` is "embedding".
"""

from __future__ import annotations

import base64
from typing import Any

import msgspec
import numpy as np

from naiad.core.byte_strings import encode_byte_strings
from naiad.core.model_spec import ModelSpec, TensorSpec
from naiad.core.request import InferRequest
from naiad.core.tensor import Tensor
from naiad.errors import internal
from naiad.protocol.openai.body import EmbeddingBody
from naiad.protocol.openai.error import bad_request
from naiad.protocol.openai.response_writer import encode

MAX_INPUTS = 2048
_FLOATS = frozenset(("FP16", "BF16", "FP32", "FP64"))
_COUNTS = ("num_input_tokens", "num_tokens")
"""Outputs from which usage is told, where the model has one."""


class EmbeddingForm(msgspec.Struct, frozen=True):
    input: TensorSpec
    output: TensorSpec
    count: str
    """Name of the output with the number of tokens, or empty."""
    max_rows: int
    is_batched: bool


class EmbeddingUsage(msgspec.Struct):
    prompt_tokens: int
    total_tokens: int


class Embedding(msgspec.Struct):
    embedding: list[float] | str
    index: int
    object: str = "embedding"


class EmbeddingList(msgspec.Struct):
    data: list[Embedding]
    model: str
    usage: EmbeddingUsage
    object: str = "list"


def embedding_form(spec: ModelSpec, *, is_declared: bool = False) -> EmbeddingForm | None:
    """None: it is no embedding model."""
    required = [tensor for tensor in spec.inputs.values() if not tensor.is_optional] or list(
        spec.inputs.values()
    )[:1]
    if spec.is_decoupled or len(required) != 1 or required[0].datatype != "BYTES":
        return None
    vectors = [tensor for tensor in spec.outputs.values() if tensor.datatype in _FLOATS]
    named = [tensor for tensor in vectors if "embed" in tensor.name.lower()]
    found = named or (vectors if is_declared else [])
    if len(found) != 1 or required[0].dims not in ([1], [-1], []):
        return None
    count = next((name for name in _COUNTS if name in spec.outputs), "")
    is_batched = spec.max_batch_size > 0
    rows = spec.max_batch_size if is_batched else MAX_INPUTS if required[0].dims == [-1] else 1
    return EmbeddingForm(required[0], found[0], count, rows, is_batched)


def read_inputs(body: EmbeddingBody) -> list[str]:
    """Raises OpenAiError."""
    if body.encoding_format not in (None, "float", "base64"):
        raise bad_request(
            f"Invalid value for 'encoding_format': '{body.encoding_format}', expected 'float' or 'base64'",
            "encoding_format",
        )
    inputs = (
        [body.input]
        if isinstance(body.input, str)
        else [part for part in body.input if isinstance(part, str)]
    )
    if not isinstance(body.input, str) and len(inputs) != len(body.input):
        raise bad_request("'input' holds tokens, this model takes text only", "input")
    if not 1 <= len(inputs) <= MAX_INPUTS:
        raise bad_request(f"'input' has {len(inputs)} entries, expected 1 to {MAX_INPUTS}", "input")
    return inputs


def decode_requests(
    body: EmbeddingBody, spec: ModelSpec, form: EmbeddingForm
) -> list[InferRequest]:
    """As many texts in each as the model takes at once. Raises OpenAiError."""
    texts = read_inputs(body)
    size = form.output.dims[-1] if form.output.dims else -1
    if body.dimensions is not None and size > 0 and body.dimensions != size:
        raise bad_request(
            f"'dimensions' is {body.dimensions}, this model's embeddings have {size}", "dimensions"
        )
    outputs = [form.output.name] + [form.count] * bool(form.count)
    return [
        InferRequest(
            spec.name,
            [_texts_tensor(form, texts[at : at + form.max_rows])],
            requested_outputs=outputs,
        )
        for at in range(0, len(texts), form.max_rows)
    ]


def _texts_tensor(form: EmbeddingForm, texts: list[str]) -> Tensor:
    shape = (
        [len(texts), *([1] * len(form.input.dims))]
        if form.is_batched
        else [len(texts)] * len(form.input.dims)
    )
    return Tensor(
        form.input.name, "BYTES", shape, encode_byte_strings([text.encode() for text in texts])
    )


def read_rows(tensor: Tensor, num_texts: int) -> np.ndarray[Any, Any]:
    """[texts, size], as float32. Raises NaiadError."""
    values = tensor.as_numpy()
    if tensor.datatype == "BF16":
        values = (values.astype(np.uint32) << 16).view(np.float32)
    if values.size % num_texts or not values.size:
        raise internal(
            f"output '{tensor.name}' has shape {tensor.shape}, expected a vector for each of {num_texts} texts"
        )
    return values.reshape(num_texts, -1).astype("<f4", copy=False)


def read_count(outputs: list[Tensor], form: EmbeddingForm) -> int:
    return sum(
        int(tensor.as_numpy().sum())
        for tensor in outputs
        if form.count and tensor.name == form.count
    )


def encode_response(
    rows: list[np.ndarray[Any, Any]], num_tokens: int, model: str, *, is_base64: bool
) -> bytes:
    vectors = [vector for part in rows for vector in part]
    data = [
        Embedding(
            base64.b64encode(vector.tobytes()).decode() if is_base64 else vector.tolist(), index
        )
        for index, vector in enumerate(vectors)
    ]
    return encode(EmbeddingList(data, model, EmbeddingUsage(num_tokens, num_tokens)))
