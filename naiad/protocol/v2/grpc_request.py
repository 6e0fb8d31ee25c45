"""Everything in a ModelInferRequest but its raw tensors: parameters, shapes, requested outputs,
typed contents. Errors have Triton's messages.

In:  a parsed message. Out: a RequestTemplate, which grpc_codec.py fills with the tensors of a
     request.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import msgspec

from naiad.core.datatype import DATATYPES
from naiad.core.region_slice import RegionSlice, RegionUse
from naiad.core.request import InferRequest, ParameterValue
from naiad.core.signature import RequestSignature
from naiad.core.tensor import Tensor
from naiad.errors import NaiadError, invalid_arg, unsupported
from naiad.pb.grpc_service_pb2 import InferParameter, ModelInferRequest
from naiad.protocol.v2.grpc_contents import LargeContents, large_raw_contents, raw_contents
from naiad.protocol.v2.grpc_wire import Buffer
from naiad.protocol.v2.request_parameters import apply_parameters

_UINT64_MASK: Final = (1 << 64) - 1


class RequestOptions(msgspec.Struct, frozen=True):
    """What a request says about its response."""

    classification: dict[str, int] = {}
    """The number of classes, by output."""
    wants_empty_final: bool = False


PLAIN: Final = RequestOptions()


class _Input(msgspec.Struct, frozen=True):
    name: str
    datatype: str
    shape: list[int]
    """Shared by all requests: it never changes."""
    contents: Buffer | None
    """Typed contents, as raw bytes; None when the data is among the raw tensors."""
    region: RegionSlice | None = None
    """Set when the data is in shared memory."""
    error: NaiadError | None = None
    """The fault of this input; raised only when no earlier input has one."""


class RequestTemplate(msgspec.Struct, frozen=True):
    """A request without its raw tensors; serves any number of requests that differ only in these
    and the id."""

    prototype: InferRequest
    inputs: list[_Input]
    options: RequestOptions
    repeated_output: str | None
    output_error: NaiadError | None
    is_plain: bool
    """The request has no parameters, typed contents, shared memory or fault."""
    regions: RegionUse | None = None
    has_no_raw: bool = True
    """The message that the template was built from had no raw tensors."""
    signature: RequestSignature = msgspec.field(default_factory=RequestSignature)

    def fill(self, request_id: str, raw: list[Buffer]) -> InferRequest:
        """Raises NaiadError with Triton's messages, in Triton's order: inputs first, then
        outputs."""
        prototype, inputs = self.prototype, self.inputs
        if not self.is_plain or len(raw) < len(inputs):
            if self.repeated_output is not None:
                name = prototype.id or request_id or "<id_unknown>"
                raise invalid_arg(
                    f"[request id: {name}] output '{self.repeated_output}' already exists in "
                    "request"
                )
            tensors = self._fill_checked(raw)
        else:
            tensors = [
                Tensor(head.name, head.datatype, head.shape, data)
                for head, data in zip(inputs, raw, strict=False)
            ]
        if self.output_error is not None:
            raise self.output_error.copy()
        request = InferRequest(
            prototype.model_name,
            tensors,
            prototype.model_version,
            prototype.id or request_id,
            prototype.requested_outputs,
            signature=self.signature,
        )
        if not self.is_plain:
            self._copy_parameters(request)
        return request

    def _fill_checked(self, raw: list[Buffer]) -> list[Tensor]:
        tensors: list[Tensor] = []
        next_raw = 0
        of = f"for model '{self.prototype.model_name}'"
        for head in self.inputs:
            if head.error is not None:
                raise head.error.copy()
            if head.region is not None:
                data: Buffer = b""
            elif head.contents is not None:
                if raw:
                    raise invalid_arg(
                        "contents field must not be specified when using raw_input_contents for "
                        f"'{head.name}' {of}"
                    )
                data = head.contents
            elif next_raw < len(raw):
                data = raw[next_raw]
                next_raw += 1
            else:
                raise invalid_arg(
                    f"unable to find data for input tensor '{head.name}' {of} in request."
                )
            tensors.append(Tensor(head.name, head.datatype, list(head.shape), data))
        return tensors

    def _copy_parameters(self, request: InferRequest) -> None:
        prototype = self.prototype
        request.regions = self.regions
        request.parameters = dict(prototype.parameters)
        request.sequence_id = prototype.sequence_id
        request.sequence_start = prototype.sequence_start
        request.sequence_end = prototype.sequence_end
        request.priority = prototype.priority
        request.timeout_us = prototype.timeout_us


def decoupled_error() -> NaiadError:
    return unsupported("ModelInfer RPC doesn't support models with decoupled transaction policy")


def build_template(
    message: ModelInferRequest,
    large: Mapping[int, LargeContents] | None = None,
    *,
    has_raw: bool | None = None,
) -> RequestTemplate:
    """Raises NaiadError for wrong parameters; other faults are kept for `fill`. `large` are the
    contents that were left out of the message, by the number of their input; `has_raw` says whether
    raw tensors were."""
    large = large or {}
    request = InferRequest(message.model_name, [], message.model_version, message.id)
    wants_empty_final = apply_parameters(request, message.parameters, _MESSAGE_PARAMETERS)
    names = [output.name for output in message.outputs]
    repeated = _first_repeated(names)
    request.requested_outputs = names
    inputs = [
        _input(tensor, message.model_name, large.get(number))
        for number, tensor in enumerate(message.inputs)
    ]
    classification: dict[str, int] = {}
    slices = [(index, head.region) for index, head in enumerate(inputs) if head.region is not None]
    regions: dict[str, RegionSlice] = {}
    output_error = None
    try:
        for output in message.outputs:
            if not output.parameters:
                continue
            if count := _classification(output):
                classification[output.name] = count
            elif region := _region_slice(output.name, output.parameters):
                regions[output.name] = region
    except NaiadError as error:
        output_error = error.copy()  # its traceback would keep the message
    use = RegionUse(slices, regions) if slices or regions else None
    options = (
        RequestOptions(classification, wants_empty_final)
        if classification or wants_empty_final
        else PLAIN
    )
    has_reserved = any(name != _MESSAGE_PARAMETERS.format_option for name in message.parameters)
    is_plain = (
        not has_reserved
        and repeated is None
        and use is None
        and all(head.contents is None and head.error is None for head in inputs)
    )
    return RequestTemplate(
        request,
        inputs,
        options,
        repeated,
        output_error,
        is_plain,
        use,
        not (message.raw_input_contents if has_raw is None else has_raw),
    )


def _first_repeated(names: list[str]) -> str | None:
    if len(set(names)) == len(names):
        return None
    seen: set[str] = set()
    return next(name for name in names if name in seen or seen.add(name))  # type: ignore[func-returns-value]


def _input(
    tensor: ModelInferRequest.InferInputTensor, model_name: str, large: LargeContents | None
) -> _Input:
    contents: Buffer | None = None
    region: RegionSlice | None = None
    error = None
    try:
        region = _region_slice(tensor.name, tensor.parameters) if tensor.parameters else None
        if large is not None or tensor.HasField("contents"):
            if region is not None:
                raise invalid_arg(
                    "unexpected 'content' provided when using shared memory for input tensor "
                    f"'{tensor.name}' for model '{model_name}'"
                )
            contents = (
                raw_contents(tensor, model_name)
                if large is None
                else large_raw_contents(tensor, model_name, large)
            )
    except NaiadError as fault:
        error = fault.copy()  # its traceback would keep the message
    datatype = tensor.datatype if tensor.datatype in DATATYPES else "<invalid>"
    return _Input(tensor.name, datatype, list(tensor.shape), contents, region, error)


def _region_slice(name: str, parameters: Mapping[str, InferParameter]) -> RegionSlice | None:
    """The tensor's place in shared memory; None when it is not there. Raises NaiadError."""
    region = parameters.get("shared_memory_region")
    if region is None:
        return None
    if region.WhichOneof("parameter_choice") != "string_param":
        raise invalid_arg(
            f"invalid value type for 'shared_memory_region' parameter for tensor '{name}', "
            "expected string_param."
        )
    if "shared_memory_byte_size" not in parameters:
        raise invalid_arg(
            "'shared_memory_byte_size' must be specified along with 'shared_memory_region' "
            f"parameter for tensor '{name}'"
        )
    offset = (
        _byte_count(name, "shared_memory_offset", parameters)
        if "shared_memory_offset" in parameters
        else 0
    )
    return RegionSlice(
        region.string_param, offset, _byte_count(name, "shared_memory_byte_size", parameters)
    )


