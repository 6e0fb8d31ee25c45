"""Which requests are sampled, and how settings of the server and of models fall back, change and
are cleared."""

from __future__ import annotations

import pytest

from naiad.core.trace import RemoteParent
from naiad.errors import Code, NaiadError
from naiad.trace.trace_options import OtelOptions, TraceOptions
from naiad.trace.tracing import ALL_MODELS, Tracing
from tests.unit.trace.trace_rig import begin, finish, run, tracing_of

SAMPLED = RemoteParent(5, 6, True)


def sampled(tracing: Tracing, count: int, model: str = "m") -> list[bool]:
    return [tracing.sample(model) is not None for _ in range(count)]


def test_tracing_is_off_by_default() -> None:
    assert not Tracing().is_on


def test_samples_every_nth_request() -> None:
    tracing, _ = tracing_of(rate=3)
    assert tracing.is_on
    assert sampled(tracing, 7) == [False, False, True, False, False, True, False]


def test_shows_the_remaining_count() -> None:
    tracing, _ = tracing_of(count=2)
    assert sampled(tracing, 4) == [True, True, False, False]
    assert tracing.shown()["trace_count"] == ["0"]


def test_another_change_does_not_restart_the_count() -> None:
    tracing, _ = tracing_of()
    tracing.update(ALL_MODELS, {"trace_count": ["3"]})
    assert sampled(tracing, 2) == [True, True]
    tracing.update(ALL_MODELS, {"log_frequency": ["4"]})
    assert tracing.shown()["trace_count"] == ["1"]
    assert sampled(tracing, 2) == [True, False]


def test_traces_nothing_without_a_file() -> None:
    tracing, _ = tracing_of(file="")
    assert not tracing.is_on
    with pytest.raises(NaiadError) as caught:
        tracing.update(ALL_MODELS, {"trace_rate": ["2"]})
    assert (
        caught.value.message
        == "Attempting to set invalid trace setting :trace file name is not given"
    )


class TestModels:
    def test_fall_back_to_the_server(self) -> None:
        tracing, _ = tracing_of(level=0, rate=5)
        tracing.update("m", {"trace_level": ["TIMESTAMPS"]})
        assert tracing.is_on
        assert tracing.shown("m")["trace_rate"] == ["5"]
        tracing.update(ALL_MODELS, {"trace_rate": ["2"]})
        assert tracing.shown("m")["trace_rate"] == ["2"]
        assert sampled(tracing, 4) == [False, True, False, True]
        assert sampled(tracing, 4, "other") == [False] * 4

    def test_cleared_settings_fall_back_again(self) -> None:
        tracing, _ = tracing_of()
        tracing.update("m", {"trace_rate": ["7"], "trace_count": ["4"]})
        tracing.update("m", {"trace_rate": None})
        assert tracing.shown("m")["trace_rate"] == ["1"]
        assert tracing.shown("m")["trace_count"] == ["4"]
        tracing.update("m", {"trace_count": None})
        assert tracing.shown("m") == tracing.shown()

    def test_the_server_falls_back_to_the_command_line(self) -> None:
        tracing, _ = tracing_of(rate=11)
        tracing.update(ALL_MODELS, {"trace_rate": ["7"]})
        tracing.update(ALL_MODELS, {"trace_rate": None})
        assert tracing.shown()["trace_rate"] == ["11"]

    def test_a_single_model_can_be_off(self) -> None:
        tracing, _ = tracing_of()
        tracing.update("m", {"trace_level": ["OFF"]})
        assert sampled(tracing, 2) == [False, False]
        assert sampled(tracing, 1, "other") == [True]

    def test_a_change_retires_the_settings_it_replaces(self) -> None:
        tracing, sink = tracing_of()
        tracing.update("m", {"trace_rate": ["2"]})
        tracing.update(ALL_MODELS, {"trace_rate": ["3"]})
        assert len(sink.retired) == 2


