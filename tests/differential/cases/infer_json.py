"""Inference with JSON data over HTTP: requests that succeed."""

from __future__ import annotations

from typing import Any

from tests.differential.case import Case, add_sub_inputs, infer, tensor

VALUES: dict[str, Any] = {
    "BOOL": [True, False, True],
    "UINT8": [0, 1, 255],
    "UINT16": [0, 1, 65535],
    "UINT32": [0, 1, 4294967295],
    "UINT64": [0, 1, 18446744073709551615],
    "INT8": [-128, 0, 127],
    "INT16": [-32768, 0, 32767],
    "INT32": [-2147483648, 0, 2147483647],
    "INT64": [-9223372036854775808, 0, 9223372036854775807],
    "FP32": [-1.5, 0.1, 3.4028234e38],
    "FP64": [-1.5, 0.1, 1.7976931348623157e308],
    "BYTES": ["", "plain", "näiad ☽"],
}


def typed(datatype: str, data: Any, size: int = 3) -> dict[str, Any]:
    return {"inputs": [tensor(f"IN_{datatype}", datatype, [size], data)]}


def add_sub(name: str, normalise: tuple[str, ...] = (), **fields: Any) -> Case:
    return infer(name, "add_sub", {"inputs": add_sub_inputs(), **fields}, normalise=normalise)


