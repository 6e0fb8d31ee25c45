"""Host policies: read from flags, matched with instance groups, and carried out in a real
process."""

from __future__ import annotations

import ctypes
import multiprocessing
import os
import threading
from multiprocessing.connection import Connection
from typing import Any

import pytest

from naiad.errors import NaiadError
from naiad.ipc.work import LoadArguments
from naiad.pb.model_config_pb2 import ModelInstanceGroup
from naiad.repository.load.host_policies import HostPlace, HostPolicies
from naiad.settings.compound import core_list, host_policy
from naiad.worker import host_policy as in_worker

GET_MEMPOLICY = {238: 239, 237: 236}
Group = ModelInstanceGroup


@pytest.mark.parametrize(
    ("text", "cores"), [("0", [0]), ("0-3", [0, 1, 2, 3]), ("5,0-1", [0, 1, 5]), ("2-2", [2])]
)
def test_cores(text: str, cores: list[int]) -> None:
    assert core_list(text) == cores


@pytest.mark.parametrize("text", ["", "a", "3-1", "-1", "1-", "0-99999999", "1,,2"])
def test_a_malformed_list_of_cores_is_refused(text: str) -> None:
    with pytest.raises(
        ValueError,
        match=r"cpu-cores must be a list of core ids or ranges such as 0-3 or 0,2,4-7\. Got ",
    ):
        core_list(text)


def test_a_node_is_a_number() -> None:
    with pytest.raises(ValueError, match="numa-node must be a node number"):
        host_policy("cpu,numa-node=-1")


def test_an_instance_follows_the_policy_that_its_group_names_or_that_of_its_kind() -> None:
    flags = [
        "cpu,cpu-cores=0-1",
        "cpu,numa-node=0",
        "gpu_1,numa-node=1",
        "model,cpu-cores=3",
        "mine,cpu-cores=2",
    ]
    policies = HostPolicies(map(host_policy, flags))
    assert policies.place(Group(kind=Group.KIND_CPU), 0) == HostPlace([0, 1], 0)
    assert policies.place(Group(kind=Group.KIND_GPU), 1) == HostPlace([], 1)
    assert policies.place(Group(kind=Group.KIND_GPU), 0) == HostPlace()
    assert policies.place(Group(kind=Group.KIND_MODEL), 0) == HostPlace([3])
    assert policies.place(Group(kind=Group.KIND_CPU, host_policy="mine"), 0) == HostPlace([2])
    assert policies.place(Group(kind=Group.KIND_CPU, host_policy="unknown"), 0) == HostPlace()


def arguments(cpu_cores: list[int], numa_node: int | None = None) -> LoadArguments:
    return LoadArguments(
        "m", 1, "", "m_0", "CPU", 0, b"{}", cpu_cores=cpu_cores, numa_node=numa_node
    )


def _apply(given: LoadArguments, answer: Connection) -> None:
    """With a thread that was there before."""
    stop = threading.Event()
    thread = threading.Thread(target=stop.wait)
    thread.start()
    try:
        undone = in_worker.apply_host_policy(given)
        mode, mask = ctypes.c_int(), (ctypes.c_uint64 * 16)()
        number = GET_MEMPOLICY[in_worker.SET_MEMPOLICY[os.uname().machine]]
        ctypes.CDLL(None).syscall(number, ctypes.byref(mode), mask, 1024, None, 0)
        answer.send(
            (
                undone,
                [os.sched_getaffinity(int(task)) for task in os.listdir("/proc/self/task")],
                mode.value,
                mask[0],
            )
        )
    except NaiadError as error:
        answer.send(error.message)
    finally:
        stop.set()
        thread.join()


def apply(given: LoadArguments) -> Any:
    receiver, sender = multiprocessing.Pipe(duplex=False)
    process = multiprocessing.get_context("fork").Process(target=_apply, args=(given, sender))
    process.start()
    answer = receiver.recv()
    process.join()
    receiver.close()
    sender.close()
    return answer


def test_every_thread_runs_where_it_is_told() -> None:
    core = min(os.sched_getaffinity(0))
    undone, affinities, mode, _ = apply(arguments([core]))
    assert (undone, affinities, mode) == ("", [{core}, {core}], 0)


def test_memory_comes_from_the_node_where_that_is_allowed() -> None:
    undone, affinities, mode, nodes = apply(arguments([], 0))
    assert all(cores == os.sched_getaffinity(0) for cores in affinities)
    if undone:
        assert undone.startswith("numa-node 0: ")
        pytest.skip(f"not on this machine: {undone}")
    assert (mode, nodes) == (in_worker.MPOL_BIND, 1)


def test_cores_and_nodes_that_do_not_exist_are_refused() -> None:
    assert (
        apply(arguments([5000]))
        == "host policy: cpu-cores 5000 cannot be used on this machine: Invalid argument"
    )
    answer = apply(arguments([], 900))
    words = "host policy: numa-node 900 cannot be used on this machine: Invalid argument"
    assert answer == words or answer[0].startswith("numa-node 900: ")
