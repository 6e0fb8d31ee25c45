"""Control inputs of sequence models: START, READY, END and CORRID, as tensors that the server adds
to each request.

In:  `sequence_batching.control_input` of a ModelConfig. Out: the tensors for one request, with or
     without a batch dimension.
"""

from __future__ import annotations

import struct

import msgspec
import numpy as np

from naiad.core.byte_strings import encode_byte_strings
from naiad.core.datatype import BY_CONFIG_NUMBER
from naiad.core.tensor import Tensor
from naiad.errors import invalid_arg
from naiad.pb.model_config_pb2 import ModelConfig, ModelSequenceBatching

_KIND = ModelSequenceBatching.Control.Kind


class FlagControl(msgspec.Struct, frozen=True):
    name: str
    datatype: str
    false: bytes
    true: bytes

    def tensor(self, is_set: bool, shape: list[int]) -> Tensor:
        return Tensor(self.name, self.datatype, shape, self.true if is_set else self.false)


class SequenceControls(msgspec.Struct, frozen=True):
    start: FlagControl | None
    ready: FlagControl | None
    end: FlagControl | None
    correlation_id: tuple[str, str] | None
    """(name, datatype)"""
    shape: list[int]

    def tensors(
        self, sequence_id: int | str, *, is_start: bool, is_ready: bool, is_end: bool
    ) -> list[Tensor]:
        result: list[Tensor] = []
        for control, is_set in ((self.start, is_start), (self.ready, is_ready), (self.end, is_end)):
            if control is not None:
                result.append(control.tensor(is_set, self.shape))
        if self.correlation_id is not None:
            name, datatype = self.correlation_id
            result.append(Tensor(name, datatype, self.shape, _encode_id(sequence_id, datatype)))
        return result

    def check_id(self, sequence_id: int | str, model_name: str) -> None:
        """Raises NaiadError when the model cannot get an id of this type."""
        if self.correlation_id is None:
            return
        name, datatype = self.correlation_id
        if isinstance(sequence_id, str) != (datatype == "BYTES"):
            actual = "BYTES" if isinstance(sequence_id, str) else "UINT64"
            raise invalid_arg(
                f"sequence batching control '{name}' data-type is '{actual}', but model "
                f"'{model_name}' expects '{datatype}'"
            )


def _encode_id(sequence_id: int | str, datatype: str) -> bytes:
    if datatype == "BYTES":
        return encode_byte_strings([sequence_id if isinstance(sequence_id, str) else ""])
    number = sequence_id if isinstance(sequence_id, int) else 0
    size = INTEGER_BYTES[datatype]
    return (number & ((1 << (8 * size)) - 1)).to_bytes(size, "little")


INTEGER_BYTES = {"UINT64": 8, "INT64": 8, "UINT32": 4, "INT32": 4}


def read_controls(config: ModelConfig) -> SequenceControls:
    flags: dict[int, FlagControl] = {}
    correlation_id: tuple[str, str] | None = None
    for control_input in config.sequence_batching.control_input:
        for control in control_input.control:
            if control.kind == _KIND.CONTROL_SEQUENCE_CORRID:
                correlation_id = (control_input.name, BY_CONFIG_NUMBER[control.data_type].name)
            else:
                flags[control.kind] = _flag(control_input.name, control)
    return SequenceControls(
        flags.get(_KIND.CONTROL_SEQUENCE_START),
        flags.get(_KIND.CONTROL_SEQUENCE_READY),
        flags.get(_KIND.CONTROL_SEQUENCE_END),
        correlation_id,
        [1, 1] if config.max_batch_size > 0 else [1],
    )


def _flag(name: str, control: ModelSequenceBatching.Control) -> FlagControl:
    if control.int32_false_true:
        values = [struct.pack("<i", value) for value in control.int32_false_true]
        return FlagControl(name, "INT32", values[0], values[1])
    if control.fp32_false_true:
        values = [struct.pack("<f", value) for value in control.fp32_false_true]
        return FlagControl(name, "FP32", values[0], values[1])
    values = [np.bool_(value).tobytes() for value in control.bool_false_true]
    return FlagControl(name, "BOOL", values[0], values[1])
