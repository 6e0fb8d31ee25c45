"""ModelStreamInfer: decoupled and plain models, errors inside the stream, final flags."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tests.differential.case import Case, GrpcCase
from tests.differential.cases.grpc_message import ROW, add_sub, described, output, request

ENDED = "the genuine server ends the stream as if it had received nothing"
EMPTY_FINAL: dict[str, Any] = {"triton_enable_empty_final_response": True}


def stream(name: str, *messages: Any, **options: Any) -> Case:
    data = tuple(
        message if isinstance(message, bytes) else message.SerializeToString()
        for message in messages
    )
    return GrpcCase(
        f"stream: {name}", "ModelStreamInfer", data, normalise=("empty version",), **options
    )


def repeat(count: int, id: str = "", outputs: Sequence[Any] = (), **parameters: Any) -> Any:
    return request(
        "repeat",
        [described("COUNT", "INT32", [1], int_contents=[count])],
        parameters=parameters,
        id=id,
        outputs=outputs,
    )


CASES: list[Case] = [
    stream("nothing sent"),
    stream("one plain request", add_sub(id="a")),
    stream("three plain requests in order", add_sub(id="a"), add_sub(id="b"), add_sub(id="c")),
    stream("plain with empty final asked", add_sub(id="a", parameters=EMPTY_FINAL)),
    stream("decoupled, three responses", repeat(3, "r")),
    stream("decoupled, one output", repeat(2, outputs=[output("INDEX")])),
    stream("decoupled, flag with the last", repeat(2, "r", flag_with_last=True)),
    stream(
        "decoupled, flag with the last, empty final asked",
        repeat(2, "r", flag_with_last=True, **EMPTY_FINAL),
    ),
    stream("decoupled, empty final asked", repeat(2, "r", **EMPTY_FINAL)),
    stream("decoupled, no responses", repeat(0, "r")),
    stream("decoupled, no responses, empty final asked", repeat(0, "r", **EMPTY_FINAL)),
    stream("decoupled, from a thread", repeat(3, "r", thread=True)),
    stream("decoupled, an error in the middle", repeat(3, "r", fail_at=1)),
    stream(
        "decoupled, an error last with the flag", repeat(2, "r", fail_at=1, flag_with_last=True)
    ),
    stream(
        "decoupled and empty final of the wrong type",
        repeat(1, "r", triton_enable_empty_final_response="yes"),
    ),
    stream("unknown model", request("nowhere", [], id="u")),
    stream("unknown model, then a good request", request("nowhere", [], id="u"), add_sub(id="a")),
    stream("unknown version", add_sub(version="9", id="v")),
    stream(
        "missing input",
        request("add_sub", [described("INPUT0", "FP32", [1, 16])], [ROW.tobytes()], id="m"),
    ),
    stream("no data", add_sub(raw=[], id="n")),
    stream(
        "a model's error",
        request(
            "failing", [described("KIND", "BYTES", [1], bytes_contents=[b"NOT_FOUND"])], id="f"
        ),
    ),
    stream(
        "a model that raises",
        request("failing", [described("KIND", "BYTES", [1], bytes_contents=[b"raise"])], id="f"),
    ),
    stream(
        "an error as status",
        request("nowhere", [], id="u"),
        metadata=(("triton_grpc_error", "true"),),
        expect={
            "code": "NOT_FOUND",
            "message": "Request for unknown model: 'nowhere' is not found",
            "responses": [],
        },
        because="the first error ends the stream in 2.73",
    ),
    stream(
        "a model's error as status",
        request("failing", [described("KIND", "BYTES", [1], bytes_contents=[b"NOT_FOUND"])]),
        metadata=(("triton_grpc_error", "true"),),
    ),
    stream(
        "no error although statuses asked",
        add_sub(id="a"),
        metadata=(("triton_grpc_error", "true"),),
    ),
    stream(
        "auto-completed decoupled model",
        request("auto_class", [described("NAME", "BYTES", [1], bytes_contents=[b"moon"])], id="g"),
    ),
    stream(
        "not a message",
        b"\xff\xff\xff",
        expect={"code": "INTERNAL", "message": "Unable to parse request"},
        because=ENDED,
    ),
    stream(
        "classification",
        request(
            "classifier",
            [described("FEATURES", "FP32", [1, 4], fp32_contents=[1, 4, 2, 3])],
            outputs=[output("SCORES", classification=1)],
            id="c",
        ),
    ),
]
