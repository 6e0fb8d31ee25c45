"""Checks what the kernel lets this process use: processors, memory, processes, descriptors."""

from __future__ import annotations

import mmap
import os
import resource

import psutil

from naiad.settings import Settings
from naiad.tools.doctor.control_group import ControlGroup
from naiad.tools.doctor.finding import Finding, ok, problem, warning
from naiad.tools.doctor.host import Host

_MIB, _GIB = 1 << 20, 1 << 30
_LEAST_MEMORY = 256 * _MIB
"""The server and one small model of Python need about this much."""
_LITTLE_MEMORY = _GIB
_LEAST_PROCESSES = 32
_LEAST_DESCRIPTORS = 1024
_SPARE_DESCRIPTORS = 1000
"""Descriptors for everything but connections: workers, shared memory, files of models."""


def check_processors(group: ControlGroup) -> Finding:
    num_cores = len(os.sched_getaffinity(0))
    if group.num_cpus is None or group.num_cpus >= num_cores:
        return ok("processors", f"{num_cores} cores")
    text = f"{num_cores} cores, of which the control group allows {group.num_cpus:g}"
    if group.num_cpus >= 1:
        return ok("processors", text)
    return warning(
        "processors",
        f"{text}: the server is paused when its share is used up",
        "raise the CPU limit: docker run --cpus=2, resources.limits.cpu in Kubernetes, "
        "CPUQuota= in systemd",
    )


def check_memory(host: Host, group: ControlGroup) -> Finding:
    available = psutil.virtual_memory().available
    text = f"{_size(available)} available"
    mend = "end other programs, or use a machine with more memory"
    if group.memory_left is not None and group.memory_left < available:
        available = group.memory_left
        text = f"{_size(available)} left of the control group's limit of {_size(group.memory_max)}"
        mend = (
            "raise the memory limit: docker run --memory=4g, resources.limits.memory in "
            "Kubernetes, MemoryMax= in systemd"
        )
    if available < _LEAST_MEMORY:
        return problem("memory", f"{text}: too little for the server and a model", mend)
    if available < _LITTLE_MEMORY:
        return warning("memory", f"{text}: enough for small models only", mend)
    if host.read_int("/proc/sys/vm/overcommit_memory") == 2:
        return warning(
            "memory",
            f"{text}, but the kernel refuses to overcommit, and forked workers may fail to start",
            "sysctl -w vm.overcommit_memory=0",
        )
    return ok("memory", text)


def check_processes(group: ControlGroup) -> Finding:
    """Each model instance is a process, with threads of its own."""
    limits = []
    user_limit = resource.getrlimit(resource.RLIMIT_NPROC)[0]
    # The user limit does not bind root.
    if user_limit != resource.RLIM_INFINITY and os.geteuid() != 0:
        limits.append(
            (float(user_limit), "the user limit", "ulimit -u 4096, LimitNPROC= of systemd")
        )
    if group.num_processes_left is not None:
        limits.append(
            (
                group.num_processes_left,
                "what the control group has left",
                "docker run --pids-limit=4096, TasksMax= of systemd, podPidsLimit of the kubelet",
            )
        )
    if not limits:
        return ok("processes", "no limit")
    number, kind, mend = min(limits)
    if number < _LEAST_PROCESSES:
        return problem(
            "processes",
            f"{number:.0f} processes and threads are {kind}; each model instance is a process",
            mend,
        )
    return ok("processes", f"{number:.0f} processes and threads are {kind}")


def check_descriptors(settings: Settings) -> Finding:
    """The server raises the soft limit to the hard one, so only the hard one counts."""
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    mend = "ulimit -Hn 65536, docker run --ulimit nofile=65536, LimitNOFILE=65536 of systemd"
    if hard == resource.RLIM_INFINITY:
        return ok("descriptors", "no limit")
    if hard < _LEAST_DESCRIPTORS:
        return problem("descriptors", f"at most {hard} open files", mend)
    connections = settings.http_max_connections
    if hard < connections + _SPARE_DESCRIPTORS:
        return warning(
            "descriptors",
            f"at most {hard} open files, fewer than --http-max-connections={connections} needs",
            f"{mend}; or --http-max-connections={max(hard - _SPARE_DESCRIPTORS, 100)}",
        )
    return ok("descriptors", f"at most {hard} open files")


def check_shared_memory(host: Host, settings: Settings) -> Finding:
    """Naiad's own shared memory is anonymous; only clients' regions are in /dev/shm."""
    try:
        descriptor = os.memfd_create("naiad-doctor", os.MFD_CLOEXEC)
    except OSError as error:
        return problem(
            "shared memory",
            f"memfd_create fails ({error.strerror}); tensors reach workers through it",
            "allow memfd_create in the seccomp profile; sysctl -w vm.memfd_noexec=0",
        )
    try:
        os.ftruncate(descriptor, mmap.PAGESIZE)
        with mmap.mmap(descriptor, mmap.PAGESIZE) as page:
            page[0] = 1
    except (OSError, ValueError) as error:
        return problem(
            "shared memory", f"anonymous memory cannot be mapped: {error}", "raise the memory limit"
        )
    finally:
        os.close(descriptor)
    folder = host.path("/dev/shm")
    try:
        free = psutil.disk_usage(str(folder)).free
    except OSError:
        free = None
    needs_folder = settings.allow_client_shm
    if needs_folder and (free is None or not os.access(folder, os.W_OK)):
        return problem(
            "shared memory",
            "--allow-client-shm is set, but /dev/shm cannot be written",
            "mount -t tmpfs -o size=1g tmpfs /dev/shm; docker run --ipc=host or --shm-size=1g",
        )
    if needs_folder and free is not None and free <= 64 * _MIB:
        return warning(
            "shared memory",
            f"/dev/shm has {_size(free)} free for the regions of clients",
            "docker run --shm-size=1g; in Kubernetes an emptyDir with medium: Memory at /dev/shm",
        )
    size = "is missing" if free is None else f"has {_size(free)} free"
    return ok("shared memory", f"works; /dev/shm {size}, and only --allow-client-shm needs it")


def _size(number: float | None) -> str:
    number = number or 0
    return f"{number / _GIB:.1f} GiB" if number >= _GIB else f"{max(number, 0) / _MIB:.0f} MiB"
