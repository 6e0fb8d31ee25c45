"""Reads inference requests field by field, in Triton's order, and reports faults with Triton's
messages.

In:  the JSON header and the binary data after it. Out: a request and its output formats, as from
     json_codec.decode_request, which calls this only when its typed pass fails.
"""

from __future__ import annotations

from typing import Any

from naiad.core.datatype import DATATYPES
from naiad.core.region_slice import RegionSlice, RegionUse
from naiad.core.request import InferRequest
from naiad.core.tensor import Buffer, Tensor
from naiad.errors import Code, NaiadError, internal, invalid_arg
from naiad.protocol.v2.json_access import (
    as_array,
    as_boolean,
    as_string,
    as_unsigned,
    find,
    is_unsigned,
    member,
    mismatch,
    parse_error,
)
from naiad.protocol.v2.json_data import LargeData
from naiad.protocol.v2.json_tensor import pack_values
from naiad.protocol.v2.output_format import (
    ALL_JSON,
    BINARY_FORMAT,
    JSON_FORMAT,
    SHARED_FORMAT,
    OutputFormat,
    OutputFormats,
)
from naiad.protocol.v2.request_parameters import JSON_PARAMETERS, apply_parameters
from naiad.protocol.v2.triton_json import parse

_INT64_MAX = (1 << 63) - 1
_UINT64_END = 1 << 64
_DATA_SOURCES = "'data', 'binary_data_size' in 'parameters', 'shared_memory_region' in 'parameters'"


class MissingInputsError(NaiadError):
    """The request has no `inputs`; frontends may find another meaning in its `document`."""

    def __init__(self, document: Any) -> None:
        super().__init__(
            Code.INTERNAL,
            "Unable to parse 'inputs': attempt to access non-existing object member 'inputs'",
        )
        self.document = document


def decode_request(
    text: Buffer, binary: memoryview, model_name: str, model_version: str, max_bytes: int
) -> tuple[InferRequest, OutputFormats]:
    return decode_document(parse(text), binary, model_name, model_version, max_bytes)


def decode_document(
    document: Any,
    binary: memoryview,
    model_name: str,
    model_version: str,
    max_bytes: int,
    large: LargeData | None = None,
) -> tuple[InferRequest, OutputFormats]:
    """`document` is the parsed header; `large` is the data for which there are marks in it."""
    request = InferRequest(model_name, [], model_version)
    request_id = find(document, "id")
    if request_id is not None:
        request.id = as_string(request_id, "id")
    if not isinstance(document, dict) or "inputs" not in document:
        raise MissingInputsError(document)
    is_binary = _apply_parameters(request, find(document, "parameters"))
    slices: list[tuple[int, RegionSlice]] = []
    regions: dict[str, RegionSlice] = {}
    request.inputs = _inputs(
        as_array(document["inputs"], "inputs"), binary, model_name, max_bytes, slices, large
    )
    outputs = find(document, "outputs")
    wanted = [] if outputs is None else as_array(outputs, "outputs")
    formats = _formats(wanted, request.id, regions)
    if slices or regions:
        request.regions = RegionUse(slices, regions)
    if formats:
        request.requested_outputs = list(formats)
        return request, OutputFormats(JSON_FORMAT, formats)
    return request, OutputFormats(BINARY_FORMAT) if is_binary else ALL_JSON


def _apply_parameters(request: InferRequest, parameters: Any) -> bool:
    if parameters is None:
        return False
    if not isinstance(parameters, dict):
        raise internal("failed to get request params.: attempt to get members for non-object")
    return apply_parameters(request, parameters, JSON_PARAMETERS)


# Inputs.


def _inputs(
    inputs: list[Any],
    binary: memoryview,
    model_name: str,
    max_bytes: int,
    slices: list[tuple[int, RegionSlice]],
    large: LargeData | None,
) -> list[Tensor]:
    """Adds tensors in shared memory to `slices`."""
    tensors: list[Tensor] = []
    offset = 0
    for value in inputs:
        parameters = find(value, "parameters")
        size, region = _check_data_source(value, parameters)
        name = as_string(member(value, "name"), "name")
        datatype = as_string(member(value, "datatype"), "datatype")
        if datatype not in DATATYPES:
            raise invalid_arg(f"invalid datatype for input {name}")
        shape = [_dimension(dim) for dim in as_array(member(value, "shape"), "shape")]
        data: Buffer
        if region is not None:
            slices.append((len(tensors), region))
            data = b""
        elif size is None:
            data = _json_data(value, datatype, shape, name, max_bytes, large)
        else:
            end = offset + size
            if end > len(binary):
                raise unexpected_size(name, end - len(binary), model_name)
            data, offset = binary[offset:end], end
        tensors.append(Tensor(name, datatype, shape, data))
    if offset != len(binary):
        raise unexpected_data(model_name)
    return tensors


def _json_data(
    value: Any,
    datatype: str,
    shape: list[int],
    name: str,
    max_bytes: int,
    large: LargeData | None,
) -> Buffer:
    """Sizes are checked before the data is read. Only the size of strings follows from them."""
    count = _element_count(name, shape)
    if count == 0:
        return b""  # Triton ignores the data of a tensor without elements
    values = as_array(value["data"], "data")
    if datatype != "BYTES":
        _check_byte_size(name, count, DATATYPES[datatype].byte_size, max_bytes)
    data = None if large is None else large.pack(values, datatype, count, name)
    if data is None:
        data = pack_values(values, datatype, count, name)
    _check_size(name, len(data), max_bytes)
    return data


