"""How many tokens a request may use, as far as the server knows before a worker has tokenized it.

The estimate is reserved from the limits of an API key. Endpoints that learn the real numbers settle
it when the request ends.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

import msgspec

from naiad.core.request import InferRequest
from naiad.ipc.generation_call import LANGUAGE_BACKENDS, GenerationCall

if TYPE_CHECKING:
    from naiad.repository.model import Model

BYTES_PER_TOKEN = 4
"""A usual figure for English text; other texts have more tokens, and the settlement corrects it."""
DEFAULT_OUTPUT_TOKENS = 1024
"""Reserved for a request that does not limit its output."""


def is_language(model: Model) -> bool:
    return model.config.backend in LANGUAGE_BACKENDS


def estimate_call_tokens(calls: Iterable[GenerationCall]) -> int:
    return sum(_prompt_tokens(call) + _output_tokens(call) for call in calls)


def estimate_tokens(request: InferRequest) -> int:
    """For a request of Triton's protocol, whose parameters only the backend understands."""
    num_bytes = sum(len(tensor.data) for tensor in request.inputs)
    return _ceil(num_bytes) + DEFAULT_OUTPUT_TOKENS


def estimate_text_tokens(num_bytes: int) -> int:
    return _ceil(num_bytes)


def _prompt_tokens(call: GenerationCall) -> int:
    prompt = call.prompt
    if isinstance(prompt, list):
        return len(prompt)
    if prompt is not None:
        return _ceil(len(prompt.encode("utf-8", "replace")))
    return _ceil(len(msgspec.json.encode([call.messages, call.tools])))


def _output_tokens(call: GenerationCall) -> int:
    limit = call.parameters.max_tokens
    return max(1, call.parameters.n) * (DEFAULT_OUTPUT_TOKENS if limit is None else max(0, limit))


def _ceil(num_bytes: int) -> int:
    return -(-num_bytes // BYTES_PER_TOKEN)
