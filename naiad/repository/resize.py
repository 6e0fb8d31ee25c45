"""Which instances stay, come and go when only `instance_group` has changed.

In:  the instances there are and those wanted, each as a name and a signature. Out: a ResizePlan. Pure.
Triton's rule: an instance stays when some wanted one is of the same kind in the same place, whatever either is called.
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
    stay: list[str] = []
    unmatched: list[str] = []
    for name, kind in wanted.items():
        same = name if free.get(name) == kind else next((other for other, theirs in free.items() if theirs == kind), None)
        if same is None:
            unmatched.append(name)
        else:
            stay.append(same)
            del free[same]
    # A name is given once, also when the one that had it is about to go.
    names = [name for name in wanted if name not in present]
    come: dict[str, str] = {}
    for number, name in enumerate(unmatched):
        come[names.pop(0) if names else f"{name}_{number}"] = name
    return ResizePlan(stay, list(free), come)
