from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from naiad.core.model_spec import ModelSpec, TensorSpec
from naiad.core.request import InferRequest
from naiad.core.response import InferResponse
from naiad.core.tensor import Tensor
from naiad.errors import Code, NaiadError, invalid_arg
from naiad.pb.grpc_service_pb2 import (
    InferParameter,
    ModelInferRequest,
    ModelInferResponse,
    ModelStreamInferResponse,
)
from naiad.protocol.v2 import grpc_codec
from naiad.protocol.v2.grpc_request import PLAIN, RequestOptions, build_template

SPEC = ModelSpec(
    "m",
    1,
    [1],
    "python",
    0,
    {},
    {"O": TensorSpec("O", "FP32", [4], [4], labels=["a", "b", "c", "d"])},
)


def plain(
    *,
    request_id: str = "",
    raw: tuple[bytes, ...] = (b"\0" * 8, b"\1" * 8),
    outputs: tuple[str, ...] = ("O",),
) -> ModelInferRequest:
    message = ModelInferRequest(model_name="m", id=request_id, raw_input_contents=raw)
    for i in range(len(raw)):
        message.inputs.add(name=f"I{i}", datatype="FP32", shape=[1, 2])
    for name in outputs:
        message.outputs.add(name=name)
    return message


def decode(message: ModelInferRequest) -> tuple[InferRequest, RequestOptions]:
    return grpc_codec.decode_request(message.SerializeToString())


def by_upb(data: bytes) -> tuple[InferRequest, RequestOptions]:
    message = ModelInferRequest.FromString(data)
    template = build_template(message)
    return template.fill("", list(message.raw_input_contents)), template.options


def outcome(decode: Any, data: Any) -> object:
    """What a decoder makes of it: the request, or the error."""
    try:
        request, options = decode(data)
    except NaiadError as error:
        return error.code, error.message
    return fields(request), options


def fields(request: InferRequest) -> dict[str, Any]:
    found = {name: getattr(request, name) for name in InferRequest.__struct_fields__}
    found["inputs"] = [
        (tensor.name, tensor.datatype, tensor.shape, bytes(tensor.data))
        for tensor in request.inputs
    ]
    return found


names = st.one_of(
    st.sampled_from(["m", "add_sub", "", ":", "a:b:c", "::::", "é"]), st.text(max_size=10)
)
tensors = st.lists(
    st.builds(
        lambda name, datatype, shape: ModelInferRequest.InferInputTensor(
            name=name, datatype=datatype, shape=shape
        ),
        names,
        st.sampled_from(["FP32", "BYTES", "INT64", "FOO", ""]),
        st.lists(
            st.one_of(st.integers(0, 300), st.just(58), st.integers(-(2**63), 2**63 - 1)),
            max_size=4,
        ),
    ),
    max_size=4,
)
parameters = st.dictionaries(
    st.one_of(
        st.sampled_from(["sequence_id", "timeout", "triton_enable_empty_final_response"]), names
    ),
    st.one_of(
        st.builds(lambda value: InferParameter(int64_param=value), st.integers(0, 99)),
        st.builds(lambda value: InferParameter(bool_param=value), st.booleans()),
        st.builds(lambda value: InferParameter(string_param=value), names),
    ),
    max_size=3,
)
messages = st.builds(
    lambda name, version, request_id, inputs, outputs, raw, parameters: ModelInferRequest(
        model_name=name,
        model_version=version,
        id=request_id,
        inputs=inputs,
        outputs=[ModelInferRequest.InferRequestedOutputTensor(name=output) for output in outputs],
        raw_input_contents=raw,
        parameters=parameters,
    ),
    names,
    st.sampled_from(["", "1", "12:3"]),
    st.one_of(names, st.text(min_size=130, max_size=200)),
    tensors,
    st.lists(names, max_size=3, unique=True),
    st.lists(st.one_of(st.binary(max_size=20), st.integers(120, 140).map(bytes)), max_size=4),
    parameters,
)


