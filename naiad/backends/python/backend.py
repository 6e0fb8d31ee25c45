"""The Python backend: runs a Triton `model.py` in this worker process.

In:  batches of WorkRequests from the worker. Out: a WorkResponse per request, or None if a response
     sender responds.
Rule: every request ends exactly once, even if the model raises, returns an unusable value, exits or
      drops a response sender.
"""

from __future__ import annotations

import asyncio
import inspect
import json
import os
import sys
from collections.abc import Awaitable, Callable
from typing import Any

from naiad.backends.backend import Backend, Runtime
from naiad.backends.python import pb_utils
from naiad.backends.python.config import ModelConfig, completed_config
from naiad.backends.python.core_share import share_cores
from naiad.backends.python.import_ahead import leading_imports, run_imports
from naiad.backends.python.instance import AWAITED_HANDLES, Instance, install
from naiad.backends.python.model_fault import client_message, log_lines, place
from naiad.backends.python.model_module import import_model_class, version_dir
from naiad.backends.python.ready_check import ReadyCheck
from naiad.backends.python.request import (
    TRITONSERVER_REQUEST_RELEASE_RESCHEDULE,
    InferenceRequest,
    received_request,
)
from naiad.backends.python.reshape import read_reshapes
from naiad.backends.python.response import InferenceResponse, encode_response
from naiad.errors import Code, NaiadError, internal
from naiad.ipc.work import (
    LoadArguments,
    WorkError,
    WorkRequest,
    WorkResponse,
)

Responses = list[WorkResponse | None]
Execute = Callable[[list[InferenceRequest]], Any]


class UnusableReturnError(Exception):
    """`execute` returned a value that cannot be a response. The message gives the reason."""


def _not_loaded(batch: list[InferenceRequest]) -> Any:
    raise UnusableReturnError("the model instance is not loaded")


