"""Binary tensor data over HTTP: in, out, both, raw requests, and wrong lengths."""

from __future__ import annotations

import struct
from typing import Any

import numpy as np

from tests.differential.case import Case, add_sub_inputs, binary_infer, infer, refused, tensor

NOTHING: dict[str, Any] = {}

LATER = "the text of 2.73"
CUT_OFF = (
    "[request id: <id_unknown>] incomplete string data for inference input 'IN_BYTES' for model "
    "'types', expecting string of length {} but only 3 bytes available. Please make sure the "
    "string is in one buffer."
)
ROW = np.arange(16, dtype=np.float32).tobytes()
ONES = np.ones(16, dtype=np.float32).tobytes()
FIRST, SECOND = add_sub_inputs()
BINARY_FIRST = tensor("INPUT0", "FP32", [1, 16], None, binary_data_size=64)
BINARY_SECOND = tensor("INPUT1", "FP32", [1, 16], None, binary_data_size=64)
ARRAYS: dict[str, bytes] = {
    "BOOL": bytes([1, 0, 1]),
    "UINT8": np.array([0, 1, 255], np.uint8).tobytes(),
    "UINT16": np.array([0, 1, 65535], np.uint16).tobytes(),
    "UINT32": np.array([0, 1, 2**32 - 1], np.uint32).tobytes(),
    "UINT64": np.array([0, 1, 2**64 - 1], np.uint64).tobytes(),
    "INT8": np.array([-128, 0, 127], np.int8).tobytes(),
    "INT16": np.array([-32768, 0, 32767], np.int16).tobytes(),
    "INT32": np.array([-(2**31), 0, 2**31 - 1], np.int32).tobytes(),
    "INT64": np.array([-(2**63), 0, 2**63 - 1], np.int64).tobytes(),
    "FP16": np.array([-1.5, 0.1, 65504], np.float16).tobytes(),
    "FP32": np.array([-1.5, np.nan, np.inf], np.float32).tobytes(),
    "FP64": np.array([-1.5, 0.1, -np.inf], np.float64).tobytes(),
    "BF16": bytes.fromhex("803f00c0ff7f"),
}


def strings(*items: bytes) -> bytes:
    return b"".join(struct.pack("<I", len(item)) + item for item in items)


ARRAYS["BYTES"] = strings(b"", b"\x00\xff", "näiad".encode())


def typed(
    name: str,
    datatype: str,
    payload: bytes,
    size: int | None = None,
    options: dict[str, Any] = NOTHING,
    **fields: Any,
) -> Case:
    described = tensor(
        f"IN_{datatype}",
        datatype,
        [3],
        None,
        binary_data_size=len(payload) if size is None else size,
    )
    return binary_infer(
        name,
        "types",
        {"inputs": [described], "parameters": {"binary_data_output": True}, **fields},
        payload,
        **options,
    )


def add_sub(
    name: str, payload: bytes = ROW + ONES, inputs: list[Any] | None = None, **options: Any
) -> Case:
    fields = {
        "inputs": [BINARY_FIRST, BINARY_SECOND] if inputs is None else inputs,
        **options.pop("fields", {}),
    }
    return binary_infer(name, "add_sub", fields, payload, **options)


def raw(name: str, model: str, body: bytes, **options: Any) -> Case:
    return infer(name, model, body, headers={"Inference-Header-Content-Length": "0"}, **options)


def length(name: str, value: str, **options: Any) -> Case:
    return infer(
        name,
        "add_sub",
        {"inputs": [FIRST, SECOND]},
        headers={"Inference-Header-Content-Length": value},
        **options,
    )


