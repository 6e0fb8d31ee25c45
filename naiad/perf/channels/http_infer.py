"""Encodes an ClientRequest as the bytes of POST /v2/models/M/infer or generate_stream.

Rule: a request is encoded once and sent many times. Only the id and the flags of a sequence change;
      white space pads them to a fixed width in the JSON, so that the lengths in the headers stay
      correct.
"""

from __future__ import annotations

import json
from typing import Any

import numpy as np

from naiad.core.byte_strings import split_byte_strings
from naiad.core.datatype import DATATYPES
from naiad.perf.channels.address import Address
from naiad.perf.channels.control_http import model_path
from naiad.perf.channels.http_request import request_bytes, request_head
from naiad.perf.channels.infer_request import ClientRequest, InputTensor, MemorySpan
from naiad.settings.option import OptionError

_MARK = "\x00sequence\x00"
_SEQUENCE = b'%20d,"sequence_start":%s,"sequence_end":%s'
_FLAG = (b"false", b" true")


class HttpInferEncoder:
    def __init__(
        self,
        address: Address,
        model: str,
        version: str,
        *,
        headers: tuple[tuple[str, str], ...] = (),
        is_json_input: bool = False,
        is_json_output: bool = False,
    ) -> None:
        self._address = address
        self._path = f"{address.path}{model_path(model, version)}/infer"
        self._headers = headers
        self._is_json_input = is_json_input
        self._is_json_output = is_json_output

    def encode(self, request: ClientRequest) -> bytes:
        text, binary = self._document(request, request.parameters)
        return b"".join((self._head(len(text), binary), text, *binary))

    def encode_sequence(self, request: ClientRequest) -> tuple[bytes, bytes]:
        """Returns the bytes before and after the id and flags, for `sequence_bytes`."""
        text, binary = self._document(request, {**request.parameters, "sequence_id": _MARK})
        before, _, after = text.rpartition(json.dumps(_MARK).encode())
        head = self._head(len(before) + len(_filled(0, False, False)) + len(after), binary)
        return head + before, b"".join((after, *binary))

    def _document(
        self, request: ClientRequest, parameters: dict[str, Any]
    ) -> tuple[bytes, list[bytes]]:
        binary: list[bytes] = []
        document: dict[str, Any] = {
            "inputs": [self._input(tensor, binary) for tensor in request.inputs]
        }
        if request.outputs:
            document["outputs"] = [
                self._output(output.name, output.span) for output in request.outputs
            ]
        if parameters:
            document["parameters"] = parameters
        return json.dumps(document, separators=(",", ":")).encode(), binary

    def _head(self, text_bytes: int, binary: list[bytes]) -> bytes:
        return request_head(
            self._address,
            "POST",
            self._path,
            text_bytes + sum(map(len, binary)),
            headers=self._headers,
            tensor_header_bytes=text_bytes if binary else 0,
        )

    def _input(self, tensor: InputTensor, binary: list[bytes]) -> dict[str, Any]:
        entry: dict[str, Any] = {
            "name": tensor.name,
            "datatype": tensor.datatype,
            "shape": list(tensor.shape),
        }
        if tensor.span is not None:
            entry["parameters"] = _span(tensor.span)
        elif self._is_json_input:
            entry["data"] = json_values(tensor.datatype, tensor.raw)
        else:
            entry["parameters"] = {"binary_data_size": len(tensor.raw)}
            binary.append(tensor.raw)
        return entry

    def _output(self, name: str, span: MemorySpan | None) -> dict[str, Any]:
        if span is not None:
            return {"name": name, "parameters": _span(span)}
        return {"name": name, "parameters": {"binary_data": not self._is_json_output}}


class GenerateEncoder:
    """Encodes the model's inputs as one flat JSON object, for `-i http --streaming`."""

    def __init__(
        self, address: Address, model: str, version: str, headers: tuple[tuple[str, str], ...] = ()
    ) -> None:
        self._address = address
        self._path = f"{address.path}{model_path(model, version)}/generate_stream"
        self._headers = headers

    def encode(self, request: ClientRequest) -> bytes:
        document: dict[str, Any] = {}
        for tensor in request.inputs:
            values = json_values(tensor.datatype, tensor.raw)
            document[tensor.name] = values[0] if len(values) == 1 else values
        body = json.dumps(document | request.parameters).encode()
        return request_bytes(self._address, "POST", self._path, body, headers=self._headers)


def _filled(sequence_id: int, is_start: bool, is_end: bool) -> bytes:
    return _SEQUENCE % (sequence_id, _FLAG[is_start], _FLAG[is_end])


def sequence_bytes(
    parts: tuple[bytes, bytes], sequence_id: int, is_start: bool, is_end: bool
) -> bytes:
    return b"".join((parts[0], _filled(sequence_id, is_start, is_end), parts[1]))


def _span(span: MemorySpan) -> dict[str, Any]:
    parameters: dict[str, Any] = {
        "shared_memory_region": span.region,
        "shared_memory_byte_size": span.byte_size,
    }
    if span.offset:
        parameters["shared_memory_offset"] = span.offset
    return parameters


def json_values(datatype: str, raw: bytes) -> list[Any]:
    if datatype == "BYTES":
        return [element.decode("utf-8", "replace") for element in split_byte_strings(raw)]
    dtype = DATATYPES[datatype].numpy
    if dtype is None or datatype == "FP16":
        raise OptionError(
            f"{datatype} tensors cannot be sent as JSON. Use --input-tensor-format binary."
        )
    return list(np.frombuffer(raw, dtype).tolist())
