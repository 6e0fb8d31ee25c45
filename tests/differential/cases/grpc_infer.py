"""ModelInfer: every datatype as raw and as typed contents, outputs, request parameters."""

from __future__ import annotations

import numpy as np
from tritonclient.grpc import service_pb2 as pb

from tests.differential.case import Case
from tests.differential.cases.grpc_message import (
    ONES,
    ROW,
    add_sub,
    described,
    infer,
    info,
    output,
    raw_typed,
    refused,
    request,
    strings,
    typed,
)

INFER = [
    infer("raw", add_sub()),
    infer("id", add_sub(id="a request")),
    infer("version", add_sub(version="1")),
    infer("one output", add_sub(outputs=[output("OUTPUT1")])),
    infer(
        "outputs in another order",
        add_sub(outputs=[output("OUTPUT1"), output("OUTPUT0")]),
        normalise=("any order",),
    ),
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
    infer(
        "optional inputs",
        request("optional_inputs", [described("BASE", "INT32", [1, 2], int_contents=[1, 2])]),
    ),
    infer(
        "another version",
        request("versions_all", [described("ANY", "INT32", [1], int_contents=[1])], version="1"),
    ),
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
                "parameters": {
                    "number": {"int64_param": "7"},
                    "text": {"string_param": "abc"},
                    "truth": {"bool_param": True},
                },
                "outputs": [{"name": "OUT", "datatype": "INT32", "shape": ["1"]}],
                "raw_output_contents": ["AQAAAA=="],
            }
        },
    ),
    infer("BLS", request("bls_sync", [described("X", "FP32", [1, 16])], [ROW.tobytes()])),
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
        because="the genuine server reads it as 584,942 years",
    ),
]
CASES: list[Case] = [*INFER, *PARAMETERS]
