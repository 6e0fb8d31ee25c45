"""Metadata, statistics and the repository index as JSON: Triton's keys in Triton's order."""

from __future__ import annotations

from naiad.core.model_spec import ModelIndex, ModelSpec, ServerMetadata, TensorSpec
from naiad.core.statistics import BatchTimes, Duration, ModelStatistics, ResponseStatistics
from naiad.protocol.v2.metadata import (
    encode_index,
    encode_model_metadata,
    encode_server_metadata,
    encode_statistics,
)


def test_server() -> None:
    assert (
        encode_server_metadata(ServerMetadata("triton", "2.73.0", ["a", "b"]))
        == b'{"name":"triton","version":"2.73.0","extensions":["a","b"]}'
    )


def test_model() -> None:
    inputs = {"IN": TensorSpec("IN", "FP32", [16], [-1, 16])}
    outputs = {"OUT": TensorSpec("OUT", "BYTES", [-1], [-1, -1])}
    assert encode_model_metadata(ModelSpec("m", 3, [1, 3], "python", 8, inputs, outputs)) == (
        b'{"name":"m","versions":["1","3"],"platform":"python","inputs":[{"name":"IN","datatype":"FP32","shape":[-1,16]}],'
        b'"outputs":[{"name":"OUT","datatype":"BYTES","shape":[-1,-1]}]}'
    )


def test_index() -> None:
    rows = [
        ModelIndex("a", "1", "READY"),
        ModelIndex("b", "1", "UNAVAILABLE", "unloaded"),
        ModelIndex("c"),
    ]
    assert encode_index(rows) == (
        b'[{"name":"a","version":"1","state":"READY"},{"name":"b","version":"1","state":"UNAVAILABLE","reason":"unloaded"},{"name":"c"}]'
    )


def test_fresh_statistics() -> None:
    assert encode_statistics([ModelStatistics("add_sub", 1)]) == (
        b'{"model_stats":[{"name":"add_sub","version":"1","last_inference":0,"inference_count":0,"execution_count":0,"inference_stats":'
        b'{"success":{"count":0,"ns":0},"fail":{"count":0,"ns":0},"queue":{"count":0,"ns":0},"compute_input":{"count":0,"ns":0},'
        b'"compute_infer":{"count":0,"ns":0},"compute_output":{"count":0,"ns":0},"cache_hit":{"count":0,"ns":0},'
        b'"cache_miss":{"count":0,"ns":0}},"response_stats":{},"batch_stats":[],"memory_usage":[]}]}'
    )


def test_batches_and_responses() -> None:
    statistics = ModelStatistics("m", 2)
    statistics.record_execution(4, BatchTimes(0, 10, 30, 35))
    statistics.record_execution(1, BatchTimes(0, 1, 2, 3))
    statistics.responses[1] = ResponseStatistics(success=Duration(1, 5))
    statistics.responses[0] = ResponseStatistics(fail=Duration(1, 7))
    text = encode_statistics([statistics])
    one = (
        b'{"batch_size":1,"compute_input":{"count":1,"ns":1},"compute_infer":{"count":1,'
        b'"ns":1},"compute_output":{"count":1,"ns":1}}'
    )
    four = (
        b'{"batch_size":4,"compute_input":{"count":1,"ns":10},"compute_infer":{"count":1,'
        b'"ns":20},"compute_output":{"count":1,"ns":5}}'
    )
    assert b'"batch_stats":[%b,%b]' % (one, four) in text
    assert text.index(b'"0":{"compute_infer"') < text.index(b'"1":{"compute_infer"')
