"""Triton's JSON dialect. The words and offsets are those of a genuine Triton for the same
bodies."""

from __future__ import annotations

import json
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from naiad.errors import Code, NaiadError
from naiad.protocol.v2.triton_json import parse
from naiad.protocol.v2.triton_json_scan import JsonSyntaxError, Scanner

MALFORMED = [
    (b"   ", "The document is empty. at 3"),
    (b"\0", "The document is empty. at 0"),
    (b"{", "Missing a name for object member. at 1"),
    (b'{"a":1}x', "The document root must not be followed by other values. at 7"),
    (b'{"a" 1}', "Missing a colon after a name of object member. at 5"),
    (b'{"a":}', "Invalid value. at 5"),
    (b'{"a":1,}', "Missing a name for object member. at 7"),
    (b"{a:1}", "Missing a name for object member. at 1"),
    (b"{'a':1}", "Missing a name for object member. at 1"),
    (b'{"a":tru}', "Invalid value. at 8"),
    (b'{"a":nan}', "Invalid value. at 6"),
    (b"[1 2]", "Missing a comma or ']' after an array element. at 3"),
    (b"[1,]", "Invalid value. at 3"),
    (b"[", "Invalid value. at 1"),
    (b"[1", "Missing a comma or ']' after an array element. at 2"),
    (b'["a"', "Missing a comma or ']' after an array element. at 4"),
    (b'{"a":"x}', "Missing a closing quotation mark in string. at 8"),
    (b'{"a', "Missing a closing quotation mark in string. at 3"),
    (b'{"a":"\\q"}', "Invalid escape character in string. at 6"),
    (b'{"a":"\x01"}', "Invalid escape character in string. at 6"),
    (b'{"a":"\n"}', "Invalid escape character in string. at 6"),
    (b'{"a":"\\u12G4"}', "Incorrect hex digit after \\u escape in string. at 6"),
    (b'{"a":"\\ud800"}', "The surrogate pair in string is invalid. at 6"),
    (b'{"a":"\\ud800\\u0041"}', "The surrogate pair in string is invalid. at 6"),
    (b'{"a":01}', "Missing a comma or '}' after an object member. at 6"),
    (b'{"a":0x1}', "Missing a comma or '}' after an object member. at 6"),
    (b'{"a":1 "b":2}', "Missing a comma or '}' after an object member. at 7"),
    (b'{"a":1', "Missing a comma or '}' after an object member. at 6"),
    (b'{"a"', "Missing a colon after a name of object member. at 4"),
    (b'{"a":1.}', "Miss fraction part in number. at 7"),
    (b'{"a":1e}', "Miss exponent in number. at 7"),
    (b'{"a":-}', "Invalid value. at 6"),
    (b'{"a":+1}', "Invalid value. at 5"),
    (b'{"a":.5}', "Invalid value. at 5"),
    (b"\xff", "Invalid value. at 0"),
    (b"/*x*/{}", "Invalid value. at 0"),
    (b'{"a":{"b":[1,2,{"c":x}]}}', "Invalid value. at 20"),
    (b'{"a":"\xc3\xa9",x}', "Missing a name for object member. at 10"),
]


@pytest.mark.parametrize(("body", "words"), MALFORMED)
def test_malformed(body: bytes, words: str) -> None:
    with pytest.raises(NaiadError) as caught:
        parse(body)
    assert caught.value.message == f"failed to parse the request JSON buffer: {words}"
    assert caught.value.code is Code.INTERNAL


@pytest.mark.parametrize(
    ("body", "value"),
    [
        (b'{"a":[1,-2.5,"x",true,false,null,{}]}', {"a": [1, -2.5, "x", True, False, None, {}]}),
        (b"[Infinity,Inf,-Inf,-Infinity]", [math.inf, math.inf, -math.inf, -math.inf]),
        (b'\xef\xbb\xbf{"a":1}', {"a": 1}),
        (b'{"a":"\xff\\n\\u00e9\\ud83d\\ude00"}', {"a": "\udcff\né\U0001f600"}),
        (b'["\xff\\"\\\\\\/\\b\\f\\r\\t"]', ['\udcff"\\/\b\f\r\t']),
        (b'["\xff",-0,1e5,18446744073709551616]', ["\udcff", 0, 1e5, 18446744073709551616]),
        (b'{"\xff":1,"\xff":2}', {"\udcff": 1}),
        (b"{}\0", {}),
    ],
)
def test_dialect(body: bytes, value: object) -> None:
    assert parse(body) == value