class TestDecode:
    @given(messages)
    def test_means_what_it_means_to_upb(self, message: ModelInferRequest) -> None:
        data = message.SerializeToString()
        expected = outcome(by_upb, data)
        for form in (data, bytearray(data), memoryview(data)):
            assert outcome(grpc_codec.decode_request, form) == expected

    @given(st.binary(max_size=60))
    def test_any_bytes(self, data: bytes) -> None:
        self.check_any_bytes(data)

    def check_any_bytes(self, data: bytes) -> None:
        try:
            expected = by_upb(data)
        except Exception:
            with pytest.raises(NaiadError):
                grpc_codec.decode_request(data)
            return
        assert fields(grpc_codec.decode_request(data)[0]) == fields(expected[0])

    @given(messages, st.integers(0, 300), st.integers(0, 255))
    def test_a_changed_byte(self, message: ModelInferRequest, at: int, value: int) -> None:
        data = bytearray(message.SerializeToString())
        if data:
            data[at % len(data)] = value
            self.check_any_bytes(bytes(data))

    def test_fields_in_an_unusual_order(self) -> None:
        message = plain()
        raw = ModelInferRequest(raw_input_contents=message.raw_input_contents).SerializeToString()
        del message.raw_input_contents[:]
        data = raw + message.SerializeToString()
        assert fields(grpc_codec.decode_request(data)[0]) == fields(by_upb(data)[0])

    def test_fields_that_we_do_not_know(self) -> None:
        data = plain().SerializeToString() + b"\xf2\x3f\x03abc"
        assert grpc_codec.decode_request(data)[0].model_name == "m"

    def test_a_changed_request_does_not_change_the_next(self) -> None:
        """Shapes and names of outputs are shared, and replaced by whoever wants others."""
        first, _ = decode(plain())
        first.inputs[0] = Tensor("I", "FP32", [7], b"")
        first.requested_outputs = ["X"]
        first.parameters["x"] = 1
        second, _ = decode(plain())
        assert second.inputs[0].shape == [1, 2]
        assert second.requested_outputs == ["O"]
        assert second.parameters == {}

    def test_ids_differ_between_equal_requests(self) -> None:
        assert [decode(plain(request_id=name))[0].id for name in ("a", "", "b", "a:b")] == [
            "a",
            "",
            "b",
            "a:b",
        ]

    def test_tensors_of_a_view_are_views(self) -> None:
        data = plain(raw=(b"\0" * 5000, b"\1" * 70_000)).SerializeToString()
        request, _ = grpc_codec.decode_request(memoryview(data))
        assert all(
            isinstance(tensor.data, memoryview) and tensor.data.obj is data
            for tensor in request.inputs
        )

    def test_the_client_s_wishes(self) -> None:
        message = plain()
        message.outputs[0].parameters["classification"].int64_param = 3
        message.parameters["triton_enable_empty_final_response"].bool_param = True
        message.parameters["sequence_id"].int64_param = -1
        message.parameters["sequence_start"].bool_param = True
        message.parameters["sequence_end"].bool_param = True
        message.parameters["priority"].uint64_param = 2
        message.parameters["timeout"].int64_param = 1000
        message.parameters["mine"].double_param = 0.5
        request, options = decode(message)
        assert options == RequestOptions({"O": 3}, True)
        assert (request.sequence_id, request.sequence_start, request.sequence_end) == (
            2**64 - 1,
            True,
            True,
        )
        assert (request.priority, request.timeout_us, request.parameters) == (
            2,
            1000,
            {"mine": 0.5},
        )

    def test_unknown_datatypes_are_called_as_triton_calls_them(self) -> None:
        message = plain()
        message.inputs[0].datatype = "FOO"
        assert decode(message)[0].inputs[0].datatype == "<invalid>"


CONTENTS: dict[str, tuple[str, list[Any], type[np.generic]]] = {
    "bool_contents": ("BOOL", [True, False], np.bool_),
    "int_contents": ("INT32", [1, -2], np.int32),
    "int64_contents": ("INT64", [1, -(2**40)], np.int64),
    "uint_contents": ("UINT32", [1, 2**32 - 1], np.uint32),
    "uint64_contents": ("UINT64", [1, 2**63], np.uint64),
    "fp32_contents": ("FP32", [1.5, -2.5], np.float32),
    "fp64_contents": ("FP64", [1.5, 1e300], np.float64),
}
NARROW = [
    ("int_contents", "INT8", np.int8),
    ("int_contents", "INT16", np.int16),
    ("uint_contents", "UINT8", np.uint8),
    ("uint_contents", "UINT16", np.uint16),
]


def with_contents(field: str, datatype: str, values: list[Any]) -> ModelInferRequest:
    message = ModelInferRequest(model_name="m")
    tensor = message.inputs.add(name="I", datatype=datatype, shape=[len(values)])
    getattr(tensor.contents, field).extend(values)
    return message


