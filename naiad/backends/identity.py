"""The identity backend, for tests and benchmarks: output i is input i.

It has the parameters of Triton's identity backend. `execute_delay_ms` is the duration of each
execution, multiplied by `instance_wise_delay_multiplier` times the index of the instance, if that
is more than 1. `creation_delay_sec` is the duration of loading. `input_byte_size_counter` counts
the bytes of all inputs in a custom metric of that name. It is off by default, because it sends a
message to the server for every batch.
"""

from __future__ import annotations

import re
import time

import msgspec

from naiad.backends.backend import Backend, Runtime
from naiad.errors import Code, invalid_arg
from naiad.ipc.work import (
    LoadArguments,
    WorkError,
    WorkRequest,
    WorkResponse,
    WorkTensor,
)
from naiad.metrics.operation import MetricOperation

BYTE_COUNTER = "input_byte_size_counter"


class _Parameter(msgspec.Struct):
    string_value: str = ""


class _Tensor(msgspec.Struct):
    name: str


class _Config(msgspec.Struct):
    input: list[_Tensor] = []
    output: list[_Tensor] = []
    parameters: dict[str, _Parameter] = {}


class IdentityBackend(Backend):
    def __init__(self) -> None:
        self._delay_s = 0.0
        self._names: dict[str, str] = {}
        self._runtime: Runtime | None = None
        self._counter = 0

    def load(self, arguments: LoadArguments, runtime: Runtime) -> None:
        config = msgspec.json.decode(arguments.model_config, type=_Config)
        if len(config.input) != len(config.output):
            raise invalid_arg(
                f"model '{arguments.model_name}' has {len(config.input)} inputs and "
                f"{len(config.output)} outputs, the identity backend expects as many outputs as "
                "inputs"
            )
        self._names = {
            tensor.name: output.name
            for tensor, output in zip(config.input, config.output, strict=True)
        }
        multiplier = _number(config, "instance_wise_delay_multiplier", 0.0)
        index = re.search(r"_(\d+)$", arguments.instance_name)
        factor = max(multiplier * int(index[1]), 1.0) if index and multiplier else 1.0
        self._delay_s = _number(config, "execute_delay_ms", 0.0) / 1000 * factor
        time.sleep(_number(config, "creation_delay_sec", 0.0))
        if config.parameters.get(BYTE_COUNTER, _Parameter()).string_value.lower() == "true":
            self._start_counting(arguments, runtime)

    def _start_counting(self, arguments: LoadArguments, runtime: Runtime) -> None:
        description = "Cumulative input byte size of all requests received by the model"
        family = MetricOperation(
            "create_family", name=BYTE_COUNTER, description=description, metric_kind="COUNTER"
        )
        labels = {"model": arguments.model_name, "version": str(arguments.model_version)}
        self._counter = int(
            runtime.metric(
                MetricOperation("create_metric", int(runtime.metric(family)), labels=labels)
            )
        )
        self._runtime = runtime

    def execute(self, requests: list[WorkRequest]) -> list[WorkResponse | None]:
        if self._delay_s:
            time.sleep(self._delay_s)
        if self._runtime is not None:
            size = sum(len(tensor.data) for request in requests for tensor in request.inputs)
            self._runtime.metric(MetricOperation("increment", self._counter, value=float(size)))
        return [self._respond(request) for request in requests]

    def _respond(self, request: WorkRequest) -> WorkResponse:
        outputs: list[WorkTensor] = []
        requested = request.requested_outputs
        for tensor in request.inputs:
            name = self._names.get(tensor.name)
            if name is None:
                return WorkResponse(
                    error=WorkError(
                        Code.INVALID_ARG.name, f"unexpected inference input '{tensor.name}'"
                    )
                )
            if not requested or name in requested:
                outputs.append(WorkTensor(name, tensor.datatype, tensor.shape, tensor.data))
        return WorkResponse(outputs)

    def unload(self) -> None:
        pass


def _number(config: _Config, name: str, default: float) -> float:
    parameter = config.parameters.get(name)
    if parameter is None:
        return default
    try:
        return float(parameter.string_value)
    except ValueError:
        raise invalid_arg(
            f"parameter '{name}' is '{parameter.string_value}', expected a number"
        ) from None
