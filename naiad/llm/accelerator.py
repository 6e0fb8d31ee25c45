"""Accelerators by name: what the engine needs to know about a device besides torch's operations.

In:  the setting `device`: auto, cpu, cuda, rocm, xpu, hpu, npu, mps, or a name of a plugin, with a
     number or without. Out: an Accelerator and a torch.device.
A package adds an accelerator by the entry point group `naiad.accelerators`: its name, and a class
or function that returns an object with the attributes of Accelerator.
Rule: only CUDA (and ROCm, which torch calls cuda) has graphs, Triton kernels and pinned copies. On
      every other device the engine uses torch's plain operations.
"""

from __future__ import annotations

import importlib
from importlib.metadata import entry_points
from typing import Any

import torch

from naiad.errors import invalid_arg

GROUP = "naiad.accelerators"
AUTO = "auto"


class Accelerator:
    """A kind of device, over torch's module of that kind (torch.cuda, torch.xpu, ...)."""

    def __init__(self, name: str, torch_type: str = "", package: str = "") -> None:
        """`torch_type` is the name that torch has for the device, if it is another one. `package`
        brings the device to torch when it is imported."""
        self.name = name
        self.torch_type = torch_type or name
        self.package = package

    @property
    def is_host(self) -> bool:
        """True if the device computes in the memory of the host."""
        return self.torch_type == "cpu"

    @property
    def has_kernels(self) -> bool:
        """True for devices with graphs, Triton kernels, pinned memory and events."""
        return self.torch_type == "cuda"

    def prepare(self) -> None:
        """Makes the device known to torch. Raises NaiadError."""
        if not self.package:
            return
        try:
            importlib.import_module(self.package)
        except ImportError as error:
            raise invalid_arg(
                f"device is '{self.name}', which needs the package '{self.package}': {error}"
            ) from error

    def device_count(self) -> int:
        """0 if the machine has no such device, or torch was built without it."""
        if self.is_host:
            return 1
        try:
            module: Any = torch.get_device_module(self.torch_type)
        except RuntimeError:
            return 0
        return int(module.device_count()) if module.is_available() else 0

    def torch_device(self, index: int | None) -> torch.device:
        """The libraries that read weights know no number of a CPU."""
        if self.is_host or index is None:
            return torch.device(self.torch_type)
        return torch.device(self.torch_type, index)

    def select(self, index: int) -> None:
        """Makes the device the current one of this thread."""
        module: Any = None if self.is_host else torch.get_device_module(self.torch_type)
        if hasattr(module, "set_device"):
            module.set_device(index)

    def empty_cache(self) -> None:
        module: Any = None if self.is_host else torch.get_device_module(self.torch_type)
        if hasattr(module, "empty_cache"):
            module.empty_cache()

    def memory(self, device: torch.device) -> tuple[int, int] | None:
        """(free, total) in bytes; None if torch cannot tell."""
        module: Any = None if self.is_host else torch.get_device_module(self.torch_type)
        if not hasattr(module, "mem_get_info"):
            return None
        free, total = module.mem_get_info(device)
        return int(free), int(total)


CPU = Accelerator("cpu")
CUDA = Accelerator("cuda")
KNOWN = {
    accelerator.name: accelerator
    for accelerator in (
        CPU,
        CUDA,
        Accelerator("rocm", "cuda"),
        Accelerator("xpu"),
        Accelerator("hpu", package="habana_frameworks.torch.core"),
        Accelerator("npu", package="torch_npu"),
        Accelerator("mps"),
    )
}
_in_use: dict[str, Accelerator] = {}
"""The accelerator that was chosen last, by torch's name of its devices: a worker has one."""


def accelerator_of(device: torch.device) -> Accelerator:
    chosen = _in_use.get(device.type)
    return chosen or KNOWN.get(device.type) or Accelerator(device.type)


def split_name(name: str) -> tuple[str, int | None]:
    """`hpu:3` is ("hpu", 3)."""
    kind, colon, number = name.partition(":")
    if colon and not (number.isascii() and number.isdigit() and len(number) < 6):
        raise _unknown(name)
    return kind, int(number) if colon else None


def find_accelerator(kind: str) -> Accelerator:
    """Raises NaiadError for a name that nobody knows."""
    if kind in KNOWN:
        return KNOWN[kind]
    for entry in entry_points(group=GROUP):
        if entry.name == kind:
            accelerator: Accelerator = entry.load()()
            return accelerator
    raise _unknown(kind)


def choose_accelerator(name: str) -> tuple[Accelerator, torch.device]:
    """Returns the accelerator and the device that becomes the process's current one. Raises
    NaiadError."""
    kind, index = split_name(name)
    if kind == AUTO:
        kind, index = _best(), None
    accelerator = find_accelerator(kind)
    accelerator.prepare()
    count = accelerator.device_count()
    if not accelerator.is_host and not 0 <= (index or 0) < count:
        noun = "GPUs" if accelerator.has_kernels else f"devices of the kind '{kind}'"
        raise invalid_arg(f"device is '{name}', but torch sees {count} {noun}")
    device = accelerator.torch_device(index)
    if not accelerator.is_host:
        accelerator.select(index or 0)
    _in_use[device.type] = accelerator
    return accelerator, device


def instance_device(name: str, number: int) -> str:
    """The device of the instance with this number within its group. On CUDA `gpus` of the
    instance_group decides; of other devices that are named without a number, each instance gets its
    own as long as there are enough."""
    kind, index = split_name(name)
    if index is not None or kind in (AUTO, "cpu", "cuda", "rocm"):
        return name
    accelerator = find_accelerator(kind)
    accelerator.prepare()
    count = accelerator.device_count()
    return f"{kind}:{number % count}" if count > 1 else name


def _best() -> str:
    """CUDA if there is one, else what torch was built for, else the CPU."""
    if torch.cuda.is_available():
        return "cuda"
    current = torch.accelerator.current_accelerator()
    if current is not None and current.type in KNOWN and KNOWN[current.type].device_count():
        return str(current.type)
    return "cpu"


def _unknown(name: str) -> Exception:
    plugins = sorted(entry.name for entry in entry_points(group=GROUP))
    expected = ", ".join([AUTO, *KNOWN, *plugins])
    return invalid_arg(f"device is '{name}', expected one of {expected}, or e.g. cuda:1")
