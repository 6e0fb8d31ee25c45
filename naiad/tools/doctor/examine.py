"""All checks of `naiad doctor`, in the order of its report."""

from __future__ import annotations

from naiad.settings import Settings
from naiad.tools.doctor.accelerator import check_gpu
from naiad.tools.doctor.control_group import read_control_group
from naiad.tools.doctor.finding import Finding
from naiad.tools.doctor.host import Host
from naiad.tools.doctor.limits import (
    check_descriptors,
    check_memory,
    check_processes,
    check_processors,
    check_shared_memory,
)
from naiad.tools.doctor.network import check_ports
from naiad.tools.doctor.packages import check_packages, check_python
from naiad.tools.doctor.storage import check_files, check_folders
from naiad.tools.doctor.system_clock import check_clock


def examine(settings: Settings, host: Host) -> list[Finding]:
    group = read_control_group(host)
    return [
        check_python(),
        check_processors(group),
        check_memory(host, group),
        check_processes(group),
        check_descriptors(settings),
        check_shared_memory(host, settings),
        *check_gpu(host),
        *check_ports(settings),
        *check_folders(settings),
        *check_files(settings),
        check_clock(host),
        *check_packages(),
    ]
