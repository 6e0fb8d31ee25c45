"""Which instances stay, start and stop when only `instance_group` has changed.

In:  the present and the wanted instances, each as a name and a signature. Out: a ResizePlan. Pure.
Triton's rule: an instance stays if a wanted one is of the same kind in the same place. Their names
               need not be equal.
"""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from naiad.pb.model_config_pb2 import ModelInstanceGroup


class ResizePlan(msgspec.Struct, frozen=True):
    stay: list[str]
    stop: list[str]
    start: dict[str, str]
    """A new instance's name -> the name of the wanted instance."""


def signature(group: ModelInstanceGroup, device: int) -> bytes:
    """Instances with equal signatures are interchangeable."""
    rest = ModelInstanceGroup()
    rest.CopyFrom(group)
    for field in ("name", "count", "gpus"):
        rest.ClearField(field)
    return b"%d " % device + rest.SerializeToString(deterministic=True)


def plan_resize(present: Mapping[str, bytes], wanted: Mapping[str, bytes]) -> ResizePlan:
    free = dict(present)
    stay = [name for name, kind in wanted.items() if free.get(name) == kind]
    for name in stay:
        del free[name]
    unmatched: list[str] = []
    others = {name: kind for name, kind in wanted.items() if name not in stay}
    for name, kind in others.items():
        same = next((other for other, theirs in free.items() if theirs == kind), "")
        if same:
            stay.append(same)
            del free[same]
        else:
            unmatched.append(name)
    return ResizePlan(stay, list(free), {_unused(name, present): name for name in unmatched})


def _unused(name: str, present: Mapping[str, bytes]) -> str:
    """No name is given twice, even if the instance that has it is about to stop."""
    return name if name not in present else _unused(f"{name}_new", present)
