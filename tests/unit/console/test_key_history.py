"""What keys and the machine have used in the last hour."""

from __future__ import annotations

from naiad.console.key_history import MAX_KEYS, KeyHistory
from naiad.console.machine_history import MachineHistory
from naiad.core.identity import Identity
from naiad.errors import Code
from naiad.keys.account import Accounts
from naiad.metrics.gpu import GpuReading
from naiad.metrics.host import NO_GPUS_READ, HostReading


def test_rates_of_a_key_and_of_requests_without_one() -> None:
    accounts, history = Accounts(), KeyHistory()
    account = accounts.of(Identity("k1"))
    history.add(accounts, 0.0)
    account.num_requests += 20
    account.count_tokens(100, 50)
    account.refusals[Code.RESOURCE_EXHAUSTED] += 5
    accounts.count_refusal(None, Code.UNAUTHENTICATED)
    history.add(accounts, 10.0)
    shown = history.show("k1")
    assert shown.times_s == [0.0, 10.0]
    assert shown.series["requests_per_s"] == [None, 2.0]
    assert shown.series["refused_per_s"] == [None, 0.5]
    assert shown.series["prompt_tokens_per_s"] == [None, 10.0]
    assert shown.series["output_tokens_per_s"] == [None, 5.0]
    assert history.show("").series["refused_per_s"] == [None, 0.1]
    assert history.show("nobody").times_s == []


def test_the_number_of_keys_is_bounded() -> None:
    accounts, history = Accounts(), KeyHistory()
    for number in range(MAX_KEYS + 50):
        accounts.of(Identity(f"k{number}"))
    history.add(accounts, 0.0)
    shown = [number for number in range(MAX_KEYS + 50) if history.show(f"k{number}").times_s]
    assert len(shown) == MAX_KEYS - 1


def test_gpus_are_shown_or_the_reason_why_not() -> None:
    history = MachineHistory()
    history.add(HostReading(0.5, 1000, 400), 0.0)
    shown = history.show()
    assert (shown.gpus, shown.gpu_reason) == ([], NO_GPUS_READ)
    assert shown.host.series["cpu"] == [0.5]
    gpu = GpuReading("GPU-1", 0.25, 80, 40, 300.0, 700.0, None)
    history.add(HostReading(0.5, 1000, 400, [gpu], ""), 10.0)
    shown = history.show()
    assert shown.gpu_reason == ""
    assert (shown.gpus[0].uuid, shown.gpus[0].memory_total_bytes) == ("GPU-1", 80)
    assert shown.gpus[0].points.series["utilization"] == [None, 0.25]
