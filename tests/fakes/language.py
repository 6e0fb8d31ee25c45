"""A core with language models that a test responds for, and an embedding model."""

from __future__ import annotations

from typing import Any

import numpy as np

from naiad.core.model_spec import ModelSpec
from naiad.core.request import InferRequest
from naiad.core.response import ResponseStream
from naiad.core.tensor import tensor_from_numpy
from naiad.ipc.generation_call import (
    CALL_PARAMETER,
    CompletionPiece,
    GenerationCall,
    GenerationEvent,
    event_tensor,
    read_call,
)
from tests.fakes.core import FakeCore, Held
from tests.fakes.model import FakeModel, model_spec, respond, tensor_spec


class LanguageCore(FakeCore):
    """Requests of the models `chat`, `other` and `whole`, which is not decoupled, wait for the
    test; `embed` responds at once."""

    def __init__(self) -> None:
        super().__init__()
        self.batches: list[int] = []
        """Texts in each request of `embed`."""
        text = tensor_spec("text_input", "BYTES", [1], is_optional=True)
        out = tensor_spec("text_output", "BYTES", [-1])
        for name in ("chat", "other", "whole"):
            spec = model_spec(name, [text], [out], is_decoupled=name != "whole")
            self.models[name] = FakeModel(spec, self.hold)
            self.models[name].config.backend = "llm"
        texts, vector = (
            tensor_spec("TEXT", "BYTES", [1], 4),
            tensor_spec("EMBEDDING", "FP32", [3], 4),
        )
        embed = model_spec("embed", [texts], [vector], max_batch_size=4)
        self.models["embed"] = FakeModel(embed, self._embed)

    def _embed(self, request: InferRequest, stream: ResponseStream, spec: ModelSpec) -> None:
        texts = request.inputs[0].as_numpy().ravel().tolist()
        self.batches.append(len(texts))
        rows = np.array([[len(text), 0.5, -1] for text in texts], np.float32)
        respond(request, stream, [tensor_from_numpy("EMBEDDING", rows)])

    def set_defaults(self, name: str, text: str) -> None:
        self.models[name].config.parameters["sampling_defaults"].string_value = text

    async def next_call(self) -> tuple[GenerationCall, Held]:
        held = await self.next_held()
        return read_call(str(held.request.parameters[CALL_PARAMETER])), held


def say(
    held: Held,
    *pieces: CompletionPiece,
    is_final: bool = False,
    num_output: int = 0,
    num_cached: int = 0,
) -> None:
    event = GenerationEvent(
        list(pieces), 7, num_cached, num_output or sum(len(piece.token_ids) for piece in pieces)
    )
    respond(held.request, held.stream, [event_tensor(event)], is_final=is_final)


def piece(text: str, index: int = 0, finish: str | None = None, **more: Any) -> CompletionPiece:
    return CompletionPiece(
        index, text, [1] * max(1, len(text.split())), finish_reason=finish, **more
    )
