"""`backend: "llm"` serves a language model from a checkpoint, with in-flight batching.
docs/llm-backend.md lists its tensors.

In:  a prompt (text, messages or tokens) and sampling parameters. Out: one response per step for a
     stream, else one response per request.
"""

from __future__ import annotations

import contextlib
import json
from typing import Any

import msgspec

from naiad.backends.backend import Backend, Runtime
from naiad.backends.llm.options import read_options
from naiad.backends.llm.pending_response import Piece, Progress, TextEncoder
from naiad.backends.llm.prompt import Chat, Prompt
from naiad.backends.llm.sampling import (
    as_list,
    is_forwarded_header,
    read_json_object,
    read_sampling,
)
from naiad.backends.llm.service import Generation, LlmService
from naiad.backends.llm.tensors import (
    Inputs,
    complete,
    is_decoupled,
    number_tensor,
    tensor,
    text_tensor,
)
from naiad.backends.served_config import read_config
from naiad.core.tensor import Tensor
from naiad.errors import invalid_arg
from naiad.ipc.work import LoadArguments, WorkRequest, WorkResponse
from naiad.llm.generation import GenerationRequest

with contextlib.suppress(ImportError):
    # The template imports torch once for all workers. Without torch, OpenVINO serves the model.
    import naiad.llm.start.load  # noqa: F401

INPUTS = [
    tensor("text_input", "TYPE_STRING", [1], is_optional=True),
    tensor("messages", "TYPE_STRING", [1], is_optional=True),
    tensor("input_ids", "TYPE_INT32", [-1], is_optional=True),
    tensor("stream", "TYPE_BOOL", [1], is_optional=True),
    tensor("sampling_parameters", "TYPE_STRING", [1], is_optional=True),
    tensor("stop", "TYPE_STRING", [-1], is_optional=True),
    tensor("stop_words", "TYPE_STRING", [-1], is_optional=True),
    tensor("bad_words", "TYPE_STRING", [-1], is_optional=True),
    tensor("exclude_input_in_output", "TYPE_BOOL", [1], is_optional=True),
]
OUTPUTS = [
    tensor("text_output", "TYPE_STRING", [-1]),
    tensor("finish_reason", "TYPE_STRING", [-1]),
    tensor("index", "TYPE_INT32", [-1]),
    tensor("token_ids", "TYPE_INT32", [-1]),
    tensor("num_token_ids", "TYPE_INT32", [-1]),
    tensor("logprobs", "TYPE_STRING", [-1]),
    tensor("num_input_tokens", "TYPE_UINT32", [1]),
    tensor("num_cached_tokens", "TYPE_UINT32", [1]),
    tensor("num_output_tokens", "TYPE_UINT32", [1]),
]
PROMPTS = ("text_input", "messages", "input_ids")


class LlmBackend(Backend):
    is_async = True
    """`execute` only submits requests, so batches are accepted while earlier ones are running."""
    has_ready_hook = True

    def __init__(self) -> None:
        self._service: LlmService | None = None
        self._defaults: dict[str, Any] = {}
        self._is_decoupled = True

    def complete_config(self, arguments: LoadArguments) -> bytes:
        return complete(arguments, INPUTS, OUTPUTS)

    def load(self, arguments: LoadArguments, runtime: Runtime) -> None:
        options = read_options(read_config(arguments))
        self._defaults = options.sampling_defaults
        self._is_decoupled = is_decoupled(arguments)
        self._service = LlmService(arguments, runtime, options)

    def facts(self) -> dict[str, str]:
        return {} if self._service is None else self._service.model.facts()

    def execute(self, requests: list[WorkRequest]) -> list[WorkResponse | None]:
        assert self._service is not None
        return self._service.execute(requests, self._read)

    def is_ready(self) -> bool:
        return self._service is not None and self._service.is_ready()

    def unload(self) -> None:
        if self._service is not None:
            self._service.close()

    def _read(self, request: WorkRequest) -> Generation:
        assert self._service is not None
        inputs = Inputs(request)
        is_streamed = inputs.flag("stream")
        if is_streamed and not self._is_decoupled:
            raise invalid_arg(
                "input 'stream' is true, but the model's transaction policy is not decoupled"
            )
        values = {
            **self._defaults,
            **read_json_object("sampling_parameters", inputs.text("sampling_parameters") or "{}"),
        }
        values.update(
            {
                name: value
                for name, value in request.parameters.items()
                if not is_forwarded_header(name)
            }
        )
        for name in ("stop", "stop_words", "bad_words"):
            if name in inputs:
                values[name] = inputs.texts(name)
        if "stop_words" in values:  # TensorRT-LLM's name
            values["stop"] = [*as_list(values.get("stop")), *as_list(values.pop("stop_words"))]
        parameters = read_sampling(values)
        prompt = self._prompt(inputs)
        generation = GenerationRequest(
            id=self._service.request_id(request),
            prompt=[],
            parameters=parameters,
            priority=request.priority,
            should_detokenize=self._service.model.tokenizer is not None,
        )
        text = "" if inputs.flag("exclude_input_in_output", True) else prompt.text or ""
        format = TensorFormat(
            self._service,
            is_streamed,
            request.requested_outputs,
            text,
            parameters.n,
            parameters.logprobs is not None,
        )
        return Generation(generation, prompt, format, format.text_encoder)

    def _prompt(self, inputs: Inputs) -> Prompt:
        names = [name for name in PROMPTS if name in inputs]
        if len(names) != 1:
            raise invalid_arg(
                f"expected one of the inputs {', '.join(PROMPTS)}, "
                f"got {' and '.join(names) or 'none'}"
            )
        if names[0] == "input_ids":
            return Prompt(tokens=inputs.integers("input_ids") or [])
        text = inputs.text(names[0]) or ""
        return (
            Prompt(text=text)
            if names[0] == "text_input"
            else Prompt(chat=Chat(read_messages(text)))
        )


