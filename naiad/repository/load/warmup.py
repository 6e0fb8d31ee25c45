"""Reads `model_warmup` of a config: the samples that instances execute before they are ready.

In:  a ModelConfig and the model's directory. Out: `WarmupSample`s whose inputs fit the model, or
     NaiadError with Triton's message. Files are in the folder `warmup` of the model. A sample may
     contain the inputs that the server adds itself (controls, states).
"""

from __future__ import annotations

from math import prod
from pathlib import Path

import numpy as np

from naiad.core.byte_strings import encode_byte_strings
from naiad.core.datatype import BY_CONFIG_NUMBER, DataType
from naiad.core.model_spec import ModelSpec
from naiad.core.request import InferRequest
from naiad.core.tensor import Tensor
from naiad.errors import internal, invalid_arg
from naiad.files.safe_path import path_inside
from naiad.instances.warmup import WarmupSample
from naiad.pb.model_config_pb2 import ModelConfig, ModelWarmup
from naiad.repository.request_check import RequestCheck
from naiad.scheduling.sequence.controls import read_controls
from naiad.scheduling.sequence.implicit_state import read_state

FOLDER = "warmup"


def read_warmup(config: ModelConfig, spec: ModelSpec, model_dir: Path) -> list[WarmupSample]:
    samples: list[WarmupSample] = []
    check = RequestCheck(spec)
    for sample in config.model_warmup:
        if sample.batch_size == 0:
            continue
        if sample.batch_size > max(config.max_batch_size, 1):
            reason = (
                f"batch size {sample.batch_size} for '{config.name}', max allowed is "
                f"{config.max_batch_size}"
            )
            raise invalid_arg(f"failed to run warmup sample '{sample.name}': {reason}; ")
        inputs = [_tensor(name, given, config, model_dir) for name, given in sample.inputs.items()]
        added = {tensor.name: tensor for tensor in _added_inputs(config, model_dir)}
        check.check(
            InferRequest(config.name, [tensor for tensor in inputs if tensor.name not in added])
        )
        inputs += [tensor for name, tensor in added.items() if name not in sample.inputs]
        samples.append(WarmupSample(sample.name, inputs, sample.batch_size, max(sample.count, 1)))
    return samples


def _added_inputs(config: ModelConfig, model_dir: Path) -> list[Tensor]:
    """The controls of a sequence of one request, and its initial state. A sample may leave them
    out, which Triton does not allow."""
    controls = read_controls(config).tensors(1, is_start=True, is_ready=True, is_end=True)
    return [*controls, *(state.initial for state in read_state(config, model_dir).tensors)]


def _tensor(name: str, given: ModelWarmup.Input, config: ModelConfig, model_dir: Path) -> Tensor:
    if any(dim < 0 for dim in given.dims):
        raise invalid_arg(
            f"warmup setting expects all variable-size dimensions are specified for input '{name}'"
        )
    datatype = BY_CONFIG_NUMBER[given.data_type]
    shape = [1, *given.dims] if config.max_batch_size > 0 else list(given.dims)
    match given.WhichOneof("input_data_type"):
        case "input_data_file":
            data = _read(
                given.input_data_file, prod(shape) * datatype.byte_size, model_dir / FOLDER
            )
        case "random_data":
            data = _random(datatype, prod(shape))
        case _:
            data = _zeros(datatype, prod(shape))
    return Tensor(name, datatype.name, shape, data)


def _zeros(datatype: DataType, count: int) -> bytes:
    return (
        bytes(count * datatype.byte_size)
        if datatype.byte_size
        else encode_byte_strings([b""] * count)
    )


def _random(datatype: DataType, count: int) -> bytes:
    """Values between 0 and 1. Integers are 0 or 1, because they may be indices. As in Triton,
    random strings are empty."""
    if not datatype.byte_size:
        return _zeros(datatype, count)
    random = np.random.default_rng()
    if datatype.name == "BF16":
        return (random.random(count, np.float32).view(np.uint32) >> 16).astype(np.uint16).tobytes()
    assert datatype.numpy is not None
    values = random.random(count) if datatype.numpy.kind == "f" else random.integers(0, 2, count)
    return values.astype(datatype.numpy).tobytes()


def _read(file_name: str, size: int, folder: Path) -> bytes:
    path = path_inside(folder, file_name)
    if path is None:
        raise invalid_arg(f"warmup file '{file_name}' is outside the model's folder '{FOLDER}'")
    try:
        data = path.read_bytes()
    except OSError as error:
        raise internal(
            f"failed to open text file for read {FOLDER}/{file_name}: {error.strerror}"
        ) from error
    if len(data) < size:
        raise invalid_arg(
            f"warmup setting expects {size} bytes, "
            f"but the data provided from {file_name} only has {len(data)} bytes"
        )
    return data[:size] if size else data