class TestContents:
    @pytest.mark.parametrize("field", CONTENTS)
    def test_become_raw(self, field: str) -> None:
        datatype, values, dtype = CONTENTS[field]
        request, options = decode(with_contents(field, datatype, values))
        assert request.inputs[0].data == np.array(values, dtype).tobytes()
        assert options is PLAIN

    @pytest.mark.parametrize(("field", "datatype", "dtype"), NARROW)
    def test_narrow_types_keep_their_low_bytes(self, field: str, datatype: str, dtype: Any) -> None:
        values = [1, 300, 70_000] if field == "uint_contents" else [1, -1, 300, 70_000]
        expected = np.array(values, np.int64).astype(dtype).tobytes()
        assert decode(with_contents(field, datatype, values))[0].inputs[0].data == expected

    def test_strings(self) -> None:
        request, _ = decode(with_contents("bytes_contents", "BYTES", [b"ab", b""]))
        assert request.inputs[0].data == b"\2\0\0\0ab\0\0\0\0"

    def test_nothing_is_empty(self) -> None:
        message = with_contents("fp32_contents", "FP32", [])
        message.inputs[0].contents.SetInParent()
        assert decode(message)[0].inputs[0].data == b""


def _error(change: Any, base: ModelInferRequest | None = None) -> tuple[Code, str]:
    message = base or plain()
    change(message)
    with pytest.raises(NaiadError) as caught:
        decode(message)
    return caught.value.code, caught.value.message


PARAMETERS = [
    (
        "sequence_id",
        InferParameter(bool_param=True),
        "invalid value type for 'sequence_id' parameter, expected int64_param or string_param.",
    ),
    (
        "sequence_start",
        InferParameter(int64_param=1),
        "invalid value type for 'sequence_start' parameter, expected bool_param.",
    ),
    (
        "sequence_end",
        InferParameter(string_param="x"),
        "invalid value type for 'sequence_end' parameter, expected bool_param.",
    ),
    (
        "priority",
        InferParameter(string_param="x"),
        "invalid value type for 'priority' parameter, expected int64_param or uint64_param.",
    ),
    (
        "priority",
        InferParameter(int64_param=-1),
        "invalid value for 'priority', expected value >= 0.",
    ),
    (
        "timeout",
        InferParameter(bool_param=True),
        "invalid value type for 'timeout' parameter, expected int64_param.",
    ),
    (
        "mine",
        InferParameter(),
        "invalid value type for 'mine' parameter, expected int64_param, bool_param, or "
        "string_param.",
    ),
    (
        "mine",
        InferParameter(uint64_param=1),
        "invalid value type for 'mine' parameter, expected int64_param, bool_param, or "
        "string_param.",
    ),
    (
        "triton_x",
        InferParameter(bool_param=True),
        "parameter keys starting with 'triton_' are reserved for Triton usage. Only the "
        "following keys starting with 'triton_' are "
        "allowed: triton_enable_empty_final_response",
    ),
    (
        "triton_enable_empty_final_response",
        InferParameter(int64_param=1),
        "invalid value type for 'triton_enable_empty_final_response' parameter, expected "
        "bool_param.",
    ),
]