def _byte_count(tensor: str, name: str, parameters: Mapping[str, InferParameter]) -> int:
    """Like Triton, reads a negative number as a very large one, which no region holds."""
    if parameters[name].WhichOneof("parameter_choice") != "int64_param":
        raise invalid_arg(
            f"invalid value type for '{name}' parameter for tensor '{tensor}', expected "
            "int64_param."
        )
    return parameters[name].int64_param & _UINT64_MASK


def _classification(output: ModelInferRequest.InferRequestedOutputTensor) -> int:
    parameter = output.parameters.get("classification")
    if parameter is None:
        return 0
    if parameter.WhichOneof("parameter_choice") != "int64_param":
        raise invalid_arg("invalid value type for 'classification' parameter, expected int64_param")
    if parameter.int64_param <= 0:
        raise invalid_arg("invalid value for 'classification' parameter, expected >= 0")
    if "shared_memory_region" in output.parameters:
        raise invalid_arg("output can't set both 'shared_memory_region' and 'classification'")
    return parameter.int64_param


# Parameters of the request.


class _MessageParameters:
    """Reads InferParameter messages."""

    format_option = "triton_enable_empty_final_response"

    def boolean(self, name: str, written: InferParameter) -> bool:
        if written.WhichOneof("parameter_choice") != "bool_param":
            raise invalid_arg(f"invalid value type for '{name}' parameter, expected bool_param.")
        return written.bool_param

    def unsigned(self, name: str, written: InferParameter) -> int:
        match written.WhichOneof("parameter_choice"):
            case "uint64_param":
                return written.uint64_param
            case "int64_param":
                if written.int64_param < 0:
                    raise invalid_arg(f"invalid value for '{name}', expected value >= 0.")
                return written.int64_param
            case _:
                kinds = "int64_param" if name == "timeout" else "int64_param or uint64_param"
                raise invalid_arg(f"invalid value type for '{name}' parameter, expected {kinds}.")

    def sequence_id(self, name: str, written: InferParameter) -> int | str:
        match written.WhichOneof("parameter_choice"):
            case "int64_param":
                return written.int64_param & _UINT64_MASK
            case "string_param":
                return written.string_param
            case _:
                raise invalid_arg(
                    f"invalid value type for '{name}' parameter, expected int64_param or "
                    "string_param."
                )

    def value(self, name: str, written: InferParameter) -> ParameterValue:
        choice = written.WhichOneof("parameter_choice")
        if choice is None or choice == "uint64_param":
            raise invalid_arg(
                f"invalid value type for '{name}' parameter, expected int64_param, bool_param, or "
                "string_param."
            )
        value: ParameterValue = getattr(written, choice)
        return value

    def reserved(self) -> NaiadError:
        return invalid_arg(
            "parameter keys starting with 'triton_' are reserved for Triton usage. Only the "
            f"following keys starting with 'triton_' are allowed: {self.format_option}"
        )


_MESSAGE_PARAMETERS: Final = _MessageParameters()
