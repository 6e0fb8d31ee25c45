"""Large JSON requests are decoded in pieces. With tiny pieces, small requests show that the result
is that of the ordinary decoder."""

from __future__ import annotations

import json
import tracemalloc
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from naiad.errors import NaiadError
from naiad.protocol.v2 import json_codec, json_data, json_split
from naiad.protocol.v2.json_tensor import flatten

MAX_BYTES = 1 << 26


@pytest.fixture(params=[7, 64], autouse=True)
def small_pieces(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> int:
    size: int = request.param
    use_small_pieces(monkeypatch, size)
    return size


def use_small_pieces(monkeypatch: pytest.MonkeyPatch, size: int) -> None:
    monkeypatch.setattr(json_split, "SLICE_BYTES", size)
    monkeypatch.setattr(json_data, "SLICE_BYTES", size)
    monkeypatch.setattr(json_split, "_MIN_DATA_BYTES", 2)


def body(
    data: str, datatype: str = "INT32", shape: list[int] | None = None, more: str = ""
) -> bytes:
    count = len(flatten(json.loads(data))) if shape is None else 0
    return (
        f'{{"id":"7", "inputs":[{{"name":"IN","datatype":"{datatype}",'
        f'"shape":{shape or [count]}, "data" : {data}}}]{more}}}'
    ).encode("utf-8", "surrogatepass")


def both(text: bytes) -> tuple[Any, Any]:
    """What the ordinary decoder and the one for large requests make of a body."""
    return (
        outcome(lambda: json_codec.decode_request(text, None, "m", "", MAX_BYTES)),
        outcome(lambda: json_codec.decode_large_request(text, None, "m", "", MAX_BYTES, MAX_BYTES)),
    )


def outcome(decode: Callable[[], json_codec.DecodedRequest]) -> Any:
    try:
        decoded = decode()
    except NaiadError as error:
        return error.code, error.message
    request = decoded.request
    tensors = [(t.name, t.datatype, t.shape, bytes(t.data)) for t in request.inputs]
    return tensors, request.id, request.parameters, decoded.formats


NUMBERS = [
    "[1,2,3]",
    "[[1,2],[3,4],[5,6]]",
    "[ [ 1 , -2 ] , [ 3 ] ]",
    "[[[[1]]],2,[3]]",
    "[[],1,[[]],2]",
    "[1,[],2]",
    "[300000000000,-1,4294967296]",
    "[1.0,2]",
]


@pytest.mark.parametrize("data", NUMBERS)
def test_packs_numbers_as_the_ordinary_decoder_does(data: str) -> None:
    ordinary, large = both(body(data))
    assert large == ordinary


@pytest.mark.parametrize(
    ("data", "datatype"),
    [
        ("[true,false,[true]]", "BOOL"),
        ("[0.5,-1e3,1e-9,3]", "FP32"),
        ("[1e308,2,-0.25]", "FP64"),
        ("[18446744073709551615,0]", "UINT64"),
        ("[-9223372036854775808,9]", "INT64"),
        ("[255,256,-1]", "INT8"),
    ],
)
def test_packs_every_datatype(data: str, datatype: str) -> None:
    ordinary, large = both(body(data, datatype))
    assert large == ordinary


@pytest.mark.parametrize(
    "data",
    [
        '["a","bc",""]',
        '[["x,y","[z]"],["\\"","\\\\"]]',
        '["a very long string that is longer than any piece, with [brackets] and \\"quotes\\""]',
        '["\\u00e4\\ud83d\\ude00 and a long tail of plain text after the escapes, more of it"]',
        '["short", "' + "x" * 300 + '", "short"]',
        '["' + "\\n\\\\" * 40 + '","b"]',
    ],
)
def test_packs_strings(data: str) -> None:
    ordinary, large = both(body(data, "BYTES"))
    assert large == ordinary


@pytest.mark.parametrize(
    ("data", "datatype"),
    [
        ("[1,2,true]", "INT32"),
        ('[1,2,"a"]', "FP32"),
        ("[1,2,null]", "FP32"),
        ("[1,2.5]", "INT32"),
        ("[1,-2]", "UINT32"),
        ("[1,2]", "BOOL"),
        ('["a",1]', "BYTES"),
        ("[1,2]", "FP16"),
    ],
)
def test_reports_wrong_values_as_the_ordinary_decoder_does(data: str, datatype: str) -> None:
    ordinary, large = both(body(data, datatype))
    assert large == ordinary


@pytest.mark.parametrize("shape", [[2], [4], [0], [1, 3], [1 << 40]])
def test_reports_a_wrong_shape_as_the_ordinary_decoder_does(shape: list[int]) -> None:
    ordinary, large = both(body("[1,2,3]", shape=shape))
    assert large == ordinary


@pytest.mark.parametrize(
    "data",
    [
        "[1,,2]",
        "[1,2,]",
        "[,1]",
        "[1[2]]",
        "[[1]2]",
        "[1 2]",
        "[1[]]",
        "[[]1]",
        "[1}",
        "[1,2",
        "[1]]",
    ],
)
def test_refuses_what_is_not_json(data: str) -> None:
    text = body(data, shape=[1])
    ordinary, large = both(text)
    assert isinstance(ordinary[1], str), "the ordinary decoder refuses it"
    assert isinstance(large[1], str)
    assert ordinary[0] == large[0], "the codes are equal"


def test_reads_numbers_that_only_triton_reads() -> None:
    ordinary, large = both(body("[NaN,-Infinity,1]", "FP32", [3]))
    assert large == ordinary


def test_keeps_everything_next_to_the_data() -> None:
    more = ',"outputs":[{"name":"OUT","parameters":{"binary_data":true}}],"parameters":{"a":[1]}'
    ordinary, large = both(body("[1,2,3]", more=more))
    assert large == ordinary
    more = ',"outputs":[{"name":"OUT"}],"parameters":{"data":"[1,2,3]","priority":3}'
    ordinary, large = both(body("[1,2,3]", more=more))
    assert large == ordinary


def test_a_client_cannot_write_a_mark() -> None:
    """A mark of another request means nothing: each has a secret of its own."""
    split = json_split.split_data(body("[1,2,3]"))
    assert len(split.spans) == 1
    assert split.span(["0" * 32 + ":0"]) is None
    assert split.span(["x"]) is None


def deep(depth: int, value: str = "1") -> str:
    return "[" * depth + value + "]" * depth


@pytest.mark.parametrize("data", [deep(99), deep(100), deep(500), f"[1,{deep(98)},{deep(99)},2]"])
def test_counts_the_depth_of_data(data: str) -> None:
    ordinary, large = both(body(data, shape=[4] if "," in data else [1]))
    assert large == ordinary


def test_ignores_data_without_elements_however_deep() -> None:
    ordinary, large = both(body(deep(200), shape=[0, 2]))
    assert large == ordinary
    assert large[0] == [("IN", "INT32", [0, 2], b"")]


@pytest.mark.parametrize("more", [f',"parameters":{{"a":{deep(300)}}}', f',"outputs":{deep(300)}'])
def test_judges_deep_fields_by_their_type(more: str) -> None:
    ordinary, large = both(body("[1,2,3]", more=more))
    assert large == ordinary


@pytest.mark.parametrize(
    ("data", "shape", "datatype"),
    [
        ("[1,2,3]", [2], "INT32"),
        ("[1,2,3]", [4], "INT32"),
        ("[1,2,3]", [1000], "INT32"),
        ('[1,2,"x"]', [2], "INT32"),
        ('[1,2,"x"]', [3], "INT32"),
        ('[1,2,"x"]', [4], "INT32"),
        ("[1,2,3]", [1 << 62, 4], "INT32"),
        ("[1,2,3]", [1 << 61], "INT32"),
        ("[1,2,3]", [1 << 30], "INT32"),
        ("[1,2,3]", [1 << 63], "INT32"),
        ("[1,2,3]", [(1 << 64) - 1], "INT32"),
        ('["a","b"]', [(1 << 64) - 1], "BYTES"),
        ('["a","b"]', [3], "BYTES"),
        ("[1,2]", [1], "FP16"),
        (f"[1,{'1' * 400}]", [2], "FP32"),
        (f"[1,{'1' * 5000}]", [2], "INT32"),
        ("[1,1e999]", [2], "FP64"),
    ],
)
def test_checks_sizes_types_and_counts_in_the_ordinary_order(
    data: str, shape: list[int], datatype: str
) -> None:
    ordinary, large = both(body(data, datatype, shape))
    assert large == ordinary


@pytest.mark.parametrize(
    "more", [',"parameters":{"triton_x":1}', ',"parameters":{"priority":"x"}', ',"outputs":[{}]']
)
def test_finds_faults_of_fields_in_the_ordinary_order(more: str) -> None:
    for shape in ([3], [4]):
        ordinary, large = both(body("[1,2,3]", shape=shape, more=more))
        assert large == ordinary


def test_errors_point_into_the_text_that_was_sent() -> None:
    ordinary, large = both(body("[1,2,3]", more=',"outputs":[oops]'))
    assert large == ordinary


VALUES = st.recursive(
    st.integers(-(2**31), 2**31 - 1), lambda inner: st.lists(inner, max_size=4), max_leaves=20
)


@given(
    data=st.lists(VALUES, max_size=8), size=st.integers(1, 40), indent=st.sampled_from([None, 1])
)
def test_any_nested_numbers(data: list[Any], size: int, indent: int | None) -> None:
    with pytest.MonkeyPatch.context() as patch:
        use_small_pieces(patch, size)
        text = json.dumps(data, indent=indent)
        ordinary, large = both(body(text, shape=[max(1, len(flatten(data)))]))
        assert large == ordinary


@given(
    data=st.lists(st.text(max_size=30), min_size=1, max_size=8),
    size=st.integers(1, 40),
    is_ascii=st.booleans(),
)
def test_any_strings(data: list[str], size: int, is_ascii: bool) -> None:
    with pytest.MonkeyPatch.context() as patch:
        use_small_pieces(patch, size)
        text = json.dumps(data, ensure_ascii=is_ascii)
        ordinary, large = both(body(text, "BYTES", [len(data)]))
        assert large == ordinary


def test_refuses_much_that_is_not_data() -> None:
    text = body("[1,2,3]", more=',"parameters":{"a":"' + "x" * 1000 + '"}')
    with pytest.raises(NaiadError, match="more than 500 bytes outside of tensor data"):
        json_codec.decode_large_request(text, None, "m", "", MAX_BYTES, 500)


def test_refuses_many_values_that_are_not_data(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(json_split, "MAX_REST_VALUES", 50)
    text = body("[1,2,3]", more=',"parameters":{"a":[' + "{}," * 50 + "{}]}")
    with pytest.raises(NaiadError, match="more than 50 JSON values"):
        json_codec.decode_large_request(text, None, "m", "", MAX_BYTES, MAX_BYTES)
    # Strings may contain any number of commas.
    text = body("[1,2,3]", more=',"parameters":{"a":"' + "[,{" * 100 + '"}')
    json_codec.decode_large_request(text, None, "m", "", MAX_BYTES, MAX_BYTES)


def test_bounds_what_only_the_slow_reader_understands(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(json_data, "_MAX_SLOW_BYTES", 100)
    with pytest.raises(NaiadError, match="empty lists"):
        json_codec.decode_large_request(
            body("[" + "[]," * 1000 + "1]"), None, "m", "", MAX_BYTES, MAX_BYTES
        )


def test_refuses_deep_nesting() -> None:
    ordinary, large = both(body("[" * 120 + "1" + "]" * 120, shape=[1]))
    assert large == ordinary


def test_memory_stays_near_the_size_of_the_tensor(monkeypatch: pytest.MonkeyPatch) -> None:
    use_small_pieces(monkeypatch, 128 * 1024)
    count = 1_000_000
    text = body("[" + "0.5," * (count - 1) + "0.5]", "FP32", [count])
    tracemalloc.start()
    try:
        decoded = json_codec.decode_large_request(text, None, "m", "", MAX_BYTES, MAX_BYTES)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert len(decoded.request.inputs[0].data) == 4 * count
    assert peak < 2 * len(text)


def test_flatten_visits_each_value_once() -> None:
    deep: Any = 1
    for _ in range(90):
        deep = [deep]
    visits = 0

    class Counted(list[Any]):
        def __iter__(self) -> Any:
            nonlocal visits
            visits += 1
            return super().__iter__()

    wide = Counted([deep, *range(1000)])
    assert flatten(wide) == [1, *range(1000)]
    assert visits <= 3
