"""Malformed and invalid inference requests over HTTP, and the error that the client gets."""

from __future__ import annotations

from typing import Any

from tests.differential.case import (
    Case,
    HttpCase,
    add_sub_inputs,
    get,
    infer,
    post,
    refused,
    tensor,
)

NOTHING: dict[str, Any] = {}

FIRST, SECOND = add_sub_inputs()
PARSER = ("parser",)
LATER = "the text of 2.73"
COUNTS = "the counts are named, and the fault is the client's"
TOO_DEEP = refused(400, "JSON nesting depth exceeds maximum allowed limit (100)")
NO_INPUTS = refused(
    400,
    "Unable to parse 'inputs': attempt to access non-existing object member 'inputs'. The body has "
    "neither 'inputs' nor an input of model 'add_sub': 'INPUT0', 'INPUT1'",
)


def too_few(num_values: int) -> dict[str, Any]:
    return refused(
        400,
        "Failed to parse 'data' field: shape does not match true shape: expected 16 values for "
        f"input 'INPUT0', got {num_values}",
    )


SHM_OFF = refused(
    501,
    "Client shared memory is disabled. Start the server with '--allow-client-shm=true' to enable.",
)
SHM_LATER = "in 2.73, clients' shared memory is off by default"
SUM = {
    "model_name": "add_sub",
    "model_version": "1",
    "outputs": [
        tensor("OUTPUT0", "FP32", [1, 16], [float(value + 1) for value in range(16)]),
        tensor("OUTPUT1", "FP32", [1, 16], [float(value - 1) for value in range(16)]),
    ],
}
HUGE = (
    "JSON input 'INPUT0' has a byte_size ({} bytes) that exceeds the maximum allowed value of "
    "67108864 bytes. Use --http-max-input-size to increase the limit."
)


DEEP: dict[str, Any] = {"expect": TOO_DEEP, "because": LATER}


def nested(value: Any, depth: int) -> Any:
    for _ in range(depth):
        value = [value]
    return value


def changed(
    title: str, /, drop: str = "", options: dict[str, Any] = NOTHING, **fields: Any
) -> Case:
    """Returns add_sub's inputs, with a field of INPUT0 replaced or removed and a valid INPUT1."""
    first = {key: value for key, value in {**FIRST, **fields}.items() if key != drop}
    return infer(title, "add_sub", {"inputs": [first, SECOND]}, **options)


def typed(name: str, datatype: str, shape: list[Any], data: Any, **options: Any) -> Case:
    return infer(
        name, "types", {"inputs": [tensor(f"IN_{datatype}", datatype, shape, data)]}, **options
    )


def outputs(name: str, value: Any, **options: Any) -> Case:
    return infer(name, "add_sub", {"inputs": [FIRST, SECOND], "outputs": value}, **options)


