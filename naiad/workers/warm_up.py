"""Warm-up: the samples of `model_warmup` run through a freshly loaded backend, in its worker, before the instance is ready.

In:  the config and the files in `<model>/warmup`. Out: nothing; NaiadError when a sample fails, which fails the load.
A sample of batch size N is N requests of one element each, executed together, as under Triton. Nobody gets an answer and nothing is
counted.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable
from math import prod
from typing import Any

import msgspec
import numpy as np

from naiad.backends.backend import Backend
from naiad.core.byte_strings import encode_byte_strings
from naiad.core.datatype import BY_CONFIG_NAME
from naiad.core.tensor import Tensor
from naiad.core.work import SEQUENCE_END, SEQUENCE_START, LoadArguments, WorkRequest
from naiad.errors import NaiadError, internal, invalid_arg

SEQUENCE_ID = 1


class _Input(msgspec.Struct):
    data_type: str = ""
    dims: list[int] = []
    zero_data: bool = False
    random_data: bool = False
    input_data_file: str = ""


class _Sample(msgspec.Struct):
    name: str = ""
    batch_size: int = 0
    inputs: dict[str, _Input] = {}
    count: int = 0


class _Control(msgspec.Struct):
    kind: str
    int32_false_true: list[int] = []
    fp32_false_true: list[float] = []
    bool_false_true: list[bool] = []
    data_type: str = ""


class _ControlInput(msgspec.Struct):
    name: str
    control: list[_Control] = []


class _State(msgspec.Struct):
    input_name: str
    data_type: str
    dims: list[int] = []


class _Sequences(msgspec.Struct):
    control_input: list[_ControlInput] = []
    state: list[_State] = []


class _Config(msgspec.Struct):
    max_batch_size: int = 0
    model_warmup: list[_Sample] = []
    sequence_batching: _Sequences | None = None


def warm_up(arguments: LoadArguments, backend: Backend) -> None:
    config = msgspec.json.decode(arguments.model_config, type=_Config)
    for sample in config.model_warmup:
        if sample.batch_size == 0:
            continue
        try:
            for _ in range(max(sample.count, 1)):
                _execute(backend, _requests(arguments, config, sample))
        except NaiadError as error:
            raise NaiadError(error.code, f"failed to run warmup sample '{sample.name}': {error.message}") from error
        except Exception as error:
            raise internal(f"failed to run warmup sample '{sample.name}': {type(error).__name__}: {error}") from error


def _execute(backend: Backend, requests: list[WorkRequest]) -> None:
    answer = backend.execute(requests)
    responses = asyncio.run(_finish(answer)) if isinstance(answer, Awaitable) else answer
    for response in responses:
        if response is not None and response.error is not None:
            raise internal(response.error.message)


async def _finish(answer: Awaitable[Any]) -> Any:
    return await answer


def _requests(arguments: LoadArguments, config: _Config, sample: _Sample) -> list[WorkRequest]:
    """Their handle is nobody's: what a response sender sends is dropped."""
    is_sequence = config.sequence_batching is not None
    flags = SEQUENCE_START | SEQUENCE_END if is_sequence else 0
    requests: list[WorkRequest] = []
    for at in range(sample.batch_size):
        sequence_id = SEQUENCE_ID + at if is_sequence else 0
        inputs = [_tensor(arguments, config, name, given) for name, given in sample.inputs.items()]
        if config.sequence_batching is not None:
            inputs += _sequence_inputs(config, config.sequence_batching, sequence_id)
        requests.append(WorkRequest(0, "", inputs, correlation_id=sequence_id, flags=flags))
    return requests


def _tensor(arguments: LoadArguments, config: _Config, name: str, given: _Input) -> Tensor:
    datatype = BY_CONFIG_NAME[given.data_type]
    count = prod(given.dims)
    if given.input_data_file:
        data = _read(arguments, given.input_data_file, count * datatype.byte_size)
    elif not datatype.byte_size:
        data = encode_byte_strings([b""] * count)
    elif given.random_data:
        # Whole numbers are 0 or 1: they may be indices.
        random, dtype = np.random.default_rng(), datatype.numpy or np.dtype(np.uint16)
        data = (random.standard_normal(count) if dtype.kind == "f" else random.integers(0, 2, count)).astype(dtype).tobytes()
    else:
        data = bytes(count * datatype.byte_size)
    return _shaped(config, name, datatype.name, given.dims, data)


def _shaped(config: _Config, name: str, datatype: str, dims: list[int], data: bytes) -> Tensor:
    return Tensor(name, datatype, [1, *dims] if config.max_batch_size > 0 else list(dims), bytearray(data))


def _read(arguments: LoadArguments, name: str, size: int) -> bytes:
    try:
        with open(os.path.join(arguments.model_dir, "warmup", name), "rb") as file:
            data = file.read()
    except OSError as error:
        raise invalid_arg(f"failed to open text file for read warmup/{name}: {error.strerror}") from error
    if len(data) < size:
        raise invalid_arg(f"warmup setting expects {size} bytes, but the data provided from {name} only has {len(data)} bytes")
    return data[:size] if size else data


def _sequence_inputs(config: _Config, sequences: _Sequences, sequence_id: int) -> list[Tensor]:
    """What the sequence batcher would add: a sequence of one request, in its initial state."""
    tensors: list[Tensor] = []
    for control_input in sequences.control_input:
        for control in control_input.control:
            datatype, data = _control(control, sequence_id)
            tensors.append(_shaped(config, control_input.name, datatype, [1], data))
    for state in sequences.state:
        datatype_row = BY_CONFIG_NAME[state.data_type]
        dims = [max(dim, 1) for dim in state.dims]
        data = bytes(prod(dims) * datatype_row.byte_size) if datatype_row.byte_size else encode_byte_strings([b""] * prod(dims))
        tensors.append(_shaped(config, state.input_name, datatype_row.name, dims, data))
    return tensors


def _control(control: _Control, sequence_id: int) -> tuple[str, bytes]:
    if control.kind == "CONTROL_SEQUENCE_CORRID":
        datatype = BY_CONFIG_NAME[control.data_type]
        text = encode_byte_strings([str(sequence_id)])
        return datatype.name, sequence_id.to_bytes(datatype.byte_size, "little") if datatype.byte_size else text
    if control.int32_false_true:
        return "INT32", np.int32(control.int32_false_true[1]).tobytes()
    if control.fp32_false_true:
        return "FP32", np.float32(control.fp32_false_true[1]).tobytes()
    return "BOOL", np.bool_(control.bool_false_true[1]).tobytes()