UPDATES: list[tuple[dict[str, list[str] | None], Code, str]] = [
    ({"trace_rate": ["x"]}, Code.INVALID_ARG, "Unable to parse 'trace_rate', got: x"),
    ({"trace_rate": [""]}, Code.INVALID_ARG, "Unable to parse 'trace_rate', got: "),
    ({"trace_rate": ["7x"]}, Code.INVALID_ARG, "Unable to parse 'trace_rate', got: 7x"),
    ({"trace_rate": ["1", "2"]}, Code.INVALID_ARG, "expect only 1 value for 'trace_rate'"),
    (
        {"trace_rate": ["99999999999"]},
        Code.INVALID_ARG,
        "Unable to parse 'trace_rate', value is out of range [ 0, 4294967295 ], got: 99999999999",
    ),
    (
        {"trace_rate": ["0"]},
        Code.INVALID_ARG,
        "Attempting to set invalid trace setting :sample rate must be non-zero",
    ),
    (
        {"trace_count": ["-2"]},
        Code.INVALID_ARG,
        "Unable to parse 'trace_count'. Expecting value >= -1, got:-2",
    ),
    (
        {"trace_count": ["99999999999"]},
        Code.INVALID_ARG,
        "Unable to parse 'trace_count', value is out of range [ -1, 2147483647 ], got: 99999999999",
    ),
    (
        {"trace_count": ["0"]},
        Code.INVALID_ARG,
        "Attempting to set invalid trace setting :trace count must be non-zero",
    ),
    ({"log_frequency": ["x"]}, Code.INVALID_ARG, "Unable to parse 'log_frequency', got: x"),
    (
        {"trace_level": ["OFF", "TENSORS"]},
        Code.INVALID_ARG,
        "Expect only one trace level 'OFF' is specified",
    ),
    ({"trace_level": ["LOUD"]}, Code.INVALID_ARG, "invalid value for trace level option: LOUD"),
    (
        {"trace_file": ["/etc/passwd"]},
        Code.UNSUPPORTED,
        "trace file location can not be updated through network protocol",
    ),
    (
        {"trace_file": None},
        Code.UNSUPPORTED,
        "trace file location can not be updated through network protocol",
    ),
    (
        {"trace_rate": ["4"], "trace_count": ["x"]},
        Code.INVALID_ARG,
        "Unable to parse 'trace_count', got: x",
    ),
]


@pytest.mark.parametrize(("changes", "code", "message"), UPDATES)
@pytest.mark.parametrize("model", [ALL_MODELS, "m"])
def test_rejected_updates_change_nothing(
    model: str, changes: dict[str, list[str] | None], code: Code, message: str
) -> None:
    tracing, _ = tracing_of()
    before = tracing.shown(model)
    with pytest.raises(NaiadError) as caught:
        tracing.update(model, changes)
    assert (caught.value.code, caught.value.message) == (code, message)
    assert tracing.shown(model) == before


def test_rejects_a_change_that_makes_the_settings_of_a_model_invalid() -> None:
    """A model that has only its level set would be left with a rate of 0."""
    tracing, _ = tracing_of(level=0)
    tracing.update("m", {"trace_level": ["TIMESTAMPS"]})
    with pytest.raises(NaiadError):
        tracing.update(ALL_MODELS, {"trace_rate": ["0"]})
    assert tracing.shown()["trace_rate"] == ["1"]


def test_accepts_valid_updates() -> None:
    tracing, _ = tracing_of()
    tracing.update(
        ALL_MODELS,
        {
            "trace_rate": [" +7 "],
            "trace_level": ["TENSORS", "TIMESTAMPS"],
            "unknown": ["x"],
            "trace_mode": ["x"],
        },
    )
    assert tracing.shown() == {
        "trace_level": ["TIMESTAMPS", "TENSORS"],
        "trace_rate": ["7"],
        "trace_count": ["-1"],
        "log_frequency": ["0"],
        "trace_file": ["trace.json"],
        "trace_mode": ["triton"],
    }
    tracing.update(ALL_MODELS, {"trace_level": ["MIN"]})
    assert tracing.shown()["trace_level"] == ["TIMESTAMPS"]
    tracing.update(ALL_MODELS, {"trace_level": ["OFF"], "trace_rate": ["0"]})
    assert not tracing.is_on


