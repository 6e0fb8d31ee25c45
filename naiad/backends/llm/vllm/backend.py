"""`backend: "vllm"` serves repositories written for Triton's vLLM backend with Naiad's engine. The
tensors and defaults are those of that backend.

In:  text_input and sampling_parameters (or request parameters). Out: text_output and the outputs
     that the return_* inputs ask for.
"""

from __future__ import annotations

import contextlib
import json
from pathlib import Path
from typing import Any

import msgspec

from naiad.backends.backend import Backend, Runtime
from naiad.backends.llm.pending_response import Piece, Progress
from naiad.backends.llm.prompt import Prompt
from naiad.backends.llm.sampling import is_forwarded_header, read_json_object
from naiad.backends.llm.service import Generation, LlmService
from naiad.backends.llm.tensors import (
    Inputs,
    complete,
    is_decoupled,
    number_tensor,
    tensor,
    text_tensor,
)
from naiad.backends.llm.vllm.arguments import ENGINE_FILE, LORA_FILE, read_arguments
from naiad.backends.llm.vllm.sampling import read_vllm_sampling
from naiad.backends.python.model_module import version_dir
from naiad.core.tensor import Tensor
from naiad.errors import invalid_arg
from naiad.ipc.generation_call import GrammarCall
from naiad.ipc.work import LoadArguments, WorkRequest, WorkResponse
from naiad.llm.generation import GenerationRequest

with contextlib.suppress(ImportError):
    # The template imports torch once for all workers.
    import naiad.llm.start.load  # noqa: F401

_FLAGS = (
    "stream", "exclude_input_in_output", "return_finish_reason", "return_cumulative_logprob",
    "return_logprobs",
    "return_num_input_tokens", "return_num_output_tokens",
)  # fmt: skip
INPUTS = [
    tensor("text_input", "TYPE_STRING", [1]),
    tensor("image", "TYPE_STRING", [-1], is_optional=True),
    *(tensor(name, "TYPE_BOOL", [1], is_optional=True) for name in _FLAGS),
    tensor("sampling_parameters", "TYPE_STRING", [1], is_optional=True),
    tensor("embedding_request", "TYPE_STRING", [1], is_optional=True),
]
OUTPUTS = [
    tensor("text_output", "TYPE_STRING", [-1]),
    tensor("finish_reason", "TYPE_STRING", [-1]),
    tensor("cumulative_logprob", "TYPE_FP32", [-1]),
    tensor("logprobs", "TYPE_STRING", [-1]),
    tensor("num_input_tokens", "TYPE_UINT32", [1]),
    tensor("num_output_tokens", "TYPE_UINT32", [-1]),
]


class VllmBackend(Backend):
    is_async = True
    has_ready_hook = True

    def __init__(self) -> None:
        self._service: LlmService | None = None
        self._is_decoupled = True

    def complete_config(self, arguments: LoadArguments) -> bytes:
        return complete(arguments, INPUTS, OUTPUTS)

    def load(self, arguments: LoadArguments, runtime: Runtime) -> None:
        directory = Path(version_dir(arguments))
        if (directory / LORA_FILE).exists():
            raise invalid_arg(
                f"model '{arguments.model_name}' has a {LORA_FILE}, "
                f"but LoRA adapters are not supported"
            )
        options, ignored = read_arguments(arguments.model_name, directory / ENGINE_FILE)
        if ignored:
            runtime.log(
                "WARNING",
                f"{ENGINE_FILE}: no effect here: {', '.join(ignored)}",
                "vllm.py",
                0,
            )
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
        service = self._service
        assert service is not None
        inputs = Inputs(request)
        for name in ("image", "embedding_request"):
            if name in inputs:
                raise invalid_arg(
                    f"input '{name}' cannot be used: the model generates text from text"
                )
        flags = _Flags.read(inputs)
        if flags.stream and not self._is_decoupled:
            raise invalid_arg("Streaming is only supported in decoupled mode.")
        text = inputs.text("sampling_parameters")
        if text is not None:
            values = read_json_object("sampling_parameters", text or "{}")
        else:
            values = {
                name: value
                for name, value in request.parameters.items()
                if not is_forwarded_header(name)
            }
        needs_logprobs = flags.return_logprobs or flags.return_cumulative_logprob
        sampling = read_vllm_sampling(values, needs_logprobs=needs_logprobs)
        prompt = inputs.text("text_input") or ""
        generation = GenerationRequest(
            id=service.request_id(request),
            prompt=[],
            parameters=sampling.parameters,
            priority=request.priority,
        )
        prefix = prompt if flags.prepends_input else ""
        return Generation(
            generation,
            Prompt(text=prompt, num_kept=sampling.truncate_prompt_tokens),
            VllmFormat(service, flags, prefix, sampling.parameters.n),
            grammar=_grammar(sampling.guided_decoding),
        )


