"""Instances that stay, come and go when `instance_group` changes."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from naiad.pb.model_config_pb2 import ModelInstanceGroup
from naiad.repository.load.resize import ResizePlan, plan_resize, signature

CPU, GPU = b"cpu", b"gpu"


def test_more() -> None:
    assert plan_resize({"m_0": CPU}, {"m_0": CPU, "m_1": CPU}) == ResizePlan(
        ["m_0"], [], {"m_1": "m_1"}
    )


def test_fewer() -> None:
    assert plan_resize({"m_0": CPU, "m_1": CPU}, {"m_0": CPU}) == ResizePlan(["m_0"], ["m_1"], {})


def test_an_instance_stays_whatever_it_is_called() -> None:
    assert plan_resize({"old_0": CPU}, {"new_0": CPU}) == ResizePlan(["old_0"], [], {})


def test_another_kind_is_another_instance() -> None:
    """Its name is taken until the old one is gone."""
    assert plan_resize({"m_0": CPU}, {"m_0": GPU}) == ResizePlan([], ["m_0"], {"m_0_new": "m_0"})


def test_a_free_name_is_used_for_what_comes() -> None:
    assert plan_resize({"m_1": CPU, "m_2": CPU}, {"m_0": CPU, "m_1": CPU, "m_2": CPU}).come == {
        "m_0": "m_0"
    }


def test_signatures() -> None:
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
def test_what_there_is_afterwards_is_what_was_wanted(
    present: dict[str, bytes], wanted: dict[str, bytes]
) -> None:
    plan = plan_resize(present, wanted)
    after = [present[name] for name in plan.stay] + [wanted[at] for at in plan.come.values()]
    assert sorted(after) == sorted(wanted.values())
    assert sorted(plan.stay + plan.go) == sorted(present)
    assert len(plan.stay) + len(plan.come) == len(wanted)
    assert not plan.come.keys() & present.keys()
