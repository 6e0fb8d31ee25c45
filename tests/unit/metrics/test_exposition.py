import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from prometheus_client.parser import text_string_to_metric_families

from naiad.metrics.exposition import Block, label_text, number, page, with_labels


# Pairs seen on the page of Triton 2.51.
@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0, "0"),
        (0.0, "0"),
        (5.5, "5.5"),
        (123456789.0, "123456789"),
        (2.0**60, "1.152921504606847e+18"),
        (1e22, "1e+22"),
        (1e-7, "1e-07"),
        (0.1, "0.1"),
        (1 / 3, "0.3333333333333333"),
        (0.39896373056994819, "0.3989637305699482"),
        (1000000001.5, "1000000001.5"),
        (25276518400, "25276518400"),
        (-4.25, "-4.25"),
        (math.nan, "Nan"),
        (math.inf, "+Inf"),
        (-math.inf, "-Inf"),
    ],
)
def test_formats_numbers_as_triton_does(value: float, text: str) -> None:
    assert number(value) == text


def test_labels_are_sorted_and_escaped() -> None:
    assert (
        label_text({"version": "1", "_quoted": 'x\\ y\n"z', "model": "m"})
        == '_quoted="x\\\\ y\\n\\"z",model="m",version="1"'
    )


def test_writes_a_histogram_as_triton_does() -> None:
    block = Block("his", "histogram", "a histogram")
    block.add_histogram('l="v"', ["0.1", "1", "10", "25000000"], [0, 2, 0, 0, 1], 1000000001.5)
    assert page([block]).decode() == (
        "# HELP his a histogram\n# TYPE his histogram\n"
        'his_count{l="v"} 3\nhis_sum{l="v"} 1000000001.5\n'
        'his_bucket{l="v",le="0.1"} 0\nhis_bucket{l="v",le="1"} 2\nhis_bucket{l="v",le="10"} 2\n'
        'his_bucket{l="v",le="25000000"} 2\nhis_bucket{l="v",le="+Inf"} 3\n'
    )


def test_writes_a_summary_as_triton_does() -> None:
    block = Block("s", "summary", "h")
    block.add_summary('model="m"', [(0.5, 371.0), (0.999, math.nan)], 3, 34396)
    assert page([block]).decode() == (
        "# HELP s h\n# TYPE s summary\n"
        's_count{model="m"} 3\ns_sum{model="m"} 34396\n'
        's{model="m",quantile="0.5"} 371\ns{model="m",quantile="0.999"} Nan\n'
    )


def test_series_without_labels() -> None:
    histogram, summary, counter = (
        Block("h", "histogram", "x"),
        Block("s", "summary", "x"),
        Block("c", "counter", "x"),
    )
    histogram.add_histogram("", ["1"], [1, 0], 0.5)
    summary.add_summary("", [(0.5, 1.0)], 1, 1)
    counter.add("", 3)
    text = page([histogram, summary, counter]).decode()
    assert 'h_bucket{le="1"} 1\n' in text
    assert 's{quantile="0.5"} 1\n' in text
    assert "\nc 3\n" in text


def test_orders_kinds_and_omits_empty_families() -> None:
    blocks = [
        Block("a", "histogram", ""),
        Block("b", "gauge", ""),
        Block("c", "counter", ""),
        Block("d", "gauge", ""),
        Block("e", "gauge", ""),
    ]
    blocks[0].add_histogram("", [], [0], 0)
    for block in blocks[1:4]:
        block.add("", 1)
    names = [
        line.split()[2] for line in page(blocks).decode().splitlines() if line.startswith("# HELP")
    ]
    assert names == ["c", "b", "d", "a"]


LABEL_VALUE = st.text(st.characters(exclude_categories=["Cs"]))
# 16 digits round the largest ones to infinity
FLOATS = st.floats(-1e300, 1e300) | st.sampled_from([math.nan, math.inf, -math.inf])


@settings(deadline=None)
@given(
    st.dictionaries(st.from_regex(r"(?!__)[a-zA-Z_][a-zA-Z0-9_]*", fullmatch=True), LABEL_VALUE),
    LABEL_VALUE,
    FLOATS,
)
def test_a_parser_returns_any_labels_and_help_unchanged(
    labels: dict[str, str], help: str, value: float
) -> None:
    block = Block("name", "gauge", help)
    block.add(label_text(labels), value)
    (family,) = text_string_to_metric_families(page([block]).decode())
    (sample,) = family.samples
    assert sample.labels == labels
    assert sample.value == pytest.approx(value, rel=1e-15, nan_ok=True)
    assert family.name == "name"


def test_text_that_is_not_unicode_does_not_break_the_page() -> None:
    block = Block("name", "gauge", "\udc80")
    block.add(label_text({"a": "\udcff"}), 1)
    assert b'name{a="?"} 1\n' in page([block])


def test_labels_are_added_to_every_series() -> None:
    text = (
        b"# HELP a A\n# TYPE a counter\n"
        b'a{model="x"} 1\na 2\nb_bucket{le="+Inf"} 3\nb_count 3\nc{name="} d{"} 4\n'
    )
    added = with_labels(text, {"node": 'n"1', "replica": "d-1", "empty": ""}).decode()
    assert added.splitlines() == [
        "# HELP a A",
        "# TYPE a counter",
        'a{node="n\\"1",replica="d-1",model="x"} 1',
        'a{node="n\\"1",replica="d-1"} 2',
        'b_bucket{node="n\\"1",replica="d-1",le="+Inf"} 3',
        'b_count{node="n\\"1",replica="d-1"} 3',
        'c{node="n\\"1",replica="d-1",name="} d{"} 4',
    ]
    assert with_labels(text, {"node": ""}) == text


def test_a_series_keeps_a_label_of_its_own() -> None:
    text = b'a{node="mine",other="1"} 1\na{other_node="x"} 2\n'
    added = with_labels(text, {"node": "n", "replica": "r"}).decode()
    assert added == (
        'a{replica="r",node="mine",other="1"} 1\na{node="n",replica="r",other_node="x"} 2\n'
    )
