"""--trace-config: valid options, and values that are rejected at start."""

from __future__ import annotations

import pytest

from naiad.errors import NaiadError
from naiad.settings.compound import trace_config
from naiad.trace.trace_options import OtelOptions, TraceOptions, read_trace_options


def read(*texts: str) -> TraceOptions:
    return read_trace_options([trace_config(text) for text in texts])


def test_parses_options_of_the_trace_file() -> None:
    options = read(
        "triton,file=/t.json",
        "triton,log-frequency=50",
        "rate=100",
        "level=TIMESTAMPS",
        "level=tensors",
        "count=9",
    )
    assert options == TraceOptions("triton", 3, 100, 9, "/t.json", 50)


def test_parses_options_of_opentelemetry() -> None:
    options = read(
        "mode=opentelemetry",
        "opentelemetry,url=http://c:4318/v1/traces",
        "opentelemetry,resource=service.name=mine",
        "opentelemetry,resource=a=b=c",
        "opentelemetry,bsp_max_queue_size=10",
        "opentelemetry,bsp_schedule_delay=20",
        "opentelemetry,bsp_max_export_batch_size=5",
    )
    assert options.mode == "opentelemetry"
    assert options.otel == OtelOptions(
        "http://c:4318/v1/traces", {"service.name": "mine", "a": "b=c"}, 10, 20, 5
    )


@pytest.mark.parametrize(
    ("texts", "message"),
    [
        (["rate=-1"], "--trace-config rate expects a number from 0 to 4294967295, got: -1"),
        (["count=-2"], "--trace-config count expects a number from -1 to 2147483647, got: -2"),
        (
            ["triton,log-frequency=x"],
            "--trace-config triton,log-frequency expects a number from 0 to 4294967295, got: x",
        ),
        (["speed=3"], "--trace-config: there is no setting 'speed'"),
        (["triton,url=x"], "--trace-config: there is no setting 'url' of mode 'triton'"),
        (
            ["opentelemetry,resource=x"],
            "--trace-config opentelemetry,resource expects <key>=<value>, got: x",
        ),
        (
            ["opentelemetry,bsp_max_queue_size=4"],
            "--trace-config opentelemetry: bsp_max_export_batch_size must not be larger than "
            "bsp_max_queue_size",
        ),
    ],
)
def test_rejects_invalid_values(texts: list[str], message: str) -> None:
    with pytest.raises(NaiadError) as caught:
        read(*texts)
    assert caught.value.message == message