class TestTritonsWords:
    @pytest.mark.parametrize(("name", "value", "words"), PARAMETERS)
    def test_parameters(self, name: str, value: InferParameter, words: str) -> None:
        assert _error(lambda message: message.parameters[name].CopyFrom(value)) == (
            Code.INVALID_ARG,
            words,
        )

    def test_not_protobuf(self) -> None:
        with pytest.raises(NaiadError, match=r"^Unable to parse request$") as caught:
            grpc_codec.decode_request(b"\xff\xff")
        assert caught.value.code is Code.INTERNAL

    def test_contents_and_raw(self) -> None:
        words = (
            "contents field must not be specified when using raw_input_contents for 'I0' for "
            "model 'm'"
        )
        assert _error(lambda message: message.inputs[0].contents.fp32_contents.append(1)) == (
            Code.INVALID_ARG,
            words,
        )

    def test_raw_too_short(self) -> None:
        words = "unable to find data for input tensor 'I1' for model 'm' in request."
        assert _error(lambda message: message.raw_input_contents.pop()) == (Code.INVALID_ARG, words)

    def test_surplus_raw_is_ignored(self) -> None:
        message = plain()
        message.raw_input_contents.append(b"more")
        assert len(decode(message)[0].inputs) == 2

    @pytest.mark.parametrize(
        ("field", "carried"),
        [("int_contents", "INT32"), ("fp64_contents", "FP64"), ("bytes_contents", "BYTES")],
    )
    def test_contents_of_another_type(self, field: str, carried: str) -> None:
        message = with_contents(field, "FP32", [b"x"] if carried == "BYTES" else [1])
        words = (
            "unexpected explicit tensor data for input tensor 'I' for model 'm' of type "
            f"'{carried}', expected datatype 'FP32'"
        )
        assert _error(lambda message: None, message) == (Code.INVALID_ARG, words)

    @pytest.mark.parametrize("datatype", ["FP16", "BF16"])
    def test_types_without_contents(self, datatype: str) -> None:
        _, words = _error(lambda message: None, with_contents("fp32_contents", datatype, [1.0]))
        assert words.startswith(
            "unexpected explicit tensor data for input tensor 'I' for model 'm' of type 'FP32'"
        )

    def test_contents_twice(self) -> None:
        message = with_contents("int_contents", "INT32", [1])
        message.inputs[0].contents.int64_contents.append(1)
        assert _error(lambda message: None, message)[1].endswith(
            "'m', binary data was already supplied."
        )

    def test_outputs(self) -> None:
        def classify(value: InferParameter) -> Any:
            return lambda message: message.outputs[0].parameters["classification"].CopyFrom(value)

        assert (
            _error(classify(InferParameter(int64_param=0)))[1]
            == "invalid value for 'classification' parameter, expected >= 0"
        )
        words = "invalid value type for 'classification' parameter, expected int64_param"
        assert _error(classify(InferParameter(string_param="x")))[1] == words
        assert (
            _error(lambda message: message.outputs.add(name="O"))[1]
            == "[request id: <id_unknown>] output 'O' already exists in request"
        )
        again = plain(request_id="7", outputs=("O", "O"))
        assert (
            _error(lambda message: None, again)[1]
            == "[request id: 7] output 'O' already exists in request"
        )

        def both(message: ModelInferRequest) -> None:
            message.outputs[0].parameters["classification"].int64_param = 1
            message.outputs[0].parameters["shared_memory_region"].string_param = "r"

        assert (
            _error(both)[1] == "output can't set both 'shared_memory_region' and 'classification'"
        )

    def test_the_same_error_again_and_again_is_a_new_one(self) -> None:
        """Requests share a template, never an exception: its traceback would grow."""
        message = plain()
        message.inputs[0].parameters["shared_memory_region"].string_param = "r"
        found = []
        for _ in range(3):
            with pytest.raises(NaiadError) as caught:
                decode(message)
            found.append(caught.value)
        assert len({id(error) for error in found}) == 3


class TestIdentity:
    def test_of_a_refused_request(self) -> None:
        message = plain(request_id="7")
        message.model_version = "3"
        assert grpc_codec.identify(message.SerializeToString()) == grpc_codec.RequestIdentity(
            "m", "3", "7"
        )

    @pytest.mark.parametrize("data", [b"\xff\xff", b"\x0a\x05ab", b"\x0a"])
    def test_of_rubbish(self, data: bytes) -> None:
        assert grpc_codec.identify(data) is None

    def test_of_the_beginning_of_a_large_message(self) -> None:
        data = plain(request_id="x" * 200, raw=(b"\7" * 100_000,)).SerializeToString()
        name, at = grpc_codec.model_of(data[:4096])
        assert name == "m"
        assert data[at : at + 3] == b"\7\7\7"
        assert data[at - 1] != 7

    @pytest.mark.parametrize("data", [b"", b"\x0a\x7fab", b"\xff" * 50])
    def test_of_a_beginning_that_says_nothing(self, data: bytes) -> None:
        assert grpc_codec.model_of(data) == ("", -1)


outputs = st.lists(
    st.builds(
        Tensor,
        names,
        st.sampled_from(["FP32", "BYTES"]),
        st.lists(st.integers(0, 2**40), max_size=3),
        st.one_of(
            st.binary(max_size=30),
            st.integers(100, 200).map(bytes),
            st.integers(0, 100_000).map(bytes),
        ),
    ),
    max_size=3,
)
values = st.one_of(
    st.booleans(), st.integers(-(2**63), 2**64 - 1), st.floats(allow_nan=False), st.text(max_size=5)
)


def joined(pieces: grpc_codec.Pieces) -> bytes:
    data = b"".join(pieces[0])
    assert len(data) == pieces[1]
    return data


