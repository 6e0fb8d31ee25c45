"""Opens a language model in its worker, hosts its engine and submits requests to it. The llm, vllm
and tensorrtllm backends share this service.

In:  requests, and a reader that knows their tensors. Out: responses, sent by the host's thread; an
     error response at once for a request that cannot be read.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TypeAlias

import msgspec

from naiad.backends.backend import Runtime
from naiad.backends.llm.engine_thread import EngineThread
from naiad.backends.llm.grammar import GrammarCompiler
from naiad.backends.llm.host import EngineHost, error_response
from naiad.backends.llm.metrics import EngineMetrics
from naiad.backends.llm.model import OpenModel
from naiad.backends.llm.open import open_model
from naiad.backends.llm.options import LlmOptions
from naiad.backends.llm.pending_response import (
    PendingResponse,
    Progress,
    ResponseFormat,
    TextEncoder,
)
from naiad.backends.python.model_module import version_dir
from naiad.backends.served_config import read_config
from naiad.core.tensor import Tensor
from naiad.errors import NaiadError, internal, invalid_arg
from naiad.ipc.generation_call import (
    CALL_PARAMETER,
    CompletionPiece,
    GenerationCall,
    GenerationEvent,
    GrammarCall,
    TokenLogprob,
    event_tensor,
    read_call,
)
from naiad.ipc.work import LoadArguments, WorkRequest, WorkResponse
from naiad.llm.generation import EbnfGrammar, GenerationRequest, Grammar, TokenLogprobs

UNLOAD_LIMIT_S = 5.0


class Generation(msgspec.Struct, eq=False):
    """One request after its tensors have been read."""

    request: GenerationRequest
    format: ResponseFormat
    encode_text: TextEncoder | None = None
    """The fast path of `format`, if it has one."""


Reader: TypeAlias = Callable[[WorkRequest], Generation]
"""Reads the tensors of a request. Raises NaiadError if the request is wrong."""


class LlmService:
    def __init__(self, arguments: LoadArguments, runtime: Runtime, options: LlmOptions) -> None:
        """Opens the model. Raises NaiadError."""
        directory = Path(version_dir(arguments))
        threads = options.num_threads or read_config(arguments).openmp_threads()
        self._runtime = runtime
        thread = EngineThread()
        try:
            self.model: OpenModel = thread.call(
                lambda: open_model(
                    on_own_gpu(options, arguments),
                    [directory, Path(arguments.model_dir)],
                    threads,
                    lambda message: runtime.log("INFO", message, "service.py", 0),
                )
            )
        except BaseException:
            thread.end()
            raise
        self._grammars = GrammarCompiler(self.model)
        metrics = EngineMetrics(runtime, self.model, arguments.model_name, arguments.model_version)
        self._host = EngineHost(self.model, runtime, metrics, thread)
        self._host.start()

    def execute(self, requests: list[WorkRequest], read: Reader) -> list[WorkResponse | None]:
        self._host.gate.wait()
        return [self._accept(request, read) for request in requests]

    def _accept(self, request: WorkRequest, read: Reader) -> WorkResponse | None:
        try:
            generation = (
                self._read_call(request) if CALL_PARAMETER in request.parameters else read(request)
            )
        except NaiadError as error:
            return error_response(error)
        except Exception as error:
            self._runtime.log(
                "ERROR",
                f"reading a request failed: {type(error).__name__}: {error}",
                "service.py",
                0,
            )
            return error_response(internal(f"{type(error).__name__}: {error}"))
        self._host.submit(
            generation.request,
            PendingResponse(
                request.handle,
                generation.format,
                generation.request.parameters.n,
                generation.encode_text,
            ),
        )
        return None

    def finish(self, request_id: str) -> None:
        """Ends a request with what it has generated."""
        self._host.finish(request_id)

    def is_ready(self) -> bool:
        return self._host.is_running()

    def close(self) -> None:
        self._host.stop(UNLOAD_LIMIT_S)

    # For readers.

    def encode(self, text: str, add_special_tokens: bool = True) -> list[int]:
        """Runs on the work loop's thread, so that it does not delay the engine's steps."""
        if self.model.tokenizer is None:
            raise invalid_arg("the model has no tokenizer, expected the prompt as token ids")
        return self.model.tokenizer.encode(text, add_special_tokens)

    def grammar(self, call: GrammarCall | None) -> Grammar | EbnfGrammar | None:
        return None if call is None else self._grammars.build(call)

    def request_id(self, request: WorkRequest) -> str:
        return str(request.handle)

    def token_logprob(self, entry: TokenLogprobs) -> TokenLogprob:
        top = [self._named_logprob(token, logprob) for token, logprob in entry.top]
        return msgspec.structs.replace(self._named_logprob(entry.token, entry.logprob), top=top)

    def _named_logprob(self, token: int, logprob: float) -> TokenLogprob:
        return TokenLogprob(
            token, self.model.token_text(token), self.model.token_bytes(token), logprob
        )

    # The internal call.

    def _read_call(self, request: WorkRequest) -> Generation:
        try:
            call = read_call(str(request.parameters[CALL_PARAMETER]))
        except msgspec.MsgspecError as error:
            raise invalid_arg(f"'{CALL_PARAMETER}' cannot be read: {error}") from None
        generation = GenerationRequest(
            id=self.request_id(request),
            prompt=self._prompt(call),
            parameters=call.parameters,
            priority=call.priority,
            grammar=self.grammar(call.grammar),
            cache_salt=call.cache_salt,
            should_detokenize=self.model.tokenizer is not None,
        )
        return Generation(
            generation,
            EventFormat(self, call.is_streamed, has_logprobs=call.parameters.logprobs is not None),
        )

    def _prompt(self, call: GenerationCall) -> list[int]:
        if (call.prompt is None) == (call.messages is None):
            raise invalid_arg("expected either a prompt or messages")
        if call.messages is not None:
            text = self.model.chat.render(
                call.messages,
                call.tools,
                call.template_arguments,
                call.add_generation_prompt,
                call.chat_template,
            )
            return self.encode(text, add_special_tokens=False)
        assert call.prompt is not None
        return (
            self.encode(call.prompt, call.add_special_tokens)
            if isinstance(call.prompt, str)
            else call.prompt
        )


def on_own_gpu(options: LlmOptions, arguments: LoadArguments) -> LlmOptions:
    """Selects the instance's GPU if `instance_group` assigns one other than the first and the
    model's parameters do not set a device."""
    if (
        arguments.instance_kind != "GPU"
        or arguments.device_id < 1
        or options.settings.device != "auto"
    ):
        return options
    settings = msgspec.structs.replace(options.settings, device=f"cuda:{arguments.device_id}")
    return msgspec.structs.replace(options, settings=settings)


class EventFormat:
    """`ResponseFormat` of the internal call."""

    def __init__(self, service: LlmService, is_streamed: bool, *, has_logprobs: bool) -> None:
        self.is_streamed = is_streamed
        self._service = service
        self._has_logprobs = has_logprobs

    def encode(self, progress: Progress) -> list[Tensor]:
        pieces = [
            CompletionPiece(
                piece.index,
                piece.text,
                piece.token_ids,
                [self._service.token_logprob(entry) for entry in piece.logprobs]
                if self._has_logprobs
                else None,
                None if piece.finish_reason is None else piece.finish_reason.value,
                piece.stop_reason,
            )
            for piece in progress.pieces
        ]
        num_output_tokens = sum(progress.num_output_tokens)
        return [
            event_tensor(
                GenerationEvent(
                    pieces,
                    progress.num_prompt_tokens,
                    progress.num_cached_tokens,
                    num_output_tokens,
                )
            )
        ]
