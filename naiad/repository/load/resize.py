"""Which instances stay, come and go when only `instance_group` has changed.

In:  the instances there are and those wanted, each as a name and a signature. Out: a ResizePlan.
     Pure. Triton's rule: an instance stays when some wanted one is of the same kind in the same
     place, whatever either is called.
"""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from naiad.pb.model_config_pb2 import ModelInstanceGroup


class ResizePlan(msgspec.Struct, frozen=True):
    stay: list[str]
    go: list[str]
    come: dict[str, str]
    """A new instance's name -> the wanted instance that it is."""


def signature(group: ModelInstanceGroup, device: int) -> bytes:
    """What makes two instances interchangeable."""
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
    """A name is given once, also when the one that had it is about to go."""
    return name if name not in present else _unused(f"{name}_new", present)
