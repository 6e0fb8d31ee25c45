"""/generate and /generate_stream: flat JSON in, flat JSON or server-sent events out."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tests.differential.case import Case, get, post, refused

CODES = (
    "the status follows the error's code, as on infer and as in 2.73; "
    "2.51 responds with 400 to every error of a model"
)
NOT_ONE = "an error is not a success: the genuine server sends 200 before it counts the responses"
FAILURES = {
    "raise": 500,
    "raise model exception": 500,
    "error": 500,
    "error with outputs": 500,
    "empty error": 500,
    "not a list": 500,
    "too many": 500,
    "too few": 500,
    "not a response": 500,
    "type without a name": 500,
    "UNKNOWN": 400,
    "INTERNAL": 500,
    "NOT_FOUND": 404,
    "INVALID_ARG": 400,
    "UNAVAILABLE": 503,
    "UNSUPPORTED": 501,
    "ALREADY_EXISTS": 400,
    "CANCELLED": 400,
}
"""Kinds of the model `failing` with their statuses, the same as on infer
(cases/model_errors.py)."""


def one(name: str, body: Any, model: str = "echo_text", **options: Any) -> Case:
    return post(
        name,
        f"/v2/models/{model}/generate",
        body,
        normalise=("key order", *options.pop("normalise", ())),
        **options,
    )


def stream(name: str, body: Any, model: str = "words", **options: Any) -> Case:
    return post(
        f"stream: {name}",
        f"/v2/models/{model}/generate_stream",
        body,
        normalise=("key order", *options.pop("normalise", ())),
        **options,
    )


def failing(ask: Callable[..., Case], kind: str, status: int) -> Case:
    options: dict[str, Any] = (
        {} if status == 400 else {"expect": {"status": status}, "because": CODES}
    )
    return ask(f"failing: {kind}", {"KIND": kind}, model="failing", **options)


def text(**fields: Any) -> dict[str, Any]:
    return {"text_input": "hello", **fields}


CASES: list[Case] = [
    one("plain", text()),
    one(
        "with an id",
        text(id="seven"),
        because="the id is the request's, not a parameter of the model",
        expect={
            "json": {
                "id": "seven",
                "model_name": "echo_text",
                "model_version": "1",
                "shapes": ["text_input [1, 1]", "{}"],
                "text_output": "hello",
            }
        },
    ),
    one("id that is a number", text(id=7)),
    one("with a version", text(), model="echo_text/versions/1"),
    one("with parameters", text(temperature=2, name="x", sure=True)),
    one("with a fraction", text(temperature=0.5)),
    one("with nested parameters", text(parameters={"temperature": 2, "name": "x"})),
    one("with an input among nested parameters", {"parameters": {"text_input": "nested"}}),
    one("with parameters in both places", text(a=1, parameters={"b": 2})),
    one("with doubly nested parameters", text(parameters={"parameters": {"a": 1}})),
    one("with a list parameter", text(stop=["a"])),
    one("with an object parameter", text(options={"a": 1})),
    one("with a null parameter", text(nothing=None)),
    one("with a reserved parameter", text(triton_x=1)),
    one("with priority and timeout", text(priority=1, timeout=5)),
    one("with sequence parameters", text(sequence_id=5, sequence_start=True)),
    one("with binary_data_output", text(binary_data_output=True)),
    one("text in a list", {"text_input": ["hello"]}),
    one("two texts for one", {"text_input": ["a", "b"]}),
    one("text that is a number", {"text_input": 7}),
    one("text that is null", {"text_input": None}),
    one("text that is an object", {"text_input": {"a": 1}}),
    one("an empty text", {"text_input": ""}),
    one("no text", {"numbers": [1, 2]}, expect={"status": 500}, because=CODES),
    one("nothing", {}),
    one("numbers", text(numbers=[1, 2.5, -3])),
    one("one number in a list", text(numbers=[4])),
    one("a bare number", text(numbers=4)),
    one("an empty list", text(numbers=[])),
    one(
        "nested numbers",
        text(numbers=[[1, 2], [3, 4]]),
        expect=refused(
            400,
            "Unable to parse 'data': Shape does not match true shape of 'data' field: expected 2 "
            "values for input 'numbers', got 4",
        ),
        because="the counts are named, and the fault is the client's",
    ),
    one("strings for numbers", text(numbers=["1"])),
    one("pairs", text(pairs=[1, 2, 3, 4])),
    one("pairs that do not divide", text(pairs=[1, 2, 3])),
    one("a flag", text(flag=True)),
    one("a flag in a list", text(flag=[False])),
    one("a flag that is a number", text(flag=1)),
    one("not JSON", b"hello", normalise=("parser",)),
    one("empty body", b"", normalise=("parser",)),
    one("a list", []),
    one("parameters that are a string", text(parameters="x")),
    one("parameters that are a list", text(parameters=[1])),
    one("unknown model", text(), model="nowhere"),
    one("unknown version", text(), model="echo_text/versions/9"),
    *(failing(one, kind, status) for kind, status in FAILURES.items()),
    *(
        one(f"failing: {kind}", {"KIND": kind}, model="failing")
        for kind in ("unknown output", "no outputs", "wrong type", "wrong shape")
    ),
    one("one word of a decoupled model", {"text_input": "hello"}, model="words"),
    one(
        "two words of a decoupled model",
        {"text_input": "hello you"},
        model="words",
        expect={"status": 400},
        because=NOT_ONE,
    ),
    one(
        "no word of a decoupled model",
        {"text_input": ""},
        model="words",
        expect={"status": 400},
        because=NOT_ONE,
    ),
    one(
        "an error of a decoupled model",
        {"text_input": "!"},
        model="words",
        expect={"status": 500},
        because=CODES,
    ),
    one("several inputs", {"INPUT0": [1.5] * 16, "INPUT1": [1] * 16}, model="add_sub"),
    one("a shape that does not fit", {"INPUT0": [1.5] * 15, "INPUT1": [1] * 16}, model="add_sub"),
    one(
        "response parameters",
        {"ANY": 1},
        model="response_parameters",
        because="response parameters came after 2.51",
        expect={
            "json": {
                "OUT": 1,
                "model_name": "response_parameters",
                "model_version": "1",
                "number": 7,
                "text": "abc",
                "truth": True,
            }
        },
    ),
    get("generate by GET", "/v2/models/echo_text/generate"),
    stream("one word", {"text_input": "hello"}),
    stream("three words", {"text_input": "hello dear moon", "id": "w"}),
    stream("an input that limits", {"text_input": "a b c d", "max_words": 2}),
    stream("no words", {"text_input": ""}),
    stream("an error first", {"text_input": "!"}, expect={"status": 500}, because=CODES),
    stream("a client's error first", {"text_input": "!! a"}),
    stream("an error in the middle", {"text_input": "a ! b"}),
    stream("an error last", {"text_input": "a !"}),
    stream("a plain model", text(), model="echo_text"),
    *(failing(stream, kind, status) for kind, status in FAILURES.items()),
    stream("repeat from a thread", {"COUNT": 3, "thread": True}, model="repeat"),
    stream("repeat without responses", {"COUNT": 0}, model="repeat"),
    stream(
        "repeat with the flag on the last", {"COUNT": 2, "flag_with_last": True}, model="repeat"
    ),
    stream("unknown model", text(), model="nowhere"),
    stream("unknown version", text(), model="words/versions/9"),
    stream("a text that is null", {"text_input": None}),
    stream("not JSON", b"{", normalise=("parser",)),
    stream("an unknown type", {"text_input": 7}),
    stream("nothing", {}),
    stream("auto-completed", {"NAME": "moon"}, model="auto_class"),
    get("generate_stream by GET", "/v2/models/words/generate_stream"),
]
