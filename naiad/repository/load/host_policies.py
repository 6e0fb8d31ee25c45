"""`--host-policy`: the CPU cores and the NUMA node on which the instances of a group run.

As in Triton, a group that names no policy has the policy of its kind: `cpu`, `model`, or
`gpu_<id>`. A policy without any setting has no effect. Frontend processes have the policies
`frontend_0`, `frontend_1` and so on, or else `frontend`.
"""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from naiad.pb.model_config_pb2 import ModelInstanceGroup
from naiad.settings.compound import HostPolicy, core_list

FRONTEND = "frontend"


class HostPlace(msgspec.Struct, frozen=True):
    cpu_cores: list[int] = []
    numa_node: int | None = None


class HostPolicies:
    def __init__(self, given: Iterable[HostPolicy] = ()) -> None:
        self._places: dict[str, HostPlace] = {}
        for entry in given:
            place = self._places.get(entry.name, HostPlace())
            if entry.setting == "cpu-cores":
                place = msgspec.structs.replace(place, cpu_cores=core_list(entry.value))
            else:
                place = msgspec.structs.replace(place, numa_node=int(entry.value))
            self._places[entry.name] = place

    def place(self, group: ModelInstanceGroup, device: int) -> HostPlace:
        return self._places.get(group.host_policy or _default_name(group, device), HostPlace())

    def frontend_place(self, index: int) -> HostPlace:
        default = self._places.get(FRONTEND, HostPlace())
        return self._places.get(f"{FRONTEND}_{index}", default)

    @property
    def frontend_cores(self) -> list[int]:
        """The cores that all frontend processes share; empty if no policy says so."""
        return self._places.get(FRONTEND, HostPlace()).cpu_cores

    def knows(self, name: str) -> bool:
        return name in self._places


def _default_name(group: ModelInstanceGroup, device: int) -> str:
    match group.kind:
        case ModelInstanceGroup.KIND_GPU:
            return f"gpu_{device}"
        case ModelInstanceGroup.KIND_MODEL:
            return "model"
    return "cpu"
