"""Opens a language model in its worker, hosts its engine and submits requests to it. The llm, vllm
and tensorrtllm backends share this service.

In:  requests, and a reader that knows their tensors. Out: responses, sent by the host's thread; an
     error response at once for a request that cannot be read.
Rule: the work loop checks every request and prepares small ones. Texts are tokenized, chats are
      rendered, and requests that bring a grammar or a template of their own are prepared on lanes
      of their own, so that none of them waits for another kind.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TypeAlias

import msgspec

from naiad.backends.backend import Runtime
from naiad.backends.llm.engine_thread import EngineThread
from naiad.backends.llm.grammar import GrammarCompiler, import_library
from naiad.backends.llm.host import EngineHost, error_response
from naiad.backends.llm.lane import Lane
from naiad.backends.llm.metrics import EngineMetrics
from naiad.backends.llm.model import OpenModel
from naiad.backends.llm.open import open_model
from naiad.backends.llm.options import LlmOptions, with_kv_events
from naiad.backends.llm.pending_response import (
    PendingResponse,
    Progress,
    ResponseFormat,
    TextEncoder,
)
from naiad.backends.llm.prompt import Chat, Prompt, PromptReader
from naiad.backends.llm.text_process import TextProcesses
from naiad.backends.python.model_module import version_dir
from naiad.backends.served_config import read_config
from naiad.core.tensor import Tensor
from naiad.errors import NaiadError, cancelled, internal, unavailable
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
from naiad.llm import import_ahead
from naiad.llm.generation import GenerationRequest, TokenLogprobs

UNLOAD_LIMIT_S = 5.0
NUM_LANE_THREADS = 2
"""Each has a text process of its own while it works. Of two, one goes on while the other has work
that takes as long as its limit allows."""


class Generation(msgspec.Struct, eq=False):
    """One request after its tensors have been read."""

    request: GenerationRequest
    """The service fills in its prompt and grammar."""
    prompt: Prompt
    format: ResponseFormat
    encode_text: TextEncoder | None = None
    """The fast path of `format`, if it has one."""
    grammar: GrammarCall | None = None


Reader: TypeAlias = Callable[[WorkRequest], Generation]
"""Reads the tensors of a request. Raises NaiadError if the request is wrong."""


class LlmService:
    def __init__(self, arguments: LoadArguments, runtime: Runtime, options: LlmOptions) -> None:
        """Opens the model. Raises NaiadError."""
        options = with_kv_events(arguments.model_name, options, arguments.backend_config)
        directory = Path(version_dir(arguments))
        threads = options.num_threads or read_config(arguments).openmp_threads()
        self._runtime = runtime

        def log(message: str) -> None:
            runtime.log("INFO", message, "service.py", 0)

        self._text_processes = TextProcesses(log)
        self._text_processes.start()
        if options.engine != "openvino":
            import_library()
        self._shares_prefixes = options.settings.share_prefix_cache
        thread = EngineThread()
        try:
            self.model: OpenModel = thread.call(
                lambda: open_model(
                    on_own_device(options, arguments),
                    [directory, Path(arguments.model_dir)],
                    threads,
                    self._text_processes,
                    log,
                )
            )
        except BaseException:
            thread.end()
            self._text_processes.close()
            raise
        import_ahead.join()
        if self.model.tokenizer is not None:
            self._text_processes.expect_tokenizer(self.model.tokenizer.fingerprint())
        self._grammars = GrammarCompiler(self.model, self._text_processes)
        self._prompts = PromptReader(self.model, options.settings, self._text_processes)
        self._text_lane = Lane("text", NUM_LANE_THREADS)
        self._chat_lane = Lane("chat", NUM_LANE_THREADS)
        self._program_lane = Lane("program", NUM_LANE_THREADS)
        self._max_preparing = options.settings.max_waiting_requests
        self._preparing: dict[str, bool] = {}
        """Requests on a lane -> whether somebody has asked for their end meanwhile."""
        self._preparing_lock = threading.Lock()
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
            self._add_owner(generation.request, request)
            self._prompts.check(generation.prompt)
            if generation.grammar is not None:
                generation.grammar.check()
            lane = self._lane(generation)
            if lane is None:
                self._prepare(generation)
                self._submit(generation, request.handle)
            else:
                self._put(lane, generation, request.handle)
        except Exception as error:
            return error_response(self._failure(error))
        return None

    def _add_owner(self, generation: GenerationRequest, request: WorkRequest) -> None:
        generation.key_id, generation.key_weight = request.key_id, request.key_weight
        if not self._shares_prefixes:
            generation.cache_owner = request.key_id

    def _failure(self, error: Exception) -> NaiadError:
        if isinstance(error, NaiadError):
            return error
        message = f"{type(error).__name__}: {error}"
        self._runtime.log("ERROR", f"reading a request failed: {message}", "service.py", 0)
        return internal(message)

    def _lane(self, generation: Generation) -> Lane | None:
        """Returns None if the request can be prepared at once."""
        prompt = generation.prompt
        if generation.grammar is not None or (prompt.chat is not None and prompt.chat.template):
            return self._program_lane
        if prompt.chat is not None:
            return self._chat_lane
        return None if prompt.is_small else self._text_lane

    def _put(self, lane: Lane, generation: Generation, handle: int) -> None:
        with self._preparing_lock:
            if len(self._preparing) >= self._max_preparing:
                raise unavailable(
                    f"{len(self._preparing)} requests are being prepared already, the limit is "
                    f"{self._max_preparing}",
                    1,
                )
            self._preparing[generation.request.id] = False
        lane.put(partial(self._prepare_later, generation, handle))

    def _prepare_later(self, generation: Generation, handle: int) -> None:
        """Runs on a lane."""
        request_id = generation.request.id
        self._host.gate.wait()
        try:
            if self._runtime.is_cancelled(handle):
                raise cancelled("the request was cancelled")
            self._prepare(generation)
        except Exception as error:
            self._preparing.pop(request_id, None)
            response = error_response(self._failure(error))
            self._runtime.respond_many([(handle, response, True)])
            return
        self._submit(generation, handle)
        with self._preparing_lock:
            is_ended = self._preparing.pop(request_id, False)
        if is_ended:
            self._host.finish(request_id)

    def _prepare(self, generation: Generation) -> None:
        """Raises NaiadError."""
        request = generation.request
        request.prompt = self._prompts.read(generation.prompt)
        if generation.grammar is not None:
            request.grammar = self._grammars.build(generation.grammar)

    def _submit(self, generation: Generation, handle: int) -> None:
        self._host.submit(
            generation.request,
            PendingResponse(
                handle,
                generation.format,
                generation.request.parameters.n,
                generation.encode_text,
            ),
        )

    def finish(self, request_id: str) -> None:
        """Ends a request with what it has generated."""
        with self._preparing_lock:
            if request_id in self._preparing:
                self._preparing[request_id] = True
                return
        self._host.finish(request_id)

    def is_ready(self) -> bool:
        return self._host.is_running()

    def close(self) -> None:
        self._host.stop(UNLOAD_LIMIT_S)
        for lane in (self._text_lane, self._chat_lane, self._program_lane):
            lane.close()
        self._text_processes.close()

    # For readers.

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
        call = read_call(str(request.parameters[CALL_PARAMETER]))
        generation = GenerationRequest(
            id=self.request_id(request),
            prompt=[],
            parameters=call.parameters,
            priority=call.priority,
            cache_salt=call.cache_salt,
            group=call.group,
            prompt_logprobs=call.prompt_logprobs,
            should_detokenize=self.model.tokenizer is not None,
        )
        return Generation(
            generation,
            _prompt(call),
            EventFormat(self, call.is_streamed, has_logprobs=call.parameters.logprobs is not None),
            grammar=call.grammar,
        )


def _prompt(call: GenerationCall) -> Prompt:
    if call.messages is not None:
        return Prompt(
            chat=Chat(
                call.messages,
                call.tools,
                call.template_arguments,
                call.add_generation_prompt,
                call.chat_template,
                call.continue_final_message,
            ),
            num_kept=call.num_kept,
        )
    if isinstance(call.prompt, str):
        return Prompt(
            text=call.prompt, add_special_tokens=call.add_special_tokens, num_kept=call.num_kept
        )
    tokens = call.prompt or []
    return Prompt(tokens=tokens[-call.num_kept :] if call.num_kept else tokens)


def on_own_device(options: LlmOptions, arguments: LoadArguments) -> LlmOptions:
    """Selects the instance's device: the GPU that `instance_group` assigns, if it is not the first
    one and the model's parameters do not set a device. Of devices that torch does not call cuda,
    and that the parameters name without a number, each instance has its own."""
    device = options.settings.device
    if device == "auto" and arguments.instance_kind == "GPU" and arguments.device_id > 0:
        chosen = f"cuda:{arguments.device_id}"
    elif device in ("auto", "cpu", "cuda", "rocm"):
        return options
    else:
        from naiad.llm.accelerator import instance_device  # imports torch

        chosen = instance_device(device, int(arguments.instance_name.rpartition("_")[2]))
    settings = msgspec.structs.replace(options.settings, device=chosen)
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
                None
                if piece.prompt_logprobs is None
                else [self._service.token_logprob(entry) for entry in piece.prompt_logprobs],
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
