"""A core with language models that a test answers by hand, and an embedding model, behind the real
HTTP frontend."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Iterable
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
from naiad.pb.model_config_pb2 import ModelConfig
from tests.wire.http_fakes import (
    FakeCore,
    FakeModel,
    Held,
    HttpServer,
    model,
    respond,
    serving,
    tensor_spec,
)


class LanguageCore(FakeCore):
    """Models `chat` and `other` are held; `whole` is not decoupled; `embed` answers at once."""

    def __init__(self) -> None:
        super().__init__()
        self.is_exiting = False
        self.loaded_models = self._all
        self.batches: list[int] = []
        text, out = (
            tensor_spec("text_input", "BYTES", [1], 0, is_optional=True),
            tensor_spec("text_output", "BYTES", [-1], 0),
        )
        for name in ("chat", "other", "whole"):
            self.models[name] = model(name, [text], [out], self._hold, is_decoupled=name != "whole")
        vector = tensor_spec("EMBEDDING", "FP32", [3], 4)
        self.models["embed"] = model(
            "embed", [tensor_spec("TEXT", "BYTES", [1], 4)], [vector], self._embed, max_batch_size=4
        )
        for each in self.models.values():
            each.config = ModelConfig(  # type: ignore[attr-defined]
                backend="llm" if each.spec.name in ("chat", "other", "whole") else "python"
            )
            each.is_serving, each.name = True, each.spec.name  # type: ignore[attr-defined]

    def _all(self) -> Iterable[FakeModel]:
        return self.models.values()

    def _embed(self, request: InferRequest, stream: ResponseStream, spec: ModelSpec) -> None:
        texts = request.inputs[0].as_numpy().ravel().tolist()
        self.batches.append(len(texts))
        rows = np.array([[len(text), 0.5, -1] for text in texts], np.float32)
        respond(request, stream, [tensor_from_numpy("EMBEDDING", rows)])

    def set_defaults(self, name: str, text: str) -> None:
        self.models[name].config.parameters["sampling_defaults"].string_value = text  # type: ignore[attr-defined]

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


@contextlib.asynccontextmanager
async def language_server() -> AsyncIterator[tuple[LanguageCore, HttpServer]]:
    core = LanguageCore()
    async with serving(core=core) as server:
        yield core, server
