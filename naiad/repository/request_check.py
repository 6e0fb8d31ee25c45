"""Checks whether a request fits a model version, with Triton's messages and in Triton's order.

In:  an InferRequest from a codec. Out: its `batch_size` is set, or NaiadError. This runs for every
     request, so a valid request takes one short loop; messages are built only for invalid ones.
"""

from __future__ import annotations

from math import prod

import msgspec

from naiad.core.byte_strings import count_equal
from naiad.core.datatype import DATATYPES
from naiad.core.model_spec import ModelSpec, TensorSpec
from naiad.core.request import InferRequest
from naiad.core.tensor import Tensor
from naiad.errors import NaiadError, invalid_arg

_BATCH_NOTE = (
    " NOTE: Setting a non-zero max_batch_size in the model config requires a batch dimension to be "
    "prepended to each input shape. "
    "If you want to specify the full shape including the batch dim in your input dims config, "
    "try setting max_batch_size to zero. "
    "See the model configuration docs for more info on max_batch_size."
)


class _InputRule(msgspec.Struct, frozen=True):
    datatype: str
    dims: list[int]
    """The dimensions without the batch dimension."""
    fixed_bytes: int
    """The size of one item if all dimensions are fixed and elements have a fixed size; else -1."""
    element_bytes: int


class RequestCheck:
    def __init__(self, spec: ModelSpec) -> None:
        self._spec = spec
        self._rules = {name: _rule(tensor) for name, tensor in spec.inputs.items()}
        self._num_required = sum(not tensor.is_optional for tensor in spec.inputs.values())
        self._is_batched = spec.max_batch_size > 0
        self._needs_each = spec.shows_api_key or any(
            rule.element_bytes == 0 for rule in self._rules.values()
        )
        """No signature is accepted for good: the check reads the data of strings, and the API key
        of a request becomes one of its parameters."""

    def check(self, request: InferRequest) -> None:
        """Sets `batch_size`. Raises NaiadError."""
        signature = request.signature
        if signature is None:
            self._check(request)
        elif signature.accepted_by is self and signature.sizes == [
            len(tensor.data) for tensor in request.inputs
        ]:
            request.batch_size = signature.batch_size
        else:
            self._check(request)
            signature.accepted_by = None if self._needs_each else self
            if not self._needs_each:
                signature.sizes = [len(tensor.data) for tensor in request.inputs]
                signature.batch_size = request.batch_size

    def _check(self, request: InferRequest) -> None:
        if request.requested_outputs:
            self._check_outputs(request)
        inputs = request.inputs
        rules = self._rules
        if len(inputs) != len(rules):
            self._check_count(request)
        offset = 0
        if self._is_batched:
            offset = 1
            request.batch_size = self._batch_size(request)
        for tensor in inputs:
            rule = rules.get(tensor.name)
            if rule is None or tensor.datatype != rule.datatype:
                raise self._wrong_input(request, tensor, rule)
            shape = tensor.shape
            if rule.fixed_bytes >= 0 and shape[offset:] == rule.dims:
                expected = rule.fixed_bytes * shape[0] if offset else rule.fixed_bytes
                if len(tensor.data) != expected:
                    raise self._wrong_size(request, tensor, expected)
            else:
                self._check_shape(request, tensor, rule, offset)
        if len(inputs) > 1:
            self._check_duplicates(request)

    def _check_outputs(self, request: InferRequest) -> None:
        for name in request.requested_outputs:
            if name not in self._spec.outputs:
                raise invalid_arg(
                    f"unexpected inference output '{name}' for model '{self._spec.name}'"
                )

    def _check_count(self, request: InferRequest) -> None:
        if not self._num_required <= len(request.inputs) <= len(self._rules):
            raise self._wrong_count(request)

    def _batch_size(self, request: InferRequest) -> int:
        spec, batch_size = self._spec, -1
        for tensor in request.inputs:
            if not tensor.shape:
                raise self._error(
                    request,
                    f"input '{tensor.name}' has no shape but model requires batch dimension "
                    f"for '{spec.name}'",
                )
            size = tensor.shape[0]
            if size != batch_size:
                if batch_size != -1:
                    raise self._error(
                        request,
                        f"input '{tensor.name}' batch size does not match other inputs for "
                        f"'{spec.name}'",
                    )
                batch_size = size
        if batch_size > spec.max_batch_size:
            raise self._error(
                request,
                f"inference request batch-size must be <= {spec.max_batch_size} for '{spec.name}'",
            )
        if batch_size <= 0:
            raise self._error(
                request, f"inference request batch-size must be >= 1 for '{spec.name}'"
            )
        return batch_size

    def _check_shape(
        self, request: InferRequest, tensor: Tensor, rule: _InputRule, offset: int
    ) -> None:
        shape, dims = tensor.shape, rule.dims
        if len(shape) != len(dims) + offset:
            raise self._wrong_shape(request, tensor, dims)
        for at, dim in enumerate(dims, offset):
            if dim != shape[at] and (dim != -1 or shape[at] < 0):
                raise self._wrong_shape(request, tensor, dims)
        if rule.element_bytes == 0:
            if request.string_faults is None:
                check_byte_strings(request, tensor, prod(shape), self._spec.name)
            elif tensor.name in request.string_faults:
                raise request.string_faults[tensor.name].copy()
        elif len(tensor.data) != prod(shape) * rule.element_bytes:
            raise self._wrong_size(request, tensor, prod(shape) * rule.element_bytes)

    def _check_duplicates(self, request: InferRequest) -> None:
        names = {tensor.name for tensor in request.inputs}
        if len(names) == len(request.inputs):
            if len(names) < len(self._rules):
                self._check_required(request, names)
            return
        seen: set[str] = set()
        for tensor in request.inputs:
            if tensor.name in seen:
                raise self._error(request, f"input '{tensor.name}' already exists in request")
            seen.add(tensor.name)

    def _check_required(self, request: InferRequest, names: set[str]) -> None:
        if any(
            name not in names and not tensor.is_optional
            for name, tensor in self._spec.inputs.items()
        ):
            raise self._wrong_count(request)

    # Messages.

    def _wrong_input(
        self, request: InferRequest, tensor: Tensor, rule: _InputRule | None
    ) -> NaiadError:
        if rule is None:
            # Unlike the other messages, this one of Triton does not contain the request id.
            return invalid_arg(
                f"unexpected inference input '{tensor.name}' for model '{self._spec.name}'"
            )
        return self._error(
            request,
            f"inference input '{tensor.name}' data-type is '{tensor.datatype}', "
            f"but model '{self._spec.name}' expects '{rule.datatype}'",
        )

    def _wrong_size(self, request: InferRequest, tensor: Tensor, expected: int) -> NaiadError:
        return self._error(
            request,
            f"input byte size mismatch for input '{tensor.name}' for model '{self._spec.name}'. "
            f"Expected {expected}, got {len(tensor.data)}",
        )

    def _wrong_count(self, request: InferRequest) -> NaiadError:
        got = [tensor.name for tensor in request.inputs]
        given = set(got)
        missing = [
            name
            for name, tensor in self._spec.inputs.items()
            if not tensor.is_optional and name not in given
        ]
        total, required = len(self._rules), self._num_required
        expected = (
            f"expected {total} inputs"
            if required == total
            else f"expected number of inputs between {required} and {total}"
        )
        return self._error(
            request,
            f"{expected} but got {len(got)} inputs for model '{self._spec.name}'. "
            f"Got input(s) [{_quoted(got)}], but missing required input(s) [{_quoted(missing)}]. "
            "Please provide all required input(s).",
        )

    def _wrong_shape(self, request: InferRequest, tensor: Tensor, dims: list[int]) -> NaiadError:
        has_batch = self._spec.max_batch_size > 0
        expected = [-1, *dims] if has_batch else dims
        return self._error(
            request,
            f"unexpected shape for input '{tensor.name}' for model '{self._spec.name}'. "
            f"Expected {_dims(expected)}, got "
            f"{_dims(tensor.shape)}.{_BATCH_NOTE if has_batch else ' '}",
        )

    def _error(self, request: InferRequest, message: str) -> NaiadError:
        return invalid_arg(f"[request id: {request.id or '<id_unknown>'}] {message}")