def read_messages(text: str) -> list[dict[str, Any]]:
    try:
        return msgspec.json.decode(text, type=list[dict[str, Any]])
    except msgspec.MsgspecError as error:
        raise invalid_arg(f"input 'messages' is not a JSON array of objects: {error}") from None


class TensorFormat:
    """`ResponseFormat` of naiad.backends.llm.pending_response, with the requested outputs."""

    def __init__(
        self,
        service: LlmService,
        is_streamed: bool,
        requested: list[str],
        prefix: str,
        n: int,
        has_logprobs: bool,
    ) -> None:
        self.is_streamed = is_streamed
        self._service = service
        self._requested = frozenset(requested)
        self._prefixes = dict.fromkeys(range(n), prefix) if prefix else {}
        self._is_plain = not requested and not has_logprobs
        self.text_encoder: TextEncoder | None = (
            encode_text if self._is_plain and is_streamed and n == 1 and not prefix else None
        )
        self._has_index = n > 1
        self._has_logprobs = has_logprobs

    def encode(self, progress: Progress) -> list[Tensor] | None:
        pieces = progress.pieces
        has_end = any(piece.finish_reason is not None for piece in pieces)
        if self._is_plain and not has_end and not any(piece.text for piece in pieces):
            return None
        outputs = [
            text_tensor(
                "text_output",
                [self._prefixes.pop(piece.index, "") + piece.text for piece in pieces],
            )
        ]
        if self._requested or has_end:
            outputs.append(text_tensor("finish_reason", [_reason(piece) for piece in pieces]))
        if self._requested or self._has_index:
            outputs.append(number_tensor("index", "INT32", [piece.index for piece in pieces]))
        if self._has_logprobs:
            outputs.append(text_tensor("logprobs", [self._logprobs(piece) for piece in pieces]))
        if self._requested:
            outputs += self._counts(progress)
            return [output for output in outputs if output.name in self._requested]
        return outputs

    def _counts(self, progress: Progress) -> list[Tensor]:
        tokens = [token for piece in progress.pieces for token in piece.token_ids]
        return [
            number_tensor("token_ids", "INT32", tokens),
            number_tensor(
                "num_token_ids", "INT32", [len(piece.token_ids) for piece in progress.pieces]
            ),
            number_tensor("num_input_tokens", "UINT32", [progress.num_prompt_tokens]),
            number_tensor("num_cached_tokens", "UINT32", [progress.num_cached_tokens]),
            number_tensor("num_output_tokens", "UINT32", [sum(progress.num_output_tokens)]),
        ]

    def _logprobs(self, piece: Piece) -> str:
        entries = [self._service.token_logprob(entry) for entry in piece.logprobs]
        return json.dumps(
            [
                {**_described(entry), "top": [_described(other) for other in entry.top]}
                for entry in entries
            ]
        )


def encode_text(text: str) -> list[Tensor]:
    data = text.encode()
    return [Tensor("text_output", "BYTES", [1], len(data).to_bytes(4, "little") + data)]


def _described(entry: Any) -> dict[str, Any]:
    return {"token_id": entry.token_id, "token": entry.text, "logprob": entry.logprob}


def _reason(piece: Piece) -> str:
    return "" if piece.finish_reason is None else piece.finish_reason.value
