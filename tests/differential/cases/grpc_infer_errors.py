"""Malformed and invalid ModelInfer requests, and the status that the client gets."""

from __future__ import annotations

import struct

from tritonclient.grpc import service_pb2 as pb

from tests.differential.case import Case
from tests.differential.cases.grpc_message import (
    ONES,
    ROW,
    add_sub,
    described,
    infer,
    output,
    parameter,
    raw_typed,
    refused,
    request,
    strings,
    typed,
)
from tests.differential.cases.infer_binary import CUT_OFF

SHM_OFF = refused(
    "UNIMPLEMENTED",
    "Client shared memory is disabled. Start the server with '--allow-client-shm=true' to enable.",
)
NO_CLASSES = "class result not available for output due to unsupported type 'BYTES'"
SHM_LATER = "in 2.73, clients' shared memory is off by default"
CASES: list[Case] = [
    infer("empty message", b""),
    infer("not a message", b"\xff\xff\xff", normalise=("message",)),
    infer("cut off message", add_sub().SerializeToString()[:-5], normalise=("message",)),
    infer("unknown model", request("nowhere", [])),
    infer("no model", request("", [])),
    infer("unknown version", add_sub(version="9")),
    infer("version that is no number", add_sub(version="one")),
    infer(
        "version outside the policy",
        request(
            "versions_specific", [described("ANY", "INT32", [1], int_contents=[1])], version="2"
        ),
    ),
    infer(
        "decoupled model", request("repeat", [described("COUNT", "INT32", [1], int_contents=[1])])
    ),
    infer("no inputs", request("add_sub", [])),
    infer(
        "one input of two",
        request("add_sub", [described("INPUT0", "FP32", [1, 16])], [ROW.tobytes()]),
    ),
    infer(
        "one input of two with an id",
        request("add_sub", [described("INPUT0", "FP32", [1, 16])], [ROW.tobytes()], id="seven"),
    ),
    infer(
        "an unknown input",
        request(
            "add_sub",
            [described("INPUT0", "FP32", [1, 16]), described("INPUT9", "FP32", [1, 16])],
            [ROW.tobytes()] * 2,
        ),
    ),
    infer(
        "the same input twice",
        request("add_sub", [described("INPUT0", "FP32", [1, 16])] * 2, [ROW.tobytes()] * 2),
    ),
    infer("no datatype", add_sub(described("INPUT0", "", [1, 16]))),
    infer("unknown datatype", add_sub(described("INPUT0", "FP99", [1, 16]))),
    infer("another datatype", add_sub(described("INPUT0", "INT32", [1, 16]))),
    infer("no name", add_sub(described("", "FP32", [1, 16]))),
    infer("no shape", add_sub(described("INPUT0", "FP32", []))),
    infer(
        "no batch dimension", add_sub(described("INPUT0", "FP32", [16])), normalise=("which input",)
    ),
    infer(
        "shape of the wrong size",
        add_sub(described("INPUT0", "FP32", [1, 15]), [ROW[:15].tobytes(), ONES.tobytes()]),
    ),
    infer(
        "negative dimension", add_sub(described("INPUT0", "FP32", [-1, 16])), normalise=("message",)
    ),
    infer("negative fixed dimension", add_sub(described("INPUT0", "FP32", [1, -16]))),
    infer(
        "huge dimension", add_sub(described("INPUT0", "FP32", [2**62, 16])), normalise=("message",)
    ),
    infer(
        "batch too large",
        request(
            "add_sub",
            [described(name, "FP32", [65, 16]) for name in ("INPUT0", "INPUT1")],
            [bytes(65 * 64)] * 2,
        ),
    ),
    infer(
        "batches of different sizes",
        request(
            "add_sub",
            [described("INPUT0", "FP32", [1, 16]), described("INPUT1", "FP32", [2, 16])],
            [bytes(64), bytes(128)],
        ),
        normalise=("which input",),
    ),
    infer("raw too short", add_sub(raw=[ROW.tobytes()[:-4], ONES.tobytes()])),
    infer("raw too long", add_sub(raw=[ROW.tobytes() + b"more", ONES.tobytes()])),
    infer("one raw of two", add_sub(raw=[ROW.tobytes()])),
    infer("three raw for two", add_sub(raw=[ROW.tobytes()] * 3)),
    infer("no data at all", add_sub(raw=[])),
    infer(
        "raw and contents",
        add_sub(described("INPUT0", "FP32", [1, 16], fp32_contents=ROW.tolist())),
    ),
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
        because="the text of 2.73",
    ),
    infer("a string too many", raw_typed("BYTES", strings(b"a", b"b", b"c", b"d"))),
    infer("a string too few", raw_typed("BYTES", strings(b"a", b"b"))),
    infer("an unknown output", add_sub(outputs=[output("OUTPUT7")])),
    infer(
        "the same output twice",
        add_sub(outputs=[output("OUTPUT0"), output("OUTPUT0")]),
        expect=refused(
            "INVALID_ARGUMENT",
            "[request id: <id_unknown>] output 'OUTPUT0' already exists in request",
        ),
        because="the text of 2.73",
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
                        parameters={
                            "shared_memory_region": parameter("r"),
                            "shared_memory_byte_size": parameter(64),
                        },
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
                        name="INPUT0",
                        datatype="FP32",
                        shape=[1, 16],
                        parameters={"shared_memory_region": parameter("r")},
                    )
                ],
            ).inputs[0],
            [ONES.tobytes()],
        ),
    ),
    infer(
        "output shared and classified",
        add_sub(
            outputs=[
                output(
                    "OUTPUT0",
                    shared_memory_region="r",
                    shared_memory_byte_size=64,
                    classification=1,
                )
            ]
        ),
    ),
    infer(
        "classification that is negative", add_sub(outputs=[output("OUTPUT0", classification=-1)])
    ),
    infer(
        "classification that is a string", add_sub(outputs=[output("OUTPUT0", classification="1")])
    ),
    infer(
        "classification of strings",
        request(
            "classifier",
            [described("FEATURES", "FP32", [1, 4], fp32_contents=[1, 2, 3, 4])],
            outputs=[output("BEST", classification=1)],
        ),
        is_ours_only=True,
        expect=refused("INVALID_ARGUMENT", NO_CLASSES),
        because="the genuine server crashes",
    ),
    *(
        infer(
            f"failing: {kind}",
            request("failing", [described("KIND", "BYTES", [1], bytes_contents=[kind.encode()])]),
        )
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
