"""`backend: "tensorrtllm"` serves the tensorrt_llm model of an inflight_batcher_llm repository with
Naiad's engine. `engine_dir` is a checkpoint.

In:  input_ids, request_output_len and the other tensors that the model's config.pbtxt lists.
Out: output_ids and the tensors that go with it. As in TensorRT-LLM, streaming needs
     `model_transaction_policy { decoupled: true }`.
"""

from __future__ import annotations

import contextlib

from naiad.backends.backend import Backend, Runtime
from naiad.backends.llm.host import error_response
from naiad.backends.llm.prompt import Prompt
from naiad.backends.llm.service import Generation, LlmService
from naiad.backends.llm.tensorrtllm.parameters import read_parameters
from naiad.backends.llm.tensorrtllm.request import (
    grammar_call,
    read_prompt,
    read_request_sampling,
    reject_unusable,
)
from naiad.backends.llm.tensorrtllm.response import TensorrtllmFormat
from naiad.backends.llm.tensorrtllm.tensors import INPUTS, OUTPUTS
from naiad.backends.llm.tensors import Inputs, complete, is_decoupled
from naiad.backends.served_config import read_config
from naiad.errors import invalid_arg
from naiad.ipc.work import LoadArguments, WorkRequest, WorkResponse
from naiad.llm.generation import GenerationRequest

with contextlib.suppress(ImportError):
    # The template imports torch once for all workers.
    import naiad.llm.start.load  # noqa: F401

_NOT_DECOUPLED = "Streaming is only supported with model that is deployed using decoupled mode."


class TensorrtllmBackend(Backend):
    is_async = True
    has_ready_hook = True

    def __init__(self) -> None:
        self._service: LlmService | None = None
        self._excludes_input = False
        self._is_decoupled = False
        self._is_batched = False
        self._by_client_id: dict[str, str] = {}
        """A client's id -> the engine's id of the latest request with it, for `stop`."""

    def complete_config(self, arguments: LoadArguments) -> bytes:
        config = read_config(arguments)
        return (
            arguments.model_config
            if config.input and config.output
            else complete(arguments, INPUTS, OUTPUTS)
        )

    def load(self, arguments: LoadArguments, runtime: Runtime) -> None:
        config = read_config(arguments)
        parameters = read_parameters(config)
        if parameters.ignored:
            runtime.log(
                "WARNING",
                f"parameters without effect here: {', '.join(parameters.ignored)}",
                "tensorrtllm.py",
                0,
            )
        self._excludes_input = parameters.exclude_input_in_output
        self._is_decoupled = is_decoupled(arguments)
        self._is_batched = config.is_batched
        self._service = LlmService(arguments, runtime, parameters.options)

    def facts(self) -> dict[str, str]:
        return {} if self._service is None else self._service.model.facts()

    def execute(self, requests: list[WorkRequest]) -> list[WorkResponse | None]:
        assert self._service is not None
        return [
            self._stop(request) if _is_stop(request) else self._start(request)
            for request in requests
        ]

    def is_ready(self) -> bool:
        return self._service is not None and self._service.is_ready()

    def unload(self) -> None:
        if self._service is not None:
            self._service.close()

    def _start(self, request: WorkRequest) -> WorkResponse | None:
        assert self._service is not None
        if request.id:
            self._by_client_id[request.id] = self._service.request_id(request)
            while len(self._by_client_id) > 65536:  # ids of requests that ended long ago
                del self._by_client_id[next(iter(self._by_client_id))]
        return self._service.execute([request], self._read)[0]

    def _stop(self, request: WorkRequest) -> WorkResponse:
        """Ends the earlier request with the same id. The response to `request` itself is empty."""
        assert self._service is not None
        if not request.id:
            return error_response(
                invalid_arg("Cannot send stop request without specifying a request_id")
            )
        request_id = self._by_client_id.pop(request.id, None)
        if request_id is not None:
            self._service.finish(request_id)
        return WorkResponse([])

    def _read(self, request: WorkRequest) -> Generation:
        service = self._service
        assert service is not None
        inputs = Inputs(request)
        prompt = read_prompt(inputs)
        reject_unusable(inputs)
        is_streamed = inputs.flag("streaming")
        if is_streamed and not self._is_decoupled:
            raise invalid_arg(_NOT_DECOUPLED)
        sampling = read_request_sampling(inputs, service.model)
        generation = GenerationRequest(
            id=service.request_id(request),
            prompt=[],
            parameters=sampling,
            priority=request.priority,
            should_detokenize=bool(sampling.stop),
        )
        excludes_input = inputs.flag("exclude_input_in_output", self._excludes_input) or is_streamed
        format = TensorrtllmFormat(
            is_streamed,
            request.requested_outputs,
            [] if excludes_input else prompt,
            inputs.scalar("end_id"),
            sampling.n,
            self._is_batched,
            {
                name
                for name in (
                    "return_log_probs",
                    "return_num_input_tokens",
                    "return_num_output_tokens",
                )
                if inputs.flag(name)
            },
        )
        return Generation(generation, Prompt(tokens=prompt), format, grammar=grammar_call(inputs))


def _is_stop(request: WorkRequest) -> bool:
    return Inputs(request).flag("stop")