class TestOpenTelemetry:
    def test_shows_its_own_settings(self) -> None:
        tracing, _ = tracing_of(
            mode="opentelemetry", file="", otel=OtelOptions(url="http://c/v1", resource={"a": "b"})
        )
        assert list(tracing.shown()) == [
            "trace_level",
            "trace_rate",
            "trace_count",
            "trace_mode",
            "url",
            "resource",
            "bsp_schedule_delay",
            "bsp_max_export_batch_size",
            "bsp_max_queue_size",
        ]
        assert tracing.shown()["resource"] == ["a=b"]

    def test_always_traces_the_request_of_a_sampled_client(self) -> None:
        tracing, _ = tracing_of(mode="opentelemetry", rate=0)
        assert tracing.is_on
        assert tracing.sample("m") is None
        group = tracing.sample("m", SAMPLED)
        assert group is not None
        assert group.trace_id == 5
        assert tracing.sample("m", RemoteParent(5, 6, False)) is None

    def test_off_applies_to_sampled_clients_too(self) -> None:
        tracing, _ = tracing_of(mode="opentelemetry", level=0)
        tracing.is_on = True
        assert tracing.sample("m", SAMPLED) is None

    def test_passes_a_context_to_the_model(self) -> None:
        tracing, _ = tracing_of(mode="opentelemetry")
        group = tracing.sample("m", RemoteParent(0xAB, 6, True, "vendor=1"))
        assert group is not None
        trace = group.new_trace()
        expected = (
            f'{{"traceparent":"00-{0xAB:032x}-{trace.span_id:016x}-01","tracestate":"vendor=1"}}'
        )
        assert trace.context == expected

    def test_the_trace_file_has_no_contexts(self) -> None:
        tracing, _ = tracing_of()
        group = tracing.sample("m", SAMPLED)
        assert group is not None
        assert group.new_trace().context == ""


class TestGroups:
    def test_delivers_a_group_when_all_its_traces_have_ended(self) -> None:
        tracing, sink = tracing_of()
        group = tracing.sample("m")
        assert group is not None
        outer = begin(group)
        inner = begin(group, "inner", parent=outer)
        finish(outer)
        group.close()
        assert not sink.groups
        finish(inner)
        assert sink.groups == [group]
        assert [trace.parent for trace in group.traces] == [None, outer]

    def test_trace_ids_are_unique_in_the_server(self) -> None:
        tracing, sink = tracing_of()
        for _ in range(2):
            group = tracing.sample("m")
            assert group is not None
            run(group)
        assert [group.traces[0].id for group in sink.groups] == [1, 2]

    def test_rejected_requests_are_not_traced_and_do_not_count(self) -> None:
        tracing, sink = tracing_of(count=2)
        first, second = tracing.sample("m"), tracing.sample("m")
        assert first is not None
        assert second is not None
        run(first)
        second.discard()
        assert sink.groups == [first]
        assert len(sink.retired) == 1

    def test_omits_a_call_that_was_rejected(self) -> None:
        tracing, sink = tracing_of()
        group = tracing.sample("m")
        assert group is not None
        outer = begin(group)
        begin(group, "inner", parent=outer).rejected()
        finish(outer)
        group.close()
        assert sink.groups[0].traces == [outer]

    def test_records_only_tensors(self) -> None:
        tracing, sink = tracing_of(level=2)
        group = tracing.sample("m")
        assert group is not None
        run(group)
        (trace,) = sink.groups[0].traces
        assert trace.stamps == []
        assert group.endpoint_stamps == []
        assert [record.activity for record in trace.tensors] == [
            "TENSOR_QUEUE_INPUT",
            "TENSOR_BACKEND_OUTPUT",
        ]


def test_close_turns_tracing_off() -> None:
    tracing, sink = tracing_of()
    tracing.close()
    assert sink.is_closed
    assert not tracing.is_on


def test_options_are_off_by_default() -> None:
    assert TraceOptions().level == 0