def _rule(tensor: TensorSpec) -> _InputRule:
    element_bytes = DATATYPES[tensor.datatype].byte_size
    is_fixed = element_bytes > 0 and -1 not in tensor.dims
    return _InputRule(
        tensor.datatype,
        tensor.dims,
        prod(tensor.dims) * element_bytes if is_fixed else -1,
        element_bytes,
    )


def has_long_strings(request: InferRequest, max_bytes: int) -> bool:
    """True if counting the elements of the BYTES inputs takes long."""
    for tensor in request.inputs:  # a plain loop: this runs for every request of the full path
        if len(tensor.data) > max_bytes and tensor.datatype == "BYTES":
            return True
    return False


def check_strings(request: InferRequest, model_name: str) -> None:
    """Checks the data of all BYTES inputs, so that `RequestCheck.check` need not. It may run in any
    thread. Tensors in shared memory must have been read before. Faults are kept in the request:
    `RequestCheck.check` raises them when it has found no other fault that Triton reports first."""
    if request.regions is not None:
        return
    strings = [tensor for tensor in request.inputs if tensor.datatype == "BYTES"]
    if any(dim < 0 for tensor in strings for dim in tensor.shape):
        return
    request.string_faults = {}
    for tensor in strings:
        try:
            check_byte_strings(request, tensor, prod(tensor.shape), model_name)
        except NaiadError as error:
            # A copy, because the traceback refers to the request, and the request to the fault.
            request.string_faults.setdefault(tensor.name, error.copy())


