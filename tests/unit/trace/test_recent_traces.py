"""Traces in memory: who asks for one gets it, nothing lasts, and the bars are in order."""

from __future__ import annotations

from naiad.core.trace import Trace, TraceGroup
from naiad.trace.recent_traces import MAX_TICKETS, MAX_TRACES, TICKET_S, RecentTraces
from naiad.trace.tracing import Tracing
from naiad.trace.waterfall import build_waterfall


class Clock:
    def __init__(self) -> None:
        self.now_s = 1000.0

    def __call__(self) -> float:
        return self.now_s


def finish(group: TraceGroup, model: str = "m") -> None:
    trace = group.new_trace()
    trace.begin(model, "1", "", 1)
    trace.end()
    group.close()


def test_a_ticket_is_good_for_one_request() -> None:
    tracing = Tracing()
    ticket = tracing.recent.issue_ticket()
    tracing.update_is_on()
    assert tracing.is_on
    assert tracing.sample("m") is None
    assert tracing.sample_recent("another") is None
    group = tracing.sample_recent(ticket)
    assert group is not None
    assert not tracing.is_on
    assert tracing.sample_recent(ticket) is None
    finish(group)
    (trace,) = tracing.recent.all()
    assert (trace.ticket, trace.waterfall.model) == (ticket, "m")


def test_a_request_that_reached_no_model_leaves_no_trace() -> None:
    tracing = Tracing()
    group = tracing.sample_recent(tracing.recent.issue_ticket())
    assert group is not None
    group.discard()
    assert tracing.recent.all() == []


def test_tickets_and_samples_expire() -> None:
    clock = Clock()
    recent = RecentTraces(clock)
    recent.issue_ticket()
    recent.set_sample(2, 60.0)
    assert [recent.choose("") for _ in range(4)] == [False, True, False, True]
    clock.now_s += TICKET_S + 1
    recent.expire()
    assert recent.rate == 2
    clock.now_s += 60
    recent.expire()
    assert not recent.is_on


def test_memory_is_bounded() -> None:
    recent = RecentTraces()
    tickets = [recent.issue_ticket() for _ in range(MAX_TICKETS + 5)]
    assert not recent.choose(tickets[0])
    assert recent.choose(tickets[-1])
    for number in range(MAX_TRACES + 7):
        group = TraceGroup(lambda: 1, 1, lambda group: recent.add("", group))
        finish(group, f"m{number}")
    shown = recent.all()
    assert len(shown) == MAX_TRACES
    assert shown[0].waterfall.model == f"m{MAX_TRACES + 6}"


def test_a_waterfall_has_stages_children_and_one_bar_for_all_pieces_of_a_stream() -> None:
    group = TraceGroup(lambda: 1, 1, lambda group: None)
    group.stamp("HTTP_RECV_START", 1_000)
    group.stamp("HTTP_RECV_END", 2_000)
    parent = Trace(group, 1, None)
    parent.begin("ensemble", "3", "", 3_000)
    child = parent.child()
    child.begin("step", "1", "", 4_000)
    child.stamps += [
        ("QUEUE_START", 5_000),
        ("COMPUTE_START", 7_000),
        ("COMPUTE_INPUT_END", 8_000),
        ("COMPUTE_OUTPUT_START", 20_000),
        ("COMPUTE_END", 21_000),
        ("REQUEST_END", 22_000),
    ]
    parent.stamps.append(("REQUEST_END", 23_000))
    for ns in (24_000, 30_000):
        group.stamp("HTTP_SEND_START", ns)
        group.stamp("HTTP_SEND_END", ns + 1_000)
    waterfall = build_waterfall(group)
    assert (waterfall.model, waterfall.total_us, waterfall.num_responses) == ("ensemble", 30.0, 2)
    bars = [(bar.name, bar.start_us, bar.end_us) for bar in waterfall.endpoint]
    assert bars == [("receive", 0.0, 1.0), ("send", 23.0, 30.0)]
    assert [(span.model, span.depth) for span in waterfall.spans] == [("ensemble", 0), ("step", 1)]
    stages = [(bar.name, bar.start_us, bar.end_us) for bar in waterfall.spans[1].stages]
    assert stages == [
        ("queue", 4.0, 6.0),
        ("copy inputs", 6.0, 7.0),
        ("compute", 7.0, 19.0),
        ("copy outputs", 19.0, 20.0),
    ]