class _Flags(msgspec.Struct, frozen=True):
    stream: bool
    prepends_input: bool
    return_finish_reason: bool
    return_cumulative_logprob: bool
    return_logprobs: bool
    return_num_input_tokens: bool
    return_num_output_tokens: bool

    @classmethod
    def read(cls, inputs: Inputs) -> _Flags:
        stream = inputs.flag("stream")
        # By default the prompt is part of a whole response but not of a stream.
        prepends_input = not inputs.flag("exclude_input_in_output", stream)
        if prepends_input and stream:
            raise invalid_arg("When streaming, `exclude_input_in_output` = False is not allowed.")
        return cls(stream, prepends_input, *(inputs.flag(name) for name in _FLAGS[2:]))


def _grammar(guided: dict[str, Any] | None) -> GrammarCall | None:
    if not guided:
        return None
    for name, kind in (
        ("json", "json_schema"),
        ("regex", "regex"),
        ("grammar", "ebnf"),
        ("structural_tag", "structural_tag"),
    ):
        value = guided.get(name)
        if value is not None:
            return GrammarCall(kind, value if isinstance(value, str) else json.dumps(value))
    if guided.get("json_object"):
        return GrammarCall("json_object")
    if isinstance(guided.get("choice"), list):
        return GrammarCall(
            "ebnf", "root ::= " + " | ".join(json.dumps(str(choice)) for choice in guided["choice"])
        )
    raise invalid_arg(
        f"guided_decoding has {', '.join(guided)}, "
        f"expected json, regex, choice, grammar or json_object"
    )


class VllmFormat:
    """`ResponseFormat` of naiad.backends.llm.pending_response."""

    def __init__(self, service: LlmService, flags: _Flags, prefix: str, n: int) -> None:
        self.is_streamed = flags.stream
        self._service = service
        self._flags = flags
        self._prefix = prefix
        self._cumulative = [0.0] * n

    def encode(self, progress: Progress) -> list[Tensor]:
        flags, pieces = self._flags, progress.pieces
        outputs = [text_tensor("text_output", [self._prefix + piece.text for piece in pieces])]
        if flags.return_finish_reason:
            # str(None) while a completion continues: clients of Triton's backend compare with it.
            outputs.append(
                text_tensor("finish_reason", [str(piece.finish_reason) for piece in pieces])
            )
        if flags.return_cumulative_logprob:
            outputs.append(
                number_tensor(
                    "cumulative_logprob", "FP32", [self._add_logprobs(piece) for piece in pieces]
                )
            )
        if flags.return_logprobs:
            outputs.append(text_tensor("logprobs", [self._logprobs(piece) for piece in pieces]))
        if flags.return_num_input_tokens:
            outputs.append(
                number_tensor("num_input_tokens", "UINT32", [progress.num_prompt_tokens])
            )
        if flags.return_num_output_tokens:
            outputs.append(
                number_tensor(
                    "num_output_tokens", "UINT32", [len(piece.token_ids) for piece in pieces]
                )
            )
        return outputs

    def _add_logprobs(self, piece: Piece) -> float:
        self._cumulative[piece.index] += sum(entry.logprob for entry in piece.logprobs)
        return self._cumulative[piece.index]

    def _logprobs(self, piece: Piece) -> str:
        """Returns a JSON list with one object per token: token id -> logprob, rank and text, for
        the chosen token and the most likely ones."""
        entries = []
        for entry in piece.logprobs:
            ranked = {token: (logprob, rank) for rank, (token, logprob) in enumerate(entry.top, 1)}
            ranked.setdefault(entry.token, (entry.logprob, 0))
            entries.append(
                {
                    str(token): {
                        "logprob": logprob,
                        "rank": rank or None,
                        "decoded_token": self._service.model.token_text(token),
                    }
                    for token, (logprob, rank) in ranked.items()
                }
            )
        return json.dumps(entries)