class PythonBackend(Backend):
    def __init__(self) -> None:
        self._model_class: type[Any] | None = None
        self._model: Any = None
        self._execute: Execute = _not_loaded
        self._instance = Instance("", "")
        self._server_dirs: tuple[str, ...] = ()
        self._ready: ReadyCheck | None = None
        self._can_reschedule = False
        self.is_async = False
        """True if `execute` is a coroutine function, so that the worker must run an event loop."""
        self.has_ready_hook = False

    # Load and unload.

    @classmethod
    def import_ahead(cls, arguments: LoadArguments) -> None:
        pb_utils.register()
        share_cores(arguments)
        run_imports(leading_imports(arguments))

    def complete_config(self, arguments: LoadArguments) -> bytes:
        self._enter(arguments, Instance(arguments.instance_name, version_dir(arguments)))
        try:
            complete = getattr(self._import(arguments), "auto_complete_config", None)
            if complete is None:
                return arguments.model_config
            completed = complete(ModelConfig(arguments.model_config))
        except BaseException as error:
            raise self._load_error(error) from None
        if not isinstance(completed, ModelConfig):
            raise internal(
                f"auto_complete_config function in model '{arguments.model_name}' must return a "
                "valid pb.ModelConfig object."
            )
        return completed_config(arguments.model_config, completed)

    def load(self, arguments: LoadArguments, runtime: Runtime) -> None:
        config = json.loads(arguments.model_config)
        output_names = frozenset(output["name"] for output in config.get("output", ()))
        is_decoupled = pb_utils.using_decoupled_model_transaction_policy(config)
        instance = Instance(
            arguments.instance_name, version_dir(arguments), runtime, is_decoupled, output_names
        )
        instance.reshapes = read_reshapes(config)
        self._enter(arguments, instance)
        try:
            self._model = self._import(arguments)()
            if hasattr(self._model, "initialize"):
                self._model.initialize(_initialize_arguments(arguments))
        except BaseException as error:
            raise self._load_error(error) from None
        self._execute = getattr(self._model, "execute", None) or _missing_execute(arguments)
        self.is_async = inspect.iscoroutinefunction(self._execute)
        self._can_reschedule = bool(config.get("sequence_batching", {}).get("iterative_sequence"))
        self.has_ready_hook = hasattr(self._model, "is_ready")
        if self.has_ready_hook:
            self._ready = ReadyCheck(self._model.is_ready, instance)
        instance.is_serving = True

    def unload(self) -> None:
        self._instance.is_serving = False
        if self._model is None or not hasattr(self._model, "finalize"):
            return
        try:
            self._model.finalize()
        except BaseException as error:
            message = f"finalize() of model '{self._instance.name}' failed: {log_lines(error)}"
            self._instance.runtime.log("ERROR", message, *place(error))

    def is_ready(self) -> bool:
        """Runs the model's own `is_ready` hook. Returns True if it has none."""
        return self._ready is None or self._ready.check()

    async def is_ready_async(self) -> bool:
        """Like `is_ready`, on the event loop that an `async def execute` uses."""
        return self._ready is None or await self._ready.check_async()

    # Execution.

    def execute(self, requests: list[WorkRequest]) -> Responses | Awaitable[Responses]:
        instance = self._instance
        if instance.reshapes is not None:
            instance.reshapes.to_model(requests)
        batch = [received_request(request, instance) for request in requests]
        instance.begin(requests)
        try:
            returned = self._execute(batch)
            if returned.__class__ is not list and hasattr(returned, "__await__"):
                return self._await(requests, batch, returned)
            return self._collect(batch, returned)
        except BaseException as error:
            return self._fail(batch, error)
        finally:
            instance.end()

    async def _await(
        self, requests: list[WorkRequest], batch: list[InferenceRequest], returned: Awaitable[Any]
    ) -> Responses:
        AWAITED_HANDLES.set([request.handle for request in requests])
        try:
            return self._collect(batch, await returned)
        except asyncio.CancelledError as error:
            task = asyncio.current_task()
            if task is not None and task.cancelling():
                raise
            return self._fail(batch, error)
        except BaseException as error:
            return self._fail(batch, error)

    def _collect(self, batch: list[InferenceRequest], returned: Any) -> Responses:
        """Raises UnusableReturnError, or TritonModelException if an output cannot be encoded."""
        if returned is None:
            return [self._defer(request) for request in batch]
        if self._instance.is_decoupled:
            raise UnusableReturnError(
                f"Python model '{self._instance.name}' is using the decoupled mode and the execute "
                "function must return None."
            )
        if not isinstance(returned, list):
            raise UnusableReturnError(
                f"Expected a list in the execute return, found type '{type(returned)}'."
            )
        if len(returned) != len(batch):
            raise UnusableReturnError(
                "Number of InferenceResponse objects do not match the number of InferenceRequest "
                f"objects. InferenceRequest(s) size is:{len(batch)}, and InferenceResponse(s) size "
                f"is:{len(returned)}\n"
            )
        return [
            self._respond(request, response)
            for request, response in zip(batch, returned, strict=True)
        ]

    def _respond(self, request: InferenceRequest, response: Any) -> WorkResponse | None:
        if response is None:
            return self._defer(request)
        if request._release_flags & TRITONSERVER_REQUEST_RELEASE_RESCHEDULE:
            raise UnusableReturnError(
                "Expected a None object in the execute function return list for reschduled "
                f"request, found type '{type(response)}'."
            )
        if not isinstance(response, InferenceResponse):
            raise UnusableReturnError(
                "Expected an 'InferenceResponse' object in the execute function return list, found "
                f"type '{type(response)}'."
            )
        if request._sender is not None and not request._sender._close():
            self._instance.log(
                "ERROR",
                "Unable to send response. Non-decoupled model cannot send more than one response.",
            )
            return None
        encoded = encode_response(
            response, request._work.requested_outputs or request._output_names()
        )
        if self._instance.reshapes is not None:
            self._instance.reshapes.to_client(encoded)
        return encoded

    def _defer(self, request: InferenceRequest) -> WorkResponse | None:
        """Leaves the response to the request's sender.

        If the model drops the request, it drops the sender too, which ends the request.
        """
        if request._work.is_null:
            return WorkResponse()
        if not request._release_flags & TRITONSERVER_REQUEST_RELEASE_RESCHEDULE:
            request.get_response_sender()
            return None
        if not self._can_reschedule:
            raise UnusableReturnError(
                "a request was rescheduled, but the model's config does not set "
                "sequence_batching.iterative_sequence"
            )
        if request._sender is not None:
            request._sender._close()
        return WorkResponse(is_rescheduled=True)

    def _fail(self, batch: list[InferenceRequest], error: BaseException) -> Responses:
        """Returns the error as the response to every request that has no response yet."""
        prefix = f"Failed to process the request(s) for model '{self._instance.name}', message: "
        if isinstance(error, UnusableReturnError):
            text = details = str(error)
        else:
            text, details = client_message(error, self._server_dirs), log_lines(error)
        self._instance.runtime.log("ERROR", prefix + details, *place(error))
        return [_error_response(request, prefix + text) for request in batch]

    def _enter(self, arguments: LoadArguments, instance: Instance) -> None:
        """Prepares the process for the model's code, which then acts on this instance."""
        pb_utils.register()
        share_cores(arguments)
        install(instance)
        sys.argv = [""]  # As in an embedded interpreter, which Triton's is.
        self._instance = instance
        repository_dir = os.path.dirname(os.path.abspath(arguments.model_dir))
        self._server_dirs = (
            instance.version_dir,
            arguments.model_dir,
            arguments.backend_dir,
            repository_dir,
        )

    def _import(self, arguments: LoadArguments) -> type[Any]:
        """Imports the module once, so that `load` finds the state that `complete_config` left."""
        if self._model_class is None:
            self._model_class = import_model_class(arguments)
        return self._model_class

    def _load_error(self, error: BaseException) -> NaiadError:
        if isinstance(error, NaiadError):
            return error
        message = client_message(error, self._server_dirs)
        return NaiadError(Code.INTERNAL, message, details=log_lines(error))


def _missing_execute(arguments: LoadArguments) -> Execute:
    """As in Triton, a model without `execute` can be loaded, but fails every request."""
    file = (
        f"{arguments.model_name}/{arguments.model_version}/{arguments.model_filename or 'model.py'}"
    )

    def execute(batch: list[InferenceRequest]) -> Any:
        raise UnusableReturnError(f"Python model {file} does not implement `execute` method.")

    return execute


def _initialize_arguments(arguments: LoadArguments) -> dict[str, str]:
    return {
        "model_config": arguments.model_config.decode(),
        "model_instance_kind": arguments.instance_kind,
        "model_instance_name": arguments.instance_name,
        "model_instance_device_id": str(arguments.device_id),
        "model_repository": arguments.model_dir,
        "model_version": str(arguments.model_version),
        "model_name": arguments.model_name,
    }


def _error_response(request: InferenceRequest, message: str) -> WorkResponse | None:
    if request._sender is not None and not request._sender._close():
        return None
    return WorkResponse(error=WorkError(Code.INTERNAL.name, message))
