"""Every unary RPC, with good and bad requests. Messages are built with tritonclient's generated classes and sent as bytes."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Any

import numpy as np
from google.protobuf.message import Message
from tritonclient.grpc import service_pb2 as pb

from tests.differential.case import Case, GrpcCase
from tests.differential.cases.infer_binary import CUT_OFF

NOTHING: dict[str, Any] = {}

ROW = np.arange(16, dtype=np.float32)
ONES = np.ones(16, dtype=np.float32)


def call(name: str, rpc: str, message: Message | bytes, **options: Any) -> Case:
    data = message if isinstance(message, bytes) else message.SerializeToString()
    return GrpcCase(f"{rpc}: {name}", rpc, (data,), **options)


def described(name: str, datatype: str, shape: list[int], **contents: list[Any]) -> Any:
    tensor = pb.ModelInferRequest.InferInputTensor(name=name, datatype=datatype, shape=shape)
    for field, values in contents.items():
        getattr(tensor.contents, field).extend(values)
    return tensor


def parameter(value: Any) -> Any:
    match value:
        case bool():
            return pb.InferParameter(bool_param=value)
        case int():
            return pb.InferParameter(int64_param=value)
        case float():
            return pb.InferParameter(double_param=value)
        case _:
            return pb.InferParameter(string_param=value)


def request(
    model: str,
    inputs: list[Any],
    raw: Sequence[bytes] = (),
    outputs: Sequence[Any] = (),
    parameters: dict[str, Any] = NOTHING,
    version: str = "",
    id: str = "",
) -> Any:
    message = pb.ModelInferRequest(model_name=model, model_version=version, id=id, inputs=inputs, raw_input_contents=raw, outputs=outputs)
    for key, value in parameters.items():
        message.parameters[key].CopyFrom(value if isinstance(value, pb.InferParameter) else parameter(value))
    return message


def output(name: str, **parameters: Any) -> Any:
    tensor = pb.ModelInferRequest.InferRequestedOutputTensor(name=name)
    for key, value in parameters.items():
        tensor.parameters[key].CopyFrom(value if isinstance(value, pb.InferParameter) else parameter(value))
    return tensor


def add_sub(first: Any = None, raw: list[bytes] | None = None, **options: Any) -> Any:
    inputs = [described("INPUT0", "FP32", [1, 16]) if first is None else first, described("INPUT1", "FP32", [1, 16])]
    return request("add_sub", inputs, [ROW.tobytes(), ONES.tobytes()] if raw is None else raw, **options)


def typed(datatype: str, field: str, values: list[Any], size: int | None = None) -> Any:
    return request("types", [described(f"IN_{datatype}", datatype, [len(values) if size is None else size], **{field: values})])


def raw_typed(datatype: str, payload: bytes, size: int = 3) -> Any:
    return request("types", [described(f"IN_{datatype}", datatype, [size])], [payload])


def strings(*items: bytes) -> bytes:
    return b"".join(struct.pack("<I", len(item)) + item for item in items)


def infer(name: str, message: Any, **options: Any) -> Case:
    return call(name, "ModelInfer", message, **options)


def info(name: str, parameters: dict[str, Any], **options: Any) -> Case:
    any_input = [described("ANY", "INT32", [1], int_contents=[1])]
    return infer(f"parameters: {name}", request("request_info", any_input, parameters=parameters), **options)


def refused(code: str, message: str) -> dict[str, Any]:
    return {"code": code, "message": message, "response": None}


SHM_OFF = refused("UNIMPLEMENTED", "Client shared memory is disabled. Start the server with '--allow-client-shm=true' to enable.")
NO_CLASSES = "class result not available for output due to unsupported type 'BYTES'"
SHM_LATER = "2.73 has clients' shared memory off unless it is asked for"
HEALTH = [
    call("plain", "ServerLive", pb.ServerLiveRequest()),
    call("plain", "ServerReady", pb.ServerReadyRequest()),
    call("known", "ModelReady", pb.ModelReadyRequest(name="add_sub")),
    call("known version", "ModelReady", pb.ModelReadyRequest(name="versions_specific", version="1")),
    call("version outside the policy", "ModelReady", pb.ModelReadyRequest(name="versions_specific", version="2")),
    call("unknown", "ModelReady", pb.ModelReadyRequest(name="nowhere")),
    call("no name", "ModelReady", pb.ModelReadyRequest()),
    call("version that is no number", "ModelReady", pb.ModelReadyRequest(name="add_sub", version="one")),
    GrpcCase("health of the server", "Check", (b"",), service="grpc.health.v1.Health"),
    GrpcCase("health of a service", "Check", (b"\x0a\x07add_sub",), service="grpc.health.v1.Health"),
    GrpcCase("unknown method", "Explain", (b"",), normalise=("words",)),
    GrpcCase("unknown service", "Check", (b"",), service="inference.Nothing", normalise=("words",)),
]
METADATA = [
    call("plain", "ServerMetadata", pb.ServerMetadataRequest(), normalise=("version",)),
    *(
        call(model, "ModelMetadata", pb.ModelMetadataRequest(name=model))
        for model in ("add_sub", "types", "image", "reshaped", "versions_latest", "auto_class")
    ),
    call("version", "ModelMetadata", pb.ModelMetadataRequest(name="versions_all", version="1")),
    call("unknown", "ModelMetadata", pb.ModelMetadataRequest(name="nowhere")),
    call("unknown version", "ModelMetadata", pb.ModelMetadataRequest(name="add_sub", version="9")),
    call("version that is no number", "ModelMetadata", pb.ModelMetadataRequest(name="add_sub", version="one")),
    call("version that is negative", "ModelMetadata", pb.ModelMetadataRequest(name="add_sub", version="-2")),
    call("no name", "ModelMetadata", pb.ModelMetadataRequest()),
    *(
        call(model, "ModelConfig", pb.ModelConfigRequest(name=model))
        for model in (
            "add_sub",
            "types",
            "image",
            "reshaped",
            "classifier",
            "identity_bytes",
            "versions_specific",
            "auto_static",
            "auto_class",
            "instance_info",
            "observed",
        )
    ),
    call("unknown", "ModelConfig", pb.ModelConfigRequest(name="nowhere")),
]
INFER = [
    infer("raw", add_sub()),
    infer("id", add_sub(id="a request")),
    infer("version", add_sub(version="1")),
    infer("one output", add_sub(outputs=[output("OUTPUT1")])),
    infer("outputs in another order", add_sub(outputs=[output("OUTPUT1"), output("OUTPUT0")]), normalise=("any order",)),
    infer(
        "contents",
        request(
            "add_sub",
            [
                described("INPUT0", "FP32", [1, 16], fp32_contents=ROW.tolist()),
                described("INPUT1", "FP32", [1, 16], fp32_contents=ONES.tolist()),
            ],
        ),
    ),
    infer("BOOL contents", typed("BOOL", "bool_contents", [True, False])),
    infer("UINT8 contents", typed("UINT8", "uint_contents", [0, 255])),
    infer("UINT8 contents out of range", typed("UINT8", "uint_contents", [256, 300])),
    infer("UINT16 contents", typed("UINT16", "uint_contents", [0, 65535])),
    infer("UINT32 contents", typed("UINT32", "uint_contents", [0, 2**32 - 1])),
    infer("UINT64 contents", typed("UINT64", "uint64_contents", [0, 2**64 - 1])),
    infer("INT8 contents", typed("INT8", "int_contents", [-128, 127])),
    infer("INT16 contents", typed("INT16", "int_contents", [-32768, 32767])),
    infer("INT32 contents", typed("INT32", "int_contents", [-(2**31), 2**31 - 1])),
    infer("INT64 contents", typed("INT64", "int64_contents", [-(2**63), 2**63 - 1])),
    infer("FP32 contents", typed("FP32", "fp32_contents", [0.1, float("nan")])),
    infer("FP64 contents", typed("FP64", "fp64_contents", [0.1, float("inf")])),
    infer("BYTES contents", typed("BYTES", "bytes_contents", [b"", b"\x00\xff"])),
    infer("FP16 contents", typed("FP16", "fp32_contents", [1.0])),
    infer("BF16 contents", typed("BF16", "fp32_contents", [1.0])),
    infer("FP16 raw", raw_typed("FP16", np.array([1.5, -2, 0], np.float16).tobytes())),
    infer("BF16 raw", raw_typed("BF16", bytes.fromhex("803f00c0ff7f"))),
    infer("BYTES raw", raw_typed("BYTES", strings(b"a", b"", b"\xff"))),
    infer("BOOL raw", raw_typed("BOOL", bytes([1, 0, 1]))),
    infer("an empty tensor", raw_typed("FP32", b"", 0)),
    infer("optional inputs", request("optional_inputs", [described("BASE", "INT32", [1, 2], int_contents=[1, 2])])),
    infer("another version", request("versions_all", [described("ANY", "INT32", [1], int_contents=[1])], version="1")),
    infer(
        "classification",
        request(
            "classifier",
            [described("FEATURES", "FP32", [2, 4], fp32_contents=[1, 4, 2, 3, 9, 8, 7, 6])],
            outputs=[output("SCORES", classification=2), output("RANKS")],
        ),
    ),
    infer("gzip accepted", add_sub(), metadata=(("grpc-accept-encoding", "gzip"),)),
    infer("unknown fields", add_sub().SerializeToString() + b"\xfa\x3f\x03abc"),
    infer(
        "response parameters",
        request("response_parameters", [described("ANY", "INT32", [1], int_contents=[1])]),
        because="response parameters came after 2.51",
        expect={
            "response": {
                "model_name": "response_parameters",
                "model_version": "1",
                "parameters": {"number": {"int64_param": "7"}, "text": {"string_param": "abc"}, "truth": {"bool_param": True}},
                "outputs": [{"name": "OUT", "datatype": "INT32", "shape": ["1"]}],
                "raw_output_contents": ["AQAAAA=="],
            }
        },
    ),
    infer("BLS", request("bls_sync", [described("X", "FP32", [1, 16])], [ROW.tobytes()])),
]
INFER_ERRORS = [
    infer("empty message", b""),
    infer("not a message", b"\xff\xff\xff", normalise=("words",)),
    infer("cut off message", add_sub().SerializeToString()[:-5], normalise=("words",)),
    infer("unknown model", request("nowhere", [])),
    infer("no model", request("", [])),
    infer("unknown version", add_sub(version="9")),
    infer("version that is no number", add_sub(version="one")),
    infer("version outside the policy", request("versions_specific", [described("ANY", "INT32", [1], int_contents=[1])], version="2")),
    infer("decoupled model", request("repeat", [described("COUNT", "INT32", [1], int_contents=[1])])),
    infer("no inputs", request("add_sub", [])),
    infer("one input of two", request("add_sub", [described("INPUT0", "FP32", [1, 16])], [ROW.tobytes()])),
    infer("one input of two with an id", request("add_sub", [described("INPUT0", "FP32", [1, 16])], [ROW.tobytes()], id="seven")),
    infer(
        "an unknown input",
        request("add_sub", [described("INPUT0", "FP32", [1, 16]), described("INPUT9", "FP32", [1, 16])], [ROW.tobytes()] * 2),
    ),
    infer("the same input twice", request("add_sub", [described("INPUT0", "FP32", [1, 16])] * 2, [ROW.tobytes()] * 2)),
    infer("no datatype", add_sub(described("INPUT0", "", [1, 16]))),
    infer("unknown datatype", add_sub(described("INPUT0", "FP99", [1, 16]))),
    infer("another datatype", add_sub(described("INPUT0", "INT32", [1, 16]))),
    infer("no name", add_sub(described("", "FP32", [1, 16]))),
    infer("no shape", add_sub(described("INPUT0", "FP32", []))),
    infer("no batch dimension", add_sub(described("INPUT0", "FP32", [16])), normalise=("which input",)),
    infer("shape of the wrong size", add_sub(described("INPUT0", "FP32", [1, 15]), [ROW[:15].tobytes(), ONES.tobytes()])),
    infer("negative dimension", add_sub(described("INPUT0", "FP32", [-1, 16])), normalise=("words",)),
    infer("negative fixed dimension", add_sub(described("INPUT0", "FP32", [1, -16]))),
    infer("huge dimension", add_sub(described("INPUT0", "FP32", [2**62, 16])), normalise=("words",)),
    infer(
        "batch too large", request("add_sub", [described(name, "FP32", [65, 16]) for name in ("INPUT0", "INPUT1")], [bytes(65 * 64)] * 2)
    ),
    infer(
        "batches of different sizes",
        request("add_sub", [described("INPUT0", "FP32", [1, 16]), described("INPUT1", "FP32", [2, 16])], [bytes(64), bytes(128)]),
        normalise=("which input",),
    ),
    infer("raw too short", add_sub(raw=[ROW.tobytes()[:-4], ONES.tobytes()])),
    infer("raw too long", add_sub(raw=[ROW.tobytes() + b"more", ONES.tobytes()])),
    infer("one raw of two", add_sub(raw=[ROW.tobytes()])),
    infer("three raw for two", add_sub(raw=[ROW.tobytes()] * 3)),
    infer("no data at all", add_sub(raw=[])),
    infer("raw and contents", add_sub(described("INPUT0", "FP32", [1, 16], fp32_contents=ROW.tolist()))),
    infer(
        "contents of another type",
        request(
            "add_sub",
            [
                described("INPUT0", "FP32", [1, 16], int_contents=[1] * 16),
                described("INPUT1", "FP32", [1, 16], fp32_contents=ONES.tolist()),
            ],
        ),
    ),
    infer("too few contents", typed("FP32", "fp32_contents", [1.0], 2)),
    infer("too many contents", typed("FP32", "fp32_contents", [1.0] * 3, 2)),
    infer("too few strings", typed("BYTES", "bytes_contents", [b"a"], 2)),
    infer("too many strings", typed("BYTES", "bytes_contents", [b"a"] * 3, 2)),
    infer("string length cut off", raw_typed("BYTES", strings(b"a", b"b") + b"\x01")),
    infer(
        "string data cut off",
        raw_typed("BYTES", strings(b"a", b"b") + struct.pack("<I", 9) + b"abc"),
        expect={"message": CUT_OFF.format(9)},
        because="the words of 2.73",
    ),
    infer("a string too many", raw_typed("BYTES", strings(b"a", b"b", b"c", b"d"))),
    infer("a string too few", raw_typed("BYTES", strings(b"a", b"b"))),
    infer("an unknown output", add_sub(outputs=[output("OUTPUT7")])),
    infer(
        "the same output twice",
        add_sub(outputs=[output("OUTPUT0"), output("OUTPUT0")]),
        expect=refused("INVALID_ARGUMENT", "[request id: <id_unknown>] output 'OUTPUT0' already exists in request"),
        because="the words of 2.73",
    ),
    infer("an output without a name", add_sub(outputs=[output("")])),
    infer(
        "shared memory that is not registered",
        add_sub(
            request(
                "",
                [
                    pb.ModelInferRequest.InferInputTensor(
                        name="INPUT0",
                        datatype="FP32",
                        shape=[1, 16],
                        parameters={"shared_memory_region": parameter("r"), "shared_memory_byte_size": parameter(64)},
                    )
                ],
            ).inputs[0],
            [ONES.tobytes()],
        ),
        expect=SHM_OFF,
        because=SHM_LATER,
    ),
    infer(
        "shared memory without a size",
        add_sub(
            request(
                "",
                [
                    pb.ModelInferRequest.InferInputTensor(
                        name="INPUT0", datatype="FP32", shape=[1, 16], parameters={"shared_memory_region": parameter("r")}
                    )
                ],
            ).inputs[0],
            [ONES.tobytes()],
        ),
        expect=SHM_OFF,
        because=SHM_LATER,
    ),
    infer(
        "output shared and classified",
        add_sub(outputs=[output("OUTPUT0", shared_memory_region="r", shared_memory_byte_size=64, classification=1)]),
    ),
    infer("classification that is negative", add_sub(outputs=[output("OUTPUT0", classification=-1)])),
    infer("classification that is a string", add_sub(outputs=[output("OUTPUT0", classification="1")])),
    infer(
        "classification of strings",
        request(
            "classifier", [described("FEATURES", "FP32", [1, 4], fp32_contents=[1, 2, 3, 4])], outputs=[output("BEST", classification=1)]
        ),
        is_ours_only=True,
        expect=refused("INVALID_ARGUMENT", NO_CLASSES),
        because="the genuine server dies of it",
    ),
    *(
        infer(f"failing: {kind}", request("failing", [described("KIND", "BYTES", [1], bytes_contents=[kind.encode()])]))
        for kind in (
            "raise",
            "error",
            "UNKNOWN",
            "INTERNAL",
            "NOT_FOUND",
            "INVALID_ARG",
            "UNAVAILABLE",
            "UNSUPPORTED",
            "ALREADY_EXISTS",
            "CANCELLED",
            "wrong type",
        )
    ),
]
PARAMETERS = [
    info("one of each type", {"text": "abc", "whole": 7, "truth": True, "negative": -1}),
    info("a fraction", {"fraction": 1.5}),
    info("an unsigned number", {"unsigned": pb.InferParameter(uint64_param=5)}),
    info("no value", {"nothing": pb.InferParameter()}),
    info("an empty key", {"": 1}),
    info("a reserved prefix", {"triton_x": 1}),
    info("the allowed reserved key", {"triton_enable_empty_final_response": True}),
    info("binary_data_output", {"binary_data_output": True}),
    info("headers", {"headers": "x"}),
    info("sequence of a number", {"sequence_id": 42, "sequence_start": True}),
    info("sequence of a string", {"sequence_id": "walk", "sequence_end": True}),
    info("sequence of a truth", {"sequence_id": True}),
    info("sequence start that is a number", {"sequence_start": 1}),
    info("sequence end that is a string", {"sequence_end": "true"}),
    info("priority", {"priority": 3}),
    info("priority unsigned", {"priority": pb.InferParameter(uint64_param=3)}),
    info("priority that is a string", {"priority": "high"}),
    info("priority that is negative", {"priority": -1}),
    info("timeout", {"timeout": 1000000}),
    info("timeout that is a string", {"timeout": "soon"}),
    info(
        "timeout that is negative",
        {"timeout": -1},
        expect=refused("INVALID_ARGUMENT", "invalid value for 'timeout', expected value >= 0."),
        because="the genuine server makes 584,942 years of it",
    ),
]
ELSEWHERE = [
    call("version", "ModelStatistics", pb.ModelStatisticsRequest(name="versions_latest", version="3"), normalise=("counts",)),
    call("unknown", "ModelStatistics", pb.ModelStatisticsRequest(name="nowhere")),
    call("unknown version", "ModelStatistics", pb.ModelStatisticsRequest(name="add_sub", version="9")),
    call("version that is no number", "ModelStatistics", pb.ModelStatisticsRequest(name="add_sub", version="one")),
    call("all", "RepositoryIndex", pb.RepositoryIndexRequest(), normalise=("any order",)),
    call("ready", "RepositoryIndex", pb.RepositoryIndexRequest(ready=True), normalise=("any order",)),
    call("named repository", "RepositoryIndex", pb.RepositoryIndexRequest(repository_name="mine")),
    call("mode none", "RepositoryModelLoad", pb.RepositoryModelLoadRequest(model_name="add_sub")),
    call("named repository", "RepositoryModelLoad", pb.RepositoryModelLoadRequest(model_name="add_sub", repository_name="mine")),
    call(
        "unrecognized parameter",
        "RepositoryModelLoad",
        pb.RepositoryModelLoadRequest(model_name="add_sub", parameters={"speed": pb.ModelRepositoryParameter(string_param="x")}),
    ),
    call(
        "config of a wrong type",
        "RepositoryModelLoad",
        pb.RepositoryModelLoadRequest(model_name="add_sub", parameters={"config": pb.ModelRepositoryParameter(bool_param=True)}),
    ),
    call(
        "file of a wrong type",
        "RepositoryModelLoad",
        pb.RepositoryModelLoadRequest(model_name="add_sub", parameters={"file:1/model.py": pb.ModelRepositoryParameter(string_param="x")}),
    ),
    call("mode none", "RepositoryModelUnload", pb.RepositoryModelUnloadRequest(model_name="add_sub")),
    call("named repository", "RepositoryModelUnload", pb.RepositoryModelUnloadRequest(model_name="add_sub", repository_name="mine")),
]
CASES: list[Case] = [*HEALTH, *METADATA, *INFER, *INFER_ERRORS, *PARAMETERS, *ELSEWHERE]