CASES: list[Case] = [
    add_sub("plain"),
    add_sub("with an id", id="a request"),
    add_sub("with an empty id", id=""),
    add_sub("with one output", outputs=[{"name": "OUTPUT1"}]),
    add_sub(
        "with outputs in another order",
        normalise=("output order",),
        outputs=[{"name": "OUTPUT1"}, {"name": "OUTPUT0"}],
    ),
    add_sub("with an empty list of outputs", outputs=[]),
    add_sub("with an unknown field", flavour="sour"),
    add_sub("with parameters", parameters={"priority": 1, "timeout": 0, "mine": "x"}),
    add_sub("with binary_data_output false", parameters={"binary_data_output": False}),
    infer("batch of 3", "add_sub", {"inputs": add_sub_inputs(3)}),
    infer("batch of 64", "add_sub", {"inputs": add_sub_inputs(64)}),
    infer("inputs in another order", "add_sub", {"inputs": add_sub_inputs()[::-1]}),
    infer("with a version", "add_sub", {"inputs": add_sub_inputs()}, version="1"),
    infer(
        "nested data",
        "add_sub",
        {
            "inputs": [
                tensor("INPUT0", "FP32", [2, 16], [list(range(16)), [0.5] * 16]),
                add_sub_inputs(2)[1],
            ]
        },
    ),
    infer(
        "fully nested data",
        "image",
        {
            "inputs": [
                tensor(
                    "PIXELS",
                    "UINT8",
                    [1, 3, 2, 2],
                    [[[[1, 2], [3, 4]], [[5, 6], [7, 8]], [[9, 10], [11, 12]]]],
                )
            ]
        },
    ),
    infer(
        "flat data of four dimensions",
        "image",
        {"inputs": [tensor("PIXELS", "UINT8", [2, 3, 1, 2], list(range(12)))]},
    ),
    *(
        infer(f"{datatype} values", "types", typed(datatype, data))
        for datatype, data in VALUES.items()
    ),
    infer(
        "all types at once",
        "types",
        {"inputs": [typed(datatype, data)["inputs"][0] for datatype, data in VALUES.items()]},
        normalise=("output order",),
    ),
    infer("integers for FP32", "types", typed("FP32", [1, 2, 3])),
    infer("integers for FP64", "types", typed("FP64", [1, 2, 9007199254740993])),
    infer("numbers for BOOL", "types", typed("BOOL", [1, 0, 2])),
    infer("booleans for INT32", "types", typed("INT32", [True, False, True])),
    infer("floats for INT32", "types", typed("INT32", [1.5, 2.0, -3.7])),
    infer(
        "NaN and infinities",
        "types",
        '{"inputs":[{"name":"IN_FP32","datatype":"FP32","shape":[3],"data":[NaN,Infinity,-Infinity]}]}',
    ),
    infer(
        "NaN as FP64",
        "types",
        '{"inputs":[{"name":"IN_FP64","datatype":"FP64","shape":[2],"data":[NaN,-Infinity]}]}',
    ),
    infer(
        "numbers in exponent form",
        "types",
        '{"inputs":[{"name":"IN_FP64","datatype":"FP64","shape":[3],"data":[1e3,-2.5E-3,1e-320]}]}',
    ),
    infer(
        "escapes in strings",
        "types",
        '{"inputs":[{"name":"IN_BYTES","datatype":"BYTES","shape":[3],"data":["a\\u0000b","\\ud83c\\udf19","\\"\\\\\\/\\n"]}]}',
    ),
    infer(
        "numbers out of range for UINT8",
        "types",
        typed("UINT8", [256, 1, 300]),
    ),
    infer("a negative for UINT8", "types", typed("UINT8", [0, -1, 0])),
    infer(
        "numbers out of range for INT32",
        "types",
        typed("INT32", [2147483648, 0, 0]),
    ),
    infer("numbers out of range for INT64", "types", typed("INT64", [9223372036854775808, 0, 0])),
    infer("numbers out of range for FP32", "types", typed("FP32", [1e39, 0, 0])),
    infer("negative for UINT64", "types", typed("UINT64", [-1, 0, 0])),
    infer("an empty tensor", "types", typed("FP32", [], 0)),
    infer("an empty string tensor", "types", typed("BYTES", [], 0)),
    infer(
        "an output that the model does not give",
        "types",
        {**typed("INT8", VALUES["INT8"]), "outputs": [{"name": "OUT_INT16"}]},
    ),
    infer(
        "one of two types",
        "types",
        {
            "inputs": [
                typed("INT8", [1, 2, 3])["inputs"][0],
                typed("INT16", [1, 2, 3])["inputs"][0],
            ],
            "outputs": [{"name": "OUT_INT16"}],
        },
    ),
    infer(
        "strings in a batch",
        "identity_bytes",
        {"inputs": [tensor("TEXT", "BYTES", [2, 2], ["a", "b", "c", "d"])]},
    ),
    infer(
        "nested strings",
        "identity_bytes",
        {"inputs": [tensor("TEXT", "BYTES", [2, 1], [["a"], ["b"]])]},
    ),
    infer(
        "reshape",
        "reshaped",
        {
            "inputs": [
                tensor("SCALAR", "INT32", [2, 1], [1, 2]),
                tensor("GRID", "INT32", [2, 6], list(range(12))),
            ]
        },
    ),
    infer(
        "without optional inputs",
        "optional_inputs",
        {"inputs": [tensor("BASE", "INT32", [1, 2], [3, 4])]},
    ),
    infer(
        "with one optional input",
        "optional_inputs",
        {
            "inputs": [
                tensor("BASE", "INT32", [1, 2], [3, 4]),
                tensor("TIMES", "INT32", [1, 2], [2, 2]),
            ]
        },
    ),
    infer(
        "with all optional inputs",
        "optional_inputs",
        {
            "inputs": [
                tensor("PLUS", "INT32", [1, 2], [1, 1]),
                tensor("BASE", "INT32", [1, 2], [3, 4]),
                tensor("TIMES", "INT32", [1, 2], [2, 2]),
            ]
        },
    ),
    *(
        infer(f"{model} newest version", model, {"inputs": [tensor("ANY", "INT32", [1], [0])]})
        for model in ("versions_latest", "versions_all", "versions_specific")
    ),
    *(
        infer(
            f"versions_latest version {version}",
            "versions_latest",
            {"inputs": [tensor("ANY", "INT32", [1], [0])]},
            version=version,
        )
        for version in ("1", "2", "3")
    ),
    *(
        infer(
            f"versions_specific version {version}",
            "versions_specific",
            {"inputs": [tensor("ANY", "INT32", [1], [0])]},
            version=version,
        )
        for version in ("1", "2", "3")
    ),
    infer(
        "model without config",
        "auto_static",
        {"inputs": [tensor("X", "FP64", [2, 2], [1, 2, 3, 4])]},
    ),
    infer(
        "model without config, optional input",
        "auto_static",
        {"inputs": [tensor("X", "FP64", [1, 2], [1, 2]), tensor("SCALE", "FP64", [1, 1], [3])]},
    ),
    infer(
        "model with half a config",
        "auto_partial",
        {"inputs": [tensor("X", "INT32", [2, 1], [1, 2])]},
    ),
    infer("async execute", "async_execute", {"inputs": [tensor("X", "INT32", [2], [1, 2])]}),
    infer("blocking BLS", "bls_sync", {"inputs": [tensor("X", "FP32", [1, 16], list(range(16)))]}),
    infer("awaited BLS", "bls_async", {"inputs": [tensor("X", "FP32", [1, 16], list(range(16)))]}),
    infer(
        "decoupled BLS",
        "bls_decoupled",
        {"inputs": [tensor("COUNT", "INT32", [1], [5])]},
        expect={
            "json": {
                "model_name": "bls_decoupled",
                "model_version": "1",
                "outputs": [
                    {"name": "INDICES", "datatype": "INT32", "shape": [5], "data": [0, 1, -1, 3, 4]}
                ],
            }
        },
        because="the genuine server drops an error response of a decoupled BLS call; "
        "the caller should see it",
    ),
    infer(
        "decoupled BLS without responses",
        "bls_decoupled",
        {"inputs": [tensor("COUNT", "INT32", [1], [0])]},
    ),
    infer("helper modules", "helper_imports", {"inputs": [tensor("ANY", "INT32", [1], [0])]}),
    infer(
        "a helper of the same name", "same_helper", {"inputs": [tensor("ANY", "INT32", [1], [0])]}
    ),
    infer(
        "arguments of initialize", "instance_info", {"inputs": [tensor("ANY", "INT32", [1], [0])]}
    ),
    infer("metrics and logger", "observed", {"inputs": [tensor("AMOUNT", "FP64", [1], [2.5])]}),
    infer(
        "response parameters",
        "response_parameters",
        {"inputs": [tensor("ANY", "INT32", [1], [0])]},
        expect={
            "json": {
                "model_name": "response_parameters",
                "model_version": "1",
                "parameters": {"text": "abc", "number": 7, "truth": True},
                "outputs": [{"name": "OUT", "datatype": "INT32", "shape": [1], "data": [1]}],
            }
        },
        because="response parameters came after 2.51",
    ),
]
