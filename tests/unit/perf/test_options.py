"""Tests how perf_analyzer's flags become PerfOptions, and which are rejected."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from naiad.perf.command import command
from naiad.perf.measure.ranges import IdRange, Range
from naiad.perf.options import PerfOptions, check_options
from naiad.settings.option import OptionError


def parse(line: str) -> PerfOptions:
    return check_options(PerfOptions(**command.parse(line.split())))


def test_accepts_a_command_line_of_perf_analyzer() -> None:
    options = parse(
        "-m add_sub -x 2 -i gRPC -u host:1 -b 4 --concurrency-range 2:8:2 -p 1000 -s 5 -r 4 "
        "--percentile 95 -l 20 --shape A:1,2 --shape B:3 -H k:v -f out.csv --verbose-csv "
        "--streaming --async --max-threads 8 -v "
        "--sequence-id-range 5:9 --request-parameter n:3:int"
    )
    assert (
        options.model,
        options.model_version,
        options.protocol,
        options.url,
        options.batch_size,
    ) == (
        "add_sub",
        "2",
        "grpc",
        "host:1",
        4,
    )
    assert options.concurrency_range == Range(2, 8, 2, True)
    assert (
        options.measurement_interval,
        options.stability_percentage,
        options.max_trials,
        options.percentile,
    ) == (1000, 5.0, 4, 95)
    assert dict(options.shape) == {"A": (1, 2), "B": (3,)}
    assert options.header == (("k", "v"),)
    assert options.sequence_id_range == IdRange(5, 9)
    assert dict(options.request_parameter) == {"n": 3}
    assert options.is_grpc
    assert options.verbose
    assert options.streaming


@pytest.mark.parametrize(
    ("line", "field", "value"),
    [
        ("-m a -t 4", "concurrency_range", Range(4, 4, 1, False)),
        ("-m a -d -t 2 -c 8", "concurrency_range", Range(2, 8, 1, True)),
        ("-m a -z", "input_data", ("zero",)),
        ("-m a --data-directory d", "input_data", ("d",)),
        ("-m a --request-rate-range 1.5:3:0.5", "request_rate_range", Range(1.5, 3, 0.5, True)),
    ],
)
def test_accepts_old_options(line: str, field: str, value: Any) -> None:
    assert getattr(parse(line), field) == value


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("", "-m is required"),
        ("-m a --concurrency-range 0", "positive"),
        ("-m a --concurrency-range 4:2", "smaller than its start"),
        ("-m a --concurrency-range 1:0:1", "end 0 requires --latency-threshold"),
        ("-m a --concurrency-range 1.5", "whole numbers"),
        ("-m a --concurrency-range 1 --request-rate-range 1", "cannot be used together"),
        ("-m a --binary-search --concurrency-range 1:8", "requires --latency-threshold"),
        ("-m a --binary-search -l 5", "with a start and an end"),
        ("-m a --percentile 100", "from 1 to 99"),
        ("-m a --shape A", "name:d1,d2"),
        ("-m a --request-parameter n:x:int", "name:value:type"),
        ("-m a --periodic-concurrency-range 1:8:1", "--profile-export-file"),
        ("-m a --collect-metrics -f x", "--verbose-csv"),
        ("-m a --goodput speed:3", "unknown metric 'speed'"),
        ("-m a -i carrier-pigeon", "expected http or grpc"),
        ("-m a stray", "Unexpected argument"),
        ("-m a --measurement-interval 0", "out of bound"),
    ],
)
def test_rejects_invalid_options(line: str, message: str) -> None:
    with pytest.raises(OptionError, match=message.replace("(", r"\(")):
        parse(line)


def test_options_imply_the_language_model_mode() -> None:
    assert parse("-m a --service-kind openai").is_llm
    assert not parse("-m a --service-kind openai --endpoint v1/embeddings").is_llm
    assert parse("-m a --isl 30").is_llm
    assert not parse("-m a").is_llm


def test_every_option_has_a_help_text() -> None:
    for option in command.options.values():
        assert option.flag.help, option.name
    assert len(msgspec.structs.fields(PerfOptions)) == len(command.options)
