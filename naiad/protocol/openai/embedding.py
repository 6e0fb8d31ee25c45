"""POST /v1/embeddings: texts -> batches for a model that turns texts into vectors -> OpenAI's list
of embeddings.

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
"""Names of the output that counts tokens, for usage; a model need not have one."""


class EmbeddingSpec(msgspec.Struct, frozen=True):
    input: TensorSpec
    output: TensorSpec
    count: str
    """The name of the output with the number of tokens; empty when there is none."""
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


def embedding_spec(spec: ModelSpec, *, is_declared: bool = False) -> EmbeddingSpec | None:
    """How the model embeds texts; None when it is no embedding model."""
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
    return EmbeddingSpec(required[0], found[0], count, rows, is_batched)


def read_inputs(body: EmbeddingBody) -> list[str]:
    """Raises OpenAiError."""
    if body.encoding_format not in (None, "float", "base64"):
        raise bad_request(
            f"Invalid value for 'encoding_format': '{body.encoding_format}', "
            "expected 'float' or 'base64'",
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
    body: EmbeddingBody, spec: ModelSpec, embedding: EmbeddingSpec
) -> list[InferRequest]:
    """The requests for all texts, each with as many texts as the model accepts at once. Raises
    OpenAiError."""
    texts = read_inputs(body)
    size = embedding.output.dims[-1] if embedding.output.dims else -1
    if body.dimensions is not None and size > 0 and body.dimensions != size:
        raise bad_request(
            f"'dimensions' is {body.dimensions}, this model's embeddings have {size}", "dimensions"
        )
    outputs = [embedding.output.name] + [embedding.count] * bool(embedding.count)
    return [
        InferRequest(
            spec.name,
            [_texts_tensor(embedding, texts[at : at + embedding.max_rows])],
            requested_outputs=outputs,
        )
        for at in range(0, len(texts), embedding.max_rows)
    ]


def _texts_tensor(embedding: EmbeddingSpec, texts: list[str]) -> Tensor:
    shape = (
        [len(texts), *([1] * len(embedding.input.dims))]
        if embedding.is_batched
        else [len(texts)] * len(embedding.input.dims)
    )
    return Tensor(
        embedding.input.name, "BYTES", shape, encode_byte_strings([text.encode() for text in texts])
    )


def read_rows(tensor: Tensor, num_texts: int) -> np.ndarray[Any, Any]:
    """The vectors of an output as a float32 array of shape [texts, size]. Raises NaiadError."""
    values = tensor.as_numpy()
    if tensor.datatype == "BF16":
        values = (values.astype(np.uint32) << 16).view(np.float32)
    if values.size % num_texts or not values.size:
        raise internal(
            f"output '{tensor.name}' has shape {tensor.shape}, "
            f"expected a vector for each of {num_texts} texts"
        )
    return values.reshape(num_texts, -1).astype("<f4", copy=False)


def read_count(outputs: list[Tensor], embedding: EmbeddingSpec) -> int:
    return sum(
        int(tensor.as_numpy().sum())
        for tensor in outputs
        if embedding.count and tensor.name == embedding.count
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