CASES: list[Case] = [
    add_sub("both inputs binary"),
    add_sub("one input binary, one JSON", ONES, [FIRST, BINARY_SECOND]),
    add_sub("all outputs binary", fields={"parameters": {"binary_data_output": True}}),
    add_sub(
        "one output binary",
        fields={
            "outputs": [
                {"name": "OUTPUT0", "parameters": {"binary_data": True}},
                {"name": "OUTPUT1"},
            ]
        },
    ),
    add_sub(
        "one output binary, alone",
        fields={"outputs": [{"name": "OUTPUT1", "parameters": {"binary_data": True}}]},
    ),
    add_sub(
        "binary by default, one output not",
        fields={
            "parameters": {"binary_data_output": True},
            "outputs": [
                {"name": "OUTPUT0", "parameters": {"binary_data": False}},
                {"name": "OUTPUT1"},
            ],
        },
    ),
    infer(
        "JSON in, binary out",
        "add_sub",
        {"inputs": [FIRST, SECOND], "parameters": {"binary_data_output": True}, "id": "x"},
    ),
    infer(
        "binary_data_output that is a number",
        "add_sub",
        {"inputs": [FIRST, SECOND], "parameters": {"binary_data_output": 1}},
    ),
    infer(
        "binary_data_output that is a string",
        "add_sub",
        {"inputs": [FIRST, SECOND], "parameters": {"binary_data_output": "true"}},
    ),
    *(typed(f"{datatype} binary", datatype, payload) for datatype, payload in ARRAYS.items()),
    typed(
        "FP16 answered as JSON",
        "FP16",
        ARRAYS["FP16"],
        parameters={"binary_data_output": False},
        options={
            "expect": refused(
                400,
                "sending FP16 data via JSON is not supported. Please use the binary data format "
                "for output OUT_FP16",
            ),
            "because": LATER,
        },
    ),
    typed(
        "BF16 answered as JSON",
        "BF16",
        ARRAYS["BF16"],
        parameters={"binary_data_output": False},
        options={
            "expect": refused(
                400,
                "sending BF16 data via JSON is not supported. Please use the binary data format "
                "for output OUT_BF16",
            ),
            "because": LATER,
        },
    ),
    typed(
        "FP32 answered as JSON", "FP32", ARRAYS["FP32"], parameters={"binary_data_output": False}
    ),
    typed(
        "BYTES answered as JSON",
        "BYTES",
        strings(b"a", b"b\x00c", "ü".encode()),
        parameters={"binary_data_output": False},
    ),
    typed(
        "bytes that are no UTF-8 answered as JSON",
        "BYTES",
        strings(b"a", b"\xff\xfe", b"c"),
        parameters={"binary_data_output": False},
    ),
    binary_infer(
        "empty binary tensor",
        "types",
        {
            "inputs": [tensor("IN_FP32", "FP32", [0], None, binary_data_size=0)],
            "parameters": {"binary_data_output": True},
        },
        b"",
    ),
    binary_infer(
        "empty binary strings",
        "types",
        {
            "inputs": [tensor("IN_BYTES", "BYTES", [0], None, binary_data_size=0)],
            "parameters": {"binary_data_output": True},
        },
        b"",
    ),
    # sizes that do not fit
    add_sub("payload too short", ROW + ONES[:-4]),
    add_sub("payload too long", ROW + ONES + b"more"),
    add_sub("no payload", b""),
    add_sub(
        "size smaller than the shape",
        ROW[:60] + ONES,
        [{**BINARY_FIRST, "parameters": {"binary_data_size": 60}}, BINARY_SECOND],
    ),
    add_sub(
        "size larger than the shape",
        ROW + b"more" + ONES,
        [{**BINARY_FIRST, "parameters": {"binary_data_size": 68}}, BINARY_SECOND],
    ),
    add_sub(
        "size that is negative",
        inputs=[{**BINARY_FIRST, "parameters": {"binary_data_size": -64}}, BINARY_SECOND],
    ),
    add_sub(
        "size that is huge",
        inputs=[{**BINARY_FIRST, "parameters": {"binary_data_size": 2**63}}, BINARY_SECOND],
    ),
    add_sub(
        "size that is a float",
        inputs=[{**BINARY_FIRST, "parameters": {"binary_data_size": 64.0}}, BINARY_SECOND],
    ),
    typed("FP32 with a byte too many", "FP32", ARRAYS["FP32"] + b"x"),
    typed("string length cut off", "BYTES", strings(b"a", b"b") + b"\x01\x00"),
    typed(
        "string data cut off",
        "BYTES",
        strings(b"a", b"b") + struct.pack("<I", 10) + b"abc",
        options={"expect": refused(400, CUT_OFF.format(10)), "because": LATER},
    ),
    typed("a string too many", "BYTES", strings(b"a", b"b", b"c", b"d")),
    typed("a string too few", "BYTES", strings(b"a", b"b")),
    typed(
        "a string of four gigabytes",
        "BYTES",
        struct.pack("<I", 2**32 - 1) + b"abc",
        options={
            "expect": refused(400, CUT_OFF.format(2**32 - 1)),
            "because": "the genuine server's sum overflows",
        },
    ),
    # the header's length
    length(
        "length that is no number",
        "abc",
        expect=refused(400, "Unable to parse Inference-Header-Content-Length, got: abc"),
        because=LATER,
    ),
    length("length that is negative", "-1"),
    length("length beyond the body", "100000"),
    length("length beyond 64 bits", "99999999999999999999999", normalise=("message",)),
    length("length within the JSON", "5", normalise=("parser",)),
    length(
        "length with a tail",
        "10x",
        normalise=("message",),
        expect={"status": 400},
        because="a length with a suffix is not a number",
    ),
    length(
        "empty length",
        "",
        expect=refused(400, "Unable to parse Inference-Header-Content-Length, got: "),
        because=LATER,
    ),
    length("length zero with a JSON body", "0"),
    # raw binary requests
    raw("raw FP32", "identity_fp32", ROW),
    raw("raw FP32, one value", "identity_fp32", ROW[:4]),
    raw("raw FP32, not a multiple of four", "identity_fp32", ROW[:5]),
    raw("raw and empty", "identity_fp32", b""),
    raw("raw for two inputs", "add_sub", ROW),
    raw("raw for several variable dimensions", "image", bytes(12)),
    raw("raw string of variable length", "identity_bytes", b"hello"),
    raw("raw string", "failing", b"good"),
    raw("raw for an optional input", "types", b"abc"),
    raw("raw with a batch dimension", "auto_partial", np.array([5], np.int32).tobytes()),
    raw("raw for a fixed size that is wrong", "auto_partial", bytes(8)),
    raw("raw for an unknown model", "nowhere", ROW),
]