def test_nan() -> None:
    first, second = parse(b"[NaN,-NaN]")
    assert math.isnan(first)
    assert math.isnan(second)


def test_a_memoryview_will_do() -> None:
    assert parse(memoryview(b"x[1]")[1:]) == [1]
    assert parse(memoryview(b"x[Inf]")[1:]) == [math.inf]


@pytest.mark.parametrize(
    ("number", "filler"),
    [
        (b"1e999", b""),
        (b"-1e999", b""),
        (b"1" * 310, b"\xff"),
        (b"1" * 5000, b"\xff"),
        (b"1e999", b"NaN," * 30_000),
        (b"1" * 5000, b"NaN," * 30_000),
    ],
)
def test_a_number_that_is_too_large_is_the_clients_error(number: bytes, filler: bytes) -> None:
    if filler == b"\xff":
        filler = b'"\xff",'
    with pytest.raises(NaiadError) as caught:
        parse(b"[" + filler + number + b"]")
    assert caught.value.code is Code.INVALID_ARG
    assert caught.value.message.startswith(
        "failed to parse the request JSON buffer: Number too big to be stored in double."
    )


@pytest.mark.parametrize("depth", [100, 1000, 250_000])
@pytest.mark.parametrize("leaf", [b"1", b"NaN", b'"]["', b""])
def test_any_depth_can_be_read(depth: int, leaf: bytes) -> None:
    """The reader of a field judges its type; values that are deeper than any field are cut."""
    body = b'{"a":' + b"[" * depth + leaf + b"]" * depth + b',"b":{"c":"[\\"]"}}'
    value = parse(body)
    assert list(value) == ["a", "b"]
    assert value["b"] == {"c": '["]'}
    kept, item = 0, value["a"]
    while isinstance(item, list) and item:
        kept, (item,) = kept + 1, item
    assert kept >= 99


def test_objects_are_cut_as_lists_are() -> None:
    value = parse(b'{"a":' * 300 + b"1" + b"}" * 300 + b" ")
    for _ in range(128):
        value = value["a"]
    assert value == 0


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (b"[" * 200_000, "Missing a comma or ']' after an array element. at 200000"),
        (b"[" * 300 + b"]" * 300 + b"x", "The document root must not be followed by other values."),
        (b"[" * 300 + b"]" * 299 + b"x", "Missing a comma or ']' after an array element. at 599"),
    ],
)
def test_syntax_errors_of_deep_bodies_have_the_offset_in_the_body(
    body: bytes, message: str
) -> None:
    with pytest.raises(NaiadError) as caught:
        parse(body)
    assert caught.value.message.startswith(f"failed to parse the request JSON buffer: {message}")


def test_brackets_in_strings_are_no_depth() -> None:
    assert parse(json.dumps(["[" * 500]).encode()) == ["[" * 500]
    assert parse(json.dumps(['\\"' + "[" * 500, 7]).encode()) == ['\\"' + "[" * 500, 7]
    large = "[" * 500 + "x" * (9 << 20)
    assert parse(json.dumps([large]).encode()) == [large]


def test_large_bodies_have_less_exact_words_and_take_no_longer() -> None:
    with pytest.raises(
        NaiadError, match=r"^failed to parse the request JSON buffer: Invalid value\. at 140002$"
    ):
        parse(b"[" + b'"x",' * 35_000 + b" ?]")
    assert len(parse(b"[" + b"NaN," * 30_000 + b"1]")) == 30_001


JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(1 << 70), 1 << 70)
    | st.floats(allow_nan=False)
    | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=20,
)


@given(JSON, st.booleans())
def test_the_scanner_reads_what_others_write(value: object, ascii_only: bool) -> None:
    text = json.dumps(value, ensure_ascii=ascii_only)
    if "\\ud" not in text or ascii_only:
        assert Scanner(text).document() == value


@given(st.text(alphabet='[]{}",:\\u0d8e1.-+NaInfty \n\x00x', max_size=30))
def test_the_scanner_never_breaks(text: str) -> None:
    try:
        Scanner(text).document()
    except JsonSyntaxError:
        pass


@given(st.binary(max_size=60))
def test_any_bytes(body: bytes) -> None:
    words: str | None = None
    try:
        parse(body)
    except NaiadError as error:
        words = error.message
    assert words is None or words.startswith(("failed to parse the request JSON buffer: ",))