def _element_count(name: str, shape: list[int]) -> int:
    """Triton multiplies from left to right, and stops at a dimension of 0 or -1 before it sees that
    the product is too large."""
    count = 1 if shape else 0
    for dim in shape:
        if dim in (0, -1):
            return dim
        if dim < 0:
            raise _wrong_shape(name, shape, "contains one or more invalid dimensions")
        count *= dim
        if count > _INT64_MAX:
            raise _wrong_shape(
                name, shape, f"causes total element count to exceed maximum size of {_INT64_MAX}"
            )
    return count


def _wrong_shape(name: str, shape: list[int], fault: str) -> NaiadError:
    dims = ",".join(map(str, shape))
    return invalid_arg(f"invalid shape for input '{name}': shape [{dims}] {fault}")


def _check_byte_size(name: str, count: int, element_bytes: int, max_bytes: int) -> None:
    if count > _INT64_MAX // element_bytes:
        raise invalid_arg(
            f"byte size overflow for input '{name}': element count ({count}) * data type size "
            f"({element_bytes}) exceeds maximum allowed size ({_INT64_MAX})"
        )
    _check_size(name, count * element_bytes % _UINT64_END, max_bytes)  # a count of -1 wraps around


def _check_size(name: str, num_bytes: int, max_bytes: int) -> None:
    if num_bytes > max_bytes:
        raise invalid_arg(
            f"JSON input '{name}' has a byte_size ({num_bytes} bytes) that exceeds the maximum "
            f"allowed value of {max_bytes} bytes. Use --http-max-input-size to increase the limit."
        )


def _check_data_source(value: Any, parameters: Any) -> tuple[int | None, RegionSlice | None]:
    """The size of binary data, or the place of the data in shared memory; (None, None) when the
    data is in the JSON."""
    size = find(parameters, "binary_data_size")
    region = find(parameters, "shared_memory_region")
    sources = {
        "data": find(value, "data"),
        "binary_data_size": size,
        "shared_memory_region": region,
    }
    given = [name for name, source in sources.items() if source is not None]
    if len(given) != 1:
        fields = (
            "no field is set" if not given else "set " + " ".join(f"'{name}'" for name in given)
        )
        raise invalid_arg(
            f"Input must set only one of the following fields: {_DATA_SOURCES}. But {fields}"
        )
    if region is not None:
        return None, _region_slice(region, parameters)
    return (None if size is None else as_unsigned(size, "binary_data_size")), None


def _region_slice(region: Any, parameters: Any) -> RegionSlice:
    offset, byte_size = (
        find(parameters, "shared_memory_offset"),
        find(parameters, "shared_memory_byte_size"),
    )
    return RegionSlice(
        as_string(region, "shared_memory_region"),
        0 if offset is None else as_unsigned(offset, "shared_memory_offset"),
        0 if byte_size is None else as_unsigned(byte_size, "shared_memory_byte_size"),
    )


def _dimension(value: Any) -> int:
    """Like Triton, reads a number beyond 63 bits as a negative one, which no shape may have."""
    if not is_unsigned(value):
        raise parse_error("shape", mismatch("unsigned-integer"))
    return int(value) if value <= _INT64_MAX else int(value) - _UINT64_END


def unexpected_size(name: str, num_missing: int, model_name: str) -> NaiadError:
    return invalid_arg(
        f"unexpected size for input '{name}', expecting {num_missing} additional bytes for model "
        f"'{model_name}'"
    )


def unexpected_data(model_name: str) -> NaiadError:
    return invalid_arg(f"unexpected additional input data for model '{model_name}'")


# Outputs.


def _formats(
    outputs: list[Any], request_id: str, regions: dict[str, RegionSlice]
) -> dict[str, OutputFormat]:
    """Adds outputs that go to shared memory to `regions`."""
    formats: dict[str, OutputFormat] = {}
    for value in outputs:
        name = as_string(member(value, "name"), "name")
        if name in formats:
            raise repeated_output(name, request_id)
        parameters = find(value, "parameters")
        formats[name] = _format(parameters)
        if formats[name].is_shared:
            regions[name] = _region_slice(find(parameters, "shared_memory_region"), parameters)
    return formats


def _format(parameters: Any) -> OutputFormat:
    classification = find(parameters, "classification")
    binary = find(parameters, "binary_data")
    region = find(parameters, "shared_memory_region")
    if classification is not None and not is_unsigned(classification):
        raise internal(f"Unable to set 'classification': {mismatch('unsigned-integer')}")
    is_binary = binary is not None and as_boolean(binary, "binary_data")
    if region is not None:
        check_shared_output(has_classification=classification is not None, is_binary=is_binary)
        return SHARED_FORMAT
    return OutputFormat(is_binary, int(classification or 0))


def check_shared_output(*, has_classification: bool, is_binary: bool) -> None:
    if has_classification:
        raise invalid_arg("Output can't set both 'shared_memory_region' and 'classification'")
    if is_binary:
        raise invalid_arg("Output can't set both 'shared_memory_region' and 'binary_data'")


def repeated_output(name: str, request_id: str) -> NaiadError:
    return invalid_arg(
        f"[request id: {request_id or '<id_unknown>'}] output '{name}' already exists in request"
    )
