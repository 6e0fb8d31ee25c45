"""Checks NVIDIA's driver, the GPUs, and whether torch was built for them.

Rule: torch is not imported, which would take seconds; its version file is read.
"""

from __future__ import annotations

import importlib
import importlib.util
import os
import re
from pathlib import Path
from typing import Any

import msgspec

from naiad.core.install_advice import install_command
from naiad.tools.doctor.finding import Finding, ok, problem, warning
from naiad.tools.doctor.host import Host

_NVIDIA = "0x10de"
_DISPLAY = "0x03"
"""How the PCI class of display controllers, which GPUs are, begins."""


class Driver(msgspec.Struct, frozen=True):
    version: str
    cuda: tuple[int, int]
    """The newest version of CUDA that the driver runs."""
    gpus: tuple[str, ...]


class Torch(msgspec.Struct, frozen=True):
    version: str
    cuda: tuple[int, int] | None
    """None if torch was built without CUDA."""


def check_gpu(host: Host) -> list[Finding]:
    num_devices, version = _num_pci_gpus(host), _kernel_module(host)
    if not num_devices and not version:
        return [ok("gpu", "none from NVIDIA; models run on the processor")]
    if not version:
        return [
            warning(
                "gpu",
                f"{num_devices} NVIDIA GPU, but the kernel has no driver for it",
                "apt install nvidia-driver, then reboot; in a container: docker run --gpus all",
            )
        ]
    if not host.path("/dev/nvidiactl").exists():
        return [
            warning(
                "gpu",
                f"driver {version} is loaded, but this container does not see /dev/nvidiactl",
                "docker run --gpus all (nvidia-container-toolkit), or nvidia.com/gpu in Kubernetes",
            )
        ]
    if importlib.util.find_spec("pynvml") is None:
        return [
            warning(
                "gpu",
                f"driver {version}; without nvidia-ml-py there are no GPU metrics",
                install_command("gpu"),
            )
        ]
    try:
        driver = _read_driver()
    except Exception as error:
        return [
            problem(
                "gpu",
                f"driver {version} is loaded, but does not respond: {error}",
                "nvidia-smi; after an update of the driver reboot, or reload its kernel module",
            )
        ]
    return judge_gpu(driver, read_torch(), os.environ.get("CUDA_VISIBLE_DEVICES"))


def judge_gpu(driver: Driver, torch: Torch | None, visible: str | None) -> list[Finding]:
    cuda = ".".join(map(str, driver.cuda))
    names = ", ".join(driver.gpus)
    text = f"{names}; driver {driver.version}, CUDA up to {cuda}"
    if not driver.gpus:
        return [problem("gpu", f"driver {driver.version} finds no GPU", "nvidia-smi -L; dmesg")]
    findings = [ok("gpu", text)]
    if visible is not None and visible.strip() in ("", "-1"):
        findings = [
            warning("gpu", f"{text}, hidden by CUDA_VISIBLE_DEVICES", "unset CUDA_VISIBLE_DEVICES")
        ]
    if torch is None:
        return findings
    if torch.cuda is None:
        findings.append(
            problem(
                "torch",
                f"torch {torch.version} was built without CUDA, and there is a GPU",
                "pip install --force-reinstall torch --index-url "
                f"https://download.pytorch.org/whl/cu{driver.cuda[0]}{driver.cuda[1]}",
            )
        )
    elif torch.cuda[0] > driver.cuda[0]:
        findings.append(
            problem(
                "torch",
                f"torch {torch.version} needs CUDA {torch.cuda[0]}, and driver {driver.version} "
                f"runs CUDA up to {cuda}",
                "update the driver (580 or newer for CUDA 13), or install a torch for "
                f"CUDA {driver.cuda[0]}",
            )
        )
    else:
        findings.append(ok("torch", f"torch {torch.version}, CUDA {torch.cuda[0]}.{torch.cuda[1]}"))
    return findings


def read_torch() -> Torch | None:
    spec = importlib.util.find_spec("torch")
    if spec is None or spec.origin is None:
        return None
    try:
        text = Path(spec.origin).with_name("version.py").read_text()
    except OSError:
        return None
    version = re.search(r"^__version__\s*(?::[^=]*)?=\s*'([^']*)'", text, re.M)
    cuda = re.search(r"^cuda\s*(?::[^=]*)?=\s*'(\d+)\.(\d+)", text, re.M)
    return Torch(
        version[1] if version else "of unknown version",
        (int(cuda[1]), int(cuda[2])) if cuda else None,
    )


def _num_pci_gpus(host: Host) -> int:
    folder = host.path("/sys/bus/pci/devices")
    names = [path.name for path in folder.iterdir()] if folder.is_dir() else []
    devices = [f"/sys/bus/pci/devices/{name}" for name in names]
    return sum(
        host.read(f"{device}/vendor") == _NVIDIA
        and (host.read(f"{device}/class") or "").startswith(_DISPLAY)
        for device in devices
    )


def _kernel_module(host: Host) -> str | None:
    """Returns the version of the loaded driver."""
    match = re.search(r"\b(\d{3}\.\d+(\.\d+)?)\b", host.read("/proc/driver/nvidia/version") or "")
    return match[1] if match else None


def _read_driver() -> Driver:
    nvml: Any = importlib.import_module("pynvml")
    nvml.nvmlInit()
    try:
        cuda = nvml.nvmlSystemGetCudaDriverVersion_v2()
        handles = [
            nvml.nvmlDeviceGetHandleByIndex(index) for index in range(nvml.nvmlDeviceGetCount())
        ]
        return Driver(
            _text(nvml.nvmlSystemGetDriverVersion()),
            (cuda // 1000, cuda % 1000 // 10),
            tuple(_text(nvml.nvmlDeviceGetName(handle)) for handle in handles),
        )
    finally:
        nvml.nvmlShutdown()


def _text(value: str | bytes) -> str:
    return value.decode() if isinstance(value, bytes) else value
