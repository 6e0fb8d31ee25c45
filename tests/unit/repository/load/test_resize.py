"""Which instances stay, start and stop when `instance_group` changes."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from naiad.pb.model_config_pb2 import ModelInstanceGroup
from naiad.repository.load.resize import ResizePlan, plan_resize, signature

CPU, GPU = b"cpu", b"gpu"


def test_a_missing_instance_is_started() -> None:
    assert plan_resize({"m_0": CPU}, {"m_0": CPU, "m_1": CPU}) == ResizePlan(
        ["m_0"], [], {"m_1": "m_1"}
    )


def test_a_surplus_instance_is_stopped() -> None:
    assert plan_resize({"m_0": CPU, "m_1": CPU}, {"m_0": CPU}) == ResizePlan(["m_0"], ["m_1"], {})


def test_an_instance_stays_under_its_old_name() -> None:
    assert plan_resize({"old_0": CPU}, {"new_0": CPU}) == ResizePlan(["old_0"], [], {})


def test_an_instance_of_another_kind_replaces_it() -> None:
    """The old instance keeps its name until it has stopped."""
    assert plan_resize({"m_0": CPU}, {"m_0": GPU}) == ResizePlan([], ["m_0"], {"m_0_new": "m_0"})


def test_a_new_instance_gets_a_free_name() -> None:
    assert plan_resize({"m_1": CPU, "m_2": CPU}, {"m_0": CPU, "m_1": CPU, "m_2": CPU}).start == {
        "m_0": "m_0"
    }


def test_signatures_ignore_names_and_counts() -> None:
    group = ModelInstanceGroup(name="a", count=1, kind=ModelInstanceGroup.KIND_CPU)
    same = ModelInstanceGroup(name="b", count=3, kind=ModelInstanceGroup.KIND_CPU)
    other = ModelInstanceGroup(
        name="a", count=1, kind=ModelInstanceGroup.KIND_CPU, host_policy="node"
    )
    assert signature(group, 0) == signature(same, 0)
    assert signature(group, 0) != signature(group, 1)
    assert signature(group, 0) != signature(other, 0)


NAMES = st.dictionaries(
    st.sampled_from([f"m_{number}" for number in range(6)]), st.sampled_from([CPU, GPU])
)


@given(NAMES, NAMES)
def test_the_result_is_always_what_was_wanted(
    present: dict[str, bytes], wanted: dict[str, bytes]
) -> None:
    plan = plan_resize(present, wanted)
    after = [present[name] for name in plan.stay] + [wanted[name] for name in plan.start.values()]
    assert sorted(after) == sorted(wanted.values())
    assert sorted(plan.stay + plan.stop) == sorted(present)
    assert len(plan.stay) + len(plan.start) == len(wanted)
    assert not plan.start.keys() & present.keys()