class TestEncode:
    @given(names, names, names, outputs, st.dictionaries(names, values, max_size=3))
    def test_upb_reads_it(
        self,
        name: str,
        version: str,
        request_id: str,
        tensors: list[Tensor],
        parameters: dict[str, Any],
    ) -> None:
        response = InferResponse(name, version, request_id, tensors, parameters)
        message = ModelInferResponse.FromString(
            joined(grpc_codec.encode_response(response, InferRequest("m", []), PLAIN, SPEC))
        )
        assert (message.model_name, message.model_version, message.id) == (
            name,
            version,
            request_id,
        )
        assert [(o.name, o.datatype, list(o.shape)) for o in message.outputs] == [
            (t.name, t.datatype, t.shape) for t in tensors
        ]
        assert list(message.raw_output_contents) == [t.data for t in tensors]
        found = {
            key: getattr(value, value.WhichOneof("parameter_choice"))
            for key, value in message.parameters.items()
        }
        assert found == parameters
        assert all(type(found[key]) is type(parameters[key]) for key in parameters)

    def test_large_tensors_are_not_copied(self) -> None:
        data = memoryview(bytearray(100_000))
        response = InferResponse(
            "m", "1", "", [Tensor("A", "UINT8", [100_000], data), Tensor("B", "UINT8", [1], b"x")]
        )
        pieces, _ = grpc_codec.encode_response(response, InferRequest("m", []), PLAIN, SPEC)
        assert len(pieces) == 3
        assert pieces[1] is data

    def test_only_what_was_asked_for(self) -> None:
        response = InferResponse(
            "m", "1", "", [Tensor("A", "UINT8", [1], b"a"), Tensor("B", "UINT8", [1], b"b")]
        )
        request = InferRequest("m", [], requested_outputs=["B"])
        message = ModelInferResponse.FromString(
            joined(grpc_codec.encode_response(response, request, PLAIN, SPEC))
        )
        assert [output.name for output in message.outputs] == ["B"]

    def test_classes(self) -> None:
        response = InferResponse(
            "m", "1", "", [Tensor("O", "FP32", [4], np.array([0.5, 3, 1, 2], np.float32).tobytes())]
        )
        options = RequestOptions({"O": 2})
        message = ModelInferResponse.FromString(
            joined(grpc_codec.encode_response(response, InferRequest("m", []), options, SPEC))
        )
        assert (message.outputs[0].datatype, list(message.outputs[0].shape)) == ("BYTES", [2])
        assert message.raw_output_contents[0] == b"\x0c\0\0\x003.000000:1:b\x0c\0\0\x002.000000:3:d"

    def test_classes_of_strings(self) -> None:
        response = InferResponse("m", "1", "", [Tensor("O", "BYTES", [1], b"\0\0\0\0")])
        with pytest.raises(NaiadError, match="unsupported type 'BYTES'"):
            grpc_codec.encode_response(
                response, InferRequest("m", []), RequestOptions({"O": 2}), SPEC
            )


class TestStream:
    @pytest.mark.parametrize("is_final", [True, False])
    @pytest.mark.parametrize("size", [1, 200_000])
    def test_response(self, is_final: bool, size: int) -> None:
        response = InferResponse(
            "m", "1", "7", [Tensor("A", "UINT8", [size], bytes(size))], {"mine": 1}
        )
        pieces = grpc_codec.encode_response(response, InferRequest("m", []), PLAIN, SPEC)
        message = ModelStreamInferResponse.FromString(
            joined(grpc_codec.encode_stream_response(pieces, is_final=is_final))
        )
        assert message.error_message == ""
        assert message.infer_response.parameters["triton_final_response"].bool_param is is_final
        assert message.infer_response.parameters["mine"].int64_param == 1
        assert message.infer_response.raw_output_contents[0] == bytes(size)

    def test_empty_final(self) -> None:
        message = ModelStreamInferResponse.FromString(
            grpc_codec.encode_empty_final(InferRequest("m", [], "2", "7"))
        )
        assert message == ModelStreamInferResponse(
            infer_response=ModelInferResponse(
                model_name="m",
                model_version="2",
                id="7",
                parameters={"triton_final_response": InferParameter(bool_param=True)},
            )
        )

    def test_errors(self) -> None:
        error = invalid_arg("no")
        parameters = {"triton_final_response": InferParameter(bool_param=False)}
        message = ModelStreamInferResponse.FromString(
            grpc_codec.encode_stream_error(error, InferRequest("m", [], "", "7"), is_final=False)
        )
        assert message == ModelStreamInferResponse(
            error_message="no",
            infer_response=ModelInferResponse(model_name="m", id="7", parameters=parameters),
        )
        message = ModelStreamInferResponse.FromString(
            grpc_codec.encode_stream_rejection(error, "7")
        )
        assert message == ModelStreamInferResponse(
            error_message="no", infer_response=ModelInferResponse(id="7")
        )