CASES: list[Case] = [
    # the body
    infer("empty body", "add_sub", b"", normalise=PARSER),
    infer("not JSON", "add_sub", b"hello", normalise=PARSER),
    infer("half a JSON", "add_sub", b'{"inputs":[', normalise=PARSER),
    infer("JSON with a tail", "add_sub", b'{"inputs":[]} more', normalise=PARSER),
    infer("JSON that is a list", "add_sub", b"[]"),
    infer("JSON that is a number", "add_sub", b"7"),
    infer("JSON that is null", "add_sub", b"null"),
    infer(
        "empty object",
        "add_sub",
        {},
        expect=NO_INPUTS,
        because="a body without inputs may be flat, so the error lists the inputs",
    ),
    infer(
        "broken UTF-8",
        "types",
        b'{"inputs":[{"name":"IN_BYTES","datatype":"BYTES","shape":[1],"data":["\xff"]}]}',
        normalise=PARSER,
    ),
    infer("deep nesting", "add_sub", b'{"inputs":' + b"[" * 101 + b"]" * 101 + b"}"),
    infer("deep nesting of the id", "add_sub", b'{"id":' + b"[" * 500 + b"]" * 500 + b"}"),
    infer(
        "deep nesting that is not closed",
        "add_sub",
        b"[" * 20000,
        is_ours_only=True,
        expect=refused(500, "failed to parse the request JSON buffer: <detail>"),
        normalise=PARSER,
        because="the parser of 2.51 is recursive and the stack ends",
    ),
    changed("deep nesting of data", data=nested(7, 101), options=DEEP),
    typed("deep nesting of strings", "BYTES", [1], nested("a", 101), **DEEP),
    typed("nesting of data that is allowed", "INT32", [1], nested(7, 50)),
    infer(
        "a number that no double holds",
        "types",
        b'{"inputs":[{"name":"IN_FP32","datatype":"FP32","shape":[1],"data":[1e999]}]}',
        normalise=PARSER,
        expect={"status": 400},
        because="a number that is too large is the client's error",
    ),
    infer("a key twice", "add_sub", b'{"inputs":[],"inputs":[]}'),
    # inputs
    infer("inputs is null", "add_sub", {"inputs": None}),
    infer("inputs is an object", "add_sub", {"inputs": {"INPUT0": 1}}),
    infer("inputs is a string", "add_sub", {"inputs": "INPUT0"}),
    infer("no inputs", "add_sub", {"inputs": []}),
    infer("an input that is a number", "add_sub", {"inputs": [1, 2]}),
    infer("one input of two", "add_sub", {"inputs": [FIRST]}),
    infer("the other input of two", "add_sub", {"inputs": [SECOND], "id": "named"}),
    infer(
        "three inputs of two",
        "add_sub",
        {"inputs": [FIRST, SECOND, {**FIRST, "name": "INPUT2"}]},
        normalise=("input names",),
    ),
    infer("an unknown input", "add_sub", {"inputs": [FIRST, {**SECOND, "name": "INPUT9"}]}),
    infer(
        "an unknown input with an id",
        "add_sub",
        {"inputs": [FIRST, {**SECOND, "name": "INPUT9"}], "id": "seven"},
    ),
    infer("the same input twice", "add_sub", {"inputs": [FIRST, FIRST]}),
    infer(
        "no required input, one optional",
        "optional_inputs",
        {"inputs": [tensor("PLUS", "INT32", [1, 2], [1, 1])]},
    ),
    infer(
        "too many optional inputs",
        "optional_inputs",
        {
            "inputs": [
                tensor(name, "INT32", [1, 2], [1, 1]) for name in ("BASE", "PLUS", "TIMES", "MORE")
            ]
        },
        normalise=("input names",),
    ),
    infer(
        "an unknown input among optional ones",
        "optional_inputs",
        {"inputs": [tensor(name, "INT32", [1, 2], [1, 1]) for name in ("BASE", "MORE")]},
    ),
    # name
    changed("no name", drop="name"),
    changed("name is a number", name=7),
    changed("name is empty", name=""),
    # datatype
    changed("no datatype", drop="datatype"),
    changed("datatype is a number", datatype=11),
    changed("unknown datatype", datatype="FP99"),
    changed("datatype in small letters", datatype="fp32"),
    changed("another datatype", datatype="INT32"),
    changed("datatype of the config file", datatype="TYPE_FP32"),
    # shape
    changed("no shape", drop="shape"),
    changed("shape is null", shape=None),
    changed("shape is a number", shape=16),
    changed("shape is a string", shape="[1,16]"),
    changed("shape of strings", shape=["1", "16"]),
    changed("shape of floats", shape=[1.0, 16.0]),
    changed("shape with a negative dimension", shape=[-1, 16]),
    changed("shape without a batch dimension", options={"normalise": ("which input",)}, shape=[16]),
    changed("empty shape", shape=[]),
    changed("shape with a dimension too many", shape=[1, 1, 16]),
    changed("shape of the wrong size", shape=[1, 15], data=[0] * 15),
    changed(
        "shape with a huge dimension",
        shape=[1, 4611686018427387904],
        options={
            "is_ours_only": True,
            "expect": refused(
                400,
                "byte size overflow for input 'INPUT0': element count (4611686018427387904) * data "
                "type size (4) exceeds maximum allowed size (9223372036854775807)",
            ),
            "because": "the genuine server dies of it",
        },
    ),
    changed(
        "shape beyond 63 bits",
        shape=[1, 2**63],
        options={
            "is_ours_only": True,
            "expect": refused(
                400,
                "invalid shape for input 'INPUT0': shape [1,-9223372036854775808] contains one or "
                "more invalid dimensions",
            ),
            "because": "the genuine server dies of it",
        },
    ),
    changed(
        "shape beyond the size limit",
        shape=[1, 2**25],
        options={"expect": refused(400, HUGE.format(4 * 2**25)), "because": LATER},
    ),
    changed("shape beyond 64 bits", shape=[1, 18446744073709551616]),
    changed(
        "shape whose product overflows",
        shape=[2**32, 2**32],
        options={
            "expect": refused(
                400,
                "invalid shape for input 'INPUT0': shape [4294967296,4294967296] causes total "
                "element count to exceed maximum size of 9223372036854775807",
            ),
            "because": LATER,
        },
    ),
    infer("batch too large", "add_sub", {"inputs": add_sub_inputs(65)}),
    infer(
        "batch of zero",
        "add_sub",
        {"inputs": [tensor("INPUT0", "FP32", [0, 16], []), tensor("INPUT1", "FP32", [0, 16], [])]},
        normalise=("message",),
    ),
    infer(
        "batches of different sizes",
        "add_sub",
        {"inputs": [FIRST, add_sub_inputs(2)[1]]},
        normalise=("which input",),
    ),
    infer(
        "wrong fixed dimension among variable ones",
        "image",
        {"inputs": [tensor("PIXELS", "UINT8", [1, 4, 1, 1], [1, 2, 3, 4])]},
    ),
    infer(
        "a dimension too few among variable ones",
        "image",
        {"inputs": [tensor("PIXELS", "UINT8", [1, 3, 1], [1, 2, 3])]},
    ),
    infer(
        "the shape after reshape",
        "reshaped",
        {
            "inputs": [
                tensor("SCALAR", "INT32", [1, 1], [1]),
                tensor("GRID", "INT32", [1, 2, 3], list(range(6))),
            ]
        },
    ),
    # data
    changed("no data", drop="data"),
    changed("data is null", data=None),
    changed("data is a number", data=7),
    changed("data is a string", data="0"),
    changed("data is an object", data={"0": 1}),
    changed("too few values", data=[0] * 15, options={"expect": too_few(15), "because": COUNTS}),
    changed(
        "too many values",
        data=[0] * 17,
        options={
            "expect": refused(
                400,
                "Unable to parse 'data': Shape does not match true shape of 'data' field: expected "
                "16 values for input 'INPUT0', got 17",
            ),
            "because": COUNTS,
        },
    ),
    changed("no values", data=[], options={"expect": too_few(0), "because": COUNTS}),
    changed("strings for FP32", data=["0"] * 16),
    changed("null among the values", data=[None] * 16),
    changed("objects among the values", data=[{}] * 16),
    changed(
        "ragged nesting",
        data=[[0] * 8, [0] * 7],
        options={"expect": too_few(15), "because": COUNTS},
    ),
    changed("nesting that does not fit the shape", data=[[0] * 4] * 4),
    typed("numbers for BYTES", "BYTES", [2], [1, 2]),
    typed("booleans for BYTES", "BYTES", [1], [True]),
    typed("strings for INT64", "INT64", [1], ["1"]),
    typed("strings for BOOL", "BOOL", [1], ["true"]),
    typed("null for BYTES", "BYTES", [1], [None]),
    typed("too few strings", "BYTES", [3], ["a"]),
    typed("too many strings", "BYTES", [1], ["a", "b"]),
    typed("FP16 as JSON", "FP16", [1], [1.0]),
    typed("BF16 as JSON", "BF16", [1], [1.0]),
    infer(
        "data and binary_data_size",
        "add_sub",
        {"inputs": [{**FIRST, "parameters": {"binary_data_size": 64}}, SECOND]},
    ),
    infer(
        "data and shared memory",
        "add_sub",
        {
            "inputs": [
                {
                    **FIRST,
                    "parameters": {"shared_memory_region": "r", "shared_memory_byte_size": 64},
                },
                SECOND,
            ]
        },
    ),
    infer(
        "shared memory that is not registered",
        "add_sub",
        {
            "inputs": [
                tensor(
                    "INPUT0",
                    "FP32",
                    [1, 16],
                    None,
                    shared_memory_region="r",
                    shared_memory_byte_size=64,
                ),
                SECOND,
            ]
        },
        expect=SHM_OFF,
        because=SHM_LATER,
    ),
    infer(
        "shared memory without a size",
        "add_sub",
        {"inputs": [tensor("INPUT0", "FP32", [1, 16], None, shared_memory_region="r"), SECOND]},
        expect=SHM_OFF,
        because=SHM_LATER,
    ),
    infer(
        "binary_data_size without a binary part",
        "add_sub",
        {"inputs": [tensor("INPUT0", "FP32", [1, 16], None, binary_data_size=64), SECOND]},
    ),
    infer(
        "binary_data_size that is a string",
        "add_sub",
        {"inputs": [tensor("INPUT0", "FP32", [1, 16], None, binary_data_size="64"), SECOND]},
    ),
    infer(
        "input parameters that are a list",
        "add_sub",
        {"inputs": [{**FIRST, "parameters": []}, SECOND]},
    ),
    # outputs
    outputs("outputs is null", None),
    outputs("outputs is a string", "OUTPUT0"),
    outputs("an output that is a string", ["OUTPUT0"]),
    outputs("an output without a name", [{}]),
    outputs("an unknown output", [{"name": "OUTPUT7"}]),
    outputs(
        "the same output twice",
        [{"name": "OUTPUT0"}, {"name": "OUTPUT0"}],
        expect=refused(
            400, "[request id: <id_unknown>] output 'OUTPUT0' already exists in request"
        ),
        because=LATER,
    ),
    outputs(
        "binary_data that is a string", [{"name": "OUTPUT0", "parameters": {"binary_data": "yes"}}]
    ),
    outputs(
        "binary_data that is a number", [{"name": "OUTPUT0", "parameters": {"binary_data": 1}}]
    ),
    outputs(
        "output to shared memory and classified",
        [
            {
                "name": "OUTPUT0",
                "parameters": {
                    "shared_memory_region": "r",
                    "shared_memory_byte_size": 64,
                    "classification": 1,
                },
            }
        ],
    ),
    outputs(
        "output to shared memory and binary",
        [
            {
                "name": "OUTPUT0",
                "parameters": {
                    "shared_memory_region": "r",
                    "shared_memory_byte_size": 64,
                    "binary_data": True,
                },
            }
        ],
    ),
    outputs(
        "output to shared memory that is not registered",
        [
            {
                "name": "OUTPUT0",
                "parameters": {"shared_memory_region": "r", "shared_memory_byte_size": 64},
            }
        ],
        expect=SHM_OFF,
        because=SHM_LATER,
    ),
    # id
    infer("id is a number", "add_sub", {"inputs": [FIRST, SECOND], "id": 7}),
    infer("id is null", "add_sub", {"inputs": [FIRST, SECOND], "id": None}),
    # the model
    infer("unknown model", "nowhere", {"inputs": [FIRST, SECOND]}),
    infer("unknown model with a broken body", "nowhere", b"{"),
    infer("unknown version", "add_sub", {"inputs": [FIRST, SECOND]}, version="9"),
    infer("version zero", "add_sub", {"inputs": [FIRST, SECOND]}, version="0"),
    infer("version that is no number", "add_sub", {"inputs": [FIRST, SECOND]}, version="x"),
    infer(
        "version outside the policy",
        "versions_specific",
        {"inputs": [tensor("ANY", "INT32", [1], [0])]},
        version="2",
    ),
    infer("decoupled model", "repeat", {"inputs": [tensor("COUNT", "INT32", [1], [1])]}),
    infer(
        "model name in percent encoding",
        "add%5Fsub",
        {"inputs": [FIRST, SECOND]},
        expect={"status": 200, "json": SUM},
        because="tritonclient quotes names, so we decode the path",
    ),
    get("infer by GET", "/v2/models/add_sub/infer"),
    HttpCase("infer by PUT", "PUT", "/v2/models/add_sub/infer", body=b"{}"),
    post("infer with a slash", "/v2/models/add_sub/infer/", {"inputs": [FIRST, SECOND]}),
    post("infer with a query", "/v2/models/add_sub/infer?a=b", {"inputs": [FIRST, SECOND]}),
]