_RUN_INTERVAL = 4096
_MIN_RUN_BYTES = 64 * 1024


def check_byte_strings(
    request: InferRequest, tensor: Tensor, expected: int, model_name: str
) -> None:
    """Raises NaiadError unless the data contains exactly `expected` complete elements. It reads
    only the lengths, and stops at the first surplus element."""
    view, end, at, count = memoryview(tensor.data), len(tensor.data), 0, 0
    of = f"for inference input '{tensor.name}' for model '{model_name}'"
    prefix = f"[request id: {request.id or '<id_unknown>'}] "
    next_run = 0
    while at < end:
        if count >= next_run and end - at > _MIN_RUN_BYTES:
            run = count_equal(view, at, expected - count)
            count += run.num_elements
            at += run.num_bytes
            next_run = count + (0 if run.may_continue else _RUN_INTERVAL)
            if run.num_elements:
                continue
        if count >= expected:
            raise invalid_arg(
                f"{prefix}unexpected number of string elements {count + 1} {of}, expecting "
                f"{expected}"
            )
        if end - at < 4:
            raise invalid_arg(
                f"{prefix}incomplete string length indicator {of}, expecting 4 bytes but "
                f"only {end - at} bytes available. "
                f"Please make sure the string length indicator is in one buffer."
            )
        size = int.from_bytes(view[at : at + 4], "little")
        at += 4
        if end - at < size:
            raise invalid_arg(
                f"{prefix}incomplete string data {of}, expecting string of length {size} but "
                f"only {end - at} bytes available. "
                f"Please make sure the string is in one buffer."
            )
        at += size
        count += 1
    if count != expected:
        raise invalid_arg(f"{prefix}expected {expected} string elements {of}, got {count}")


_MAX_SHOWN = 256


def _quoted(names: list[str]) -> str:
    return _joined([f"'{name}'" for name in names[:_MAX_SHOWN]], len(names))


def _dims(dims: list[int]) -> str:
    return "[" + _joined([str(dim) for dim in dims[:_MAX_SHOWN]], len(dims)) + "]"


def _joined(shown: list[str], count: int) -> str:
    """An error repeats only the beginning of a list that no honest request contains."""
    more = [] if count <= len(shown) else [f"... ({count - len(shown)} more)"]
    return ",".join(shown + more)
