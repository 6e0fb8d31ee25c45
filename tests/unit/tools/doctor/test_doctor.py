"""Broken machines: each names its cause and what mends it."""

from __future__ import annotations

import os
import resource
import socket
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from naiad.settings import Settings
from naiad.tools.doctor.accelerator import Driver, Torch, check_gpu, judge_gpu, read_torch
from naiad.tools.doctor.control_group import ControlGroup, read_control_group
from naiad.tools.doctor.finding import Finding, Level, render
from naiad.tools.doctor.host import Host
from naiad.tools.doctor.limits import (
    check_descriptors,
    check_memory,
    check_processes,
    check_processors,
    check_shared_memory,
)
from naiad.tools.doctor.network import check_ports
from naiad.tools.doctor.packages import check_packages, check_python, satisfies
from naiad.tools.doctor.storage import check_files, check_folders
from naiad.tools.doctor.system_clock import check_clock

MAIN = "from naiad.cli.main import main; main()"
GIB = 1 << 30


def doctor(*arguments: str, **environ: str) -> subprocess.CompletedProcess[str]:
    """Runs `naiad doctor` in a process of its own, on ports that the system chooses."""
    ports = ["--http-port=0", "--grpc-port=0", "--metrics-port=0"]
    return subprocess.run(
        [sys.executable, "-c", MAIN, "doctor", *ports, *arguments],
        env={**os.environ, **environ},
        capture_output=True,
        text=True,
        timeout=60,
    )


def machine(root: Path, files: dict[str, str]) -> Host:
    for name, text in files.items():
        path = root / name.lstrip("/")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return Host(root)


def assert_broken(finding: Finding, level: Level, cause: str, mend: str) -> None:
    assert finding.level is level
    assert cause in finding.text
    assert mend in finding.mend


def test_a_healthy_machine_has_no_problem_and_takes_less_than_two_seconds(tmp_path: Path) -> None:
    start = time.monotonic()
    result = doctor(NAIAD_CACHE=str(tmp_path))
    assert time.monotonic() - start < 2
    assert result.returncode == 0, result.stdout
    assert "PROBLEM" not in result.stdout
    topics = [line.partition("  ")[0] for line in result.stdout.splitlines()]
    for topic in ("python", "memory", "descriptors", "shared memory", "gpu", "clock", "cache"):
        assert topic in topics


def test_1_a_machine_without_descriptors() -> None:
    script = f"import resource; resource.setrlimit(resource.RLIMIT_NOFILE, (256, 256)); {MAIN}"
    result = subprocess.run(
        [sys.executable, "-c", script, "doctor", "--http-port=0", "--grpc-port=0"],
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert result.returncode == 1
    assert "PROBLEM  at most 256 open files" in result.stdout
    assert "ulimit -Hn 65536" in result.stdout


def test_2_a_port_that_another_process_holds() -> None:
    with socket.socket() as holder:
        holder.bind(("127.0.0.1", 0))
        holder.listen()
        port = holder.getsockname()[1]
        result = doctor(f"--http-port={port}")
    assert result.returncode == 1
    assert f"127.0.0.1:{port} is taken by process {os.getpid()}" in result.stdout
    assert f"kill {os.getpid()}, or --http-port=" in result.stdout


def test_3_a_cache_that_cannot_be_written(tmp_path: Path) -> None:
    # Root may write to every folder, so that a file stands in the way here.
    (tmp_path / "cache").write_text("")
    result = doctor(NAIAD_CACHE=str(tmp_path / "cache"))
    assert result.returncode == 0
    assert f"WARNING  {tmp_path}/cache cannot be written" in result.stdout
    assert "NAIAD_CACHE=DIR" in result.stdout


@pytest.mark.skipif(not Path("/proc/self/ns").is_dir(), reason="needs /proc")
def test_3b_a_cache_on_a_read_only_file_system() -> None:
    finding = check_folders(Settings(repository_cache_directory="/proc/self/ns"))[0]
    assert_broken(finding, Level.WARNING, "cannot be written", "--repository-cache-directory=DIR")


def test_4_a_torch_without_cuda(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    package = tmp_path / "torch"
    package.mkdir()
    (package / "__init__.py").write_text("raise ImportError('must not be imported')")
    (package / "version.py").write_text(
        "from typing import Optional\n__version__ = '2.13.0+cpu'\ncuda: Optional[str] = None\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "torch", raising=False)
    torch = read_torch()
    assert torch == Torch("2.13.0+cpu", None)
    findings = judge_gpu(Driver("580.1", (13, 0), ("NVIDIA H200",)), torch, None)
    assert_broken(findings[1], Level.PROBLEM, "built without CUDA", "/whl/cu130")


def test_5_a_torch_that_is_newer_than_the_driver() -> None:
    driver = Driver("550.54.15", (12, 4), ("NVIDIA H200",))
    findings = judge_gpu(driver, Torch("2.13.0+cu130", (13, 0)), None)
    assert_broken(findings[1], Level.PROBLEM, "needs CUDA 13", "update the driver")
    good = judge_gpu(driver, Torch("2.9.0+cu126", (12, 6)), None)
    assert [finding.level for finding in good] == [Level.OK, Level.OK]


@pytest.mark.parametrize("version", [1, 2])
def test_6_a_tiny_memory_limit(tmp_path: Path, version: int) -> None:
    files = {
        2: {
            "/proc/self/cgroup": "0::/pod/container",
            "/sys/fs/cgroup/pod/container/memory.max": "max",
            "/sys/fs/cgroup/pod/memory.max": "134217728",
            "/sys/fs/cgroup/pod/memory.current": "33554432",
        },
        1: {
            "/proc/self/cgroup": "4:memory:/docker/1\n3:cpu,cpuacct:/docker/1",
            "/sys/fs/cgroup/memory/memory.limit_in_bytes": "134217728",
            "/sys/fs/cgroup/memory/memory.usage_in_bytes": "33554432",
        },
    }
    host = machine(tmp_path, files[version])
    finding = check_memory(host, read_control_group(host))
    cause = "96 MiB left of the control group's limit of 128 MiB"
    assert_broken(finding, Level.PROBLEM, cause, "docker run --memory")


def test_7_a_fraction_of_a_processor(tmp_path: Path) -> None:
    files = {"/proc/self/cgroup": "0::/", "/sys/fs/cgroup/cpu.max": "25000 100000"}
    finding = check_processors(read_control_group(machine(tmp_path, files)))
    assert_broken(finding, Level.WARNING, "the control group allows 0.25", "--cpus=2")


def test_8_a_limit_of_processes(tmp_path: Path) -> None:
    files = {
        "/proc/self/cgroup": "0::/",
        "/sys/fs/cgroup/pids.max": "20",
        "/sys/fs/cgroup/pids.current": "5",
    }
    finding = check_processes(read_control_group(machine(tmp_path, files)))
    assert_broken(finding, Level.PROBLEM, "15 processes and threads", "--pids-limit=4096")


def test_9_a_gpu_without_a_driver(tmp_path: Path) -> None:
    device = "/sys/bus/pci/devices/0000:01:00.0"
    host = machine(tmp_path, {f"{device}/vendor": "0x10de", f"{device}/class": "0x030200"})
    assert_broken(check_gpu(host)[0], Level.WARNING, "no driver", "--gpus all")


def test_10_a_container_that_does_not_see_the_gpu(tmp_path: Path) -> None:
    version = "NVRM version: NVIDIA UNIX x86_64 Kernel Module  580.65.06  Sun Jul 27"
    host = machine(tmp_path, {"/proc/driver/nvidia/version": version})
    assert_broken(check_gpu(host)[0], Level.WARNING, "driver 580.65.06 is loaded", "--gpus all")


def test_11_gpus_that_are_hidden() -> None:
    finding = judge_gpu(Driver("580.1", (13, 0), ("NVIDIA H200",)), None, "")[0]
    assert_broken(finding, Level.WARNING, "hidden", "unset CUDA_VISIBLE_DEVICES")


def test_12_no_folder_for_temporary_files(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    result = doctor(TMPDIR=str(tmp_path / "file" / "tmp"))
    assert result.returncode == 1
    assert f"{tmp_path}/file cannot be written" in result.stdout
    assert "TMPDIR=DIR" in result.stdout


def test_13_a_full_disk(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    usage = type("Usage", (), {"free": 1 << 20})
    monkeypatch.setattr("naiad.tools.doctor.storage.shutil.disk_usage", lambda _: usage)
    cache, temporary = check_folders(Settings(repository_cache_directory=str(tmp_path)))
    assert_broken(cache, Level.WARNING, "has 1 MiB free", "df -h")
    assert_broken(temporary, Level.PROBLEM, "has 1 MiB free", "TMPDIR=DIR")


def test_14_shared_memory_for_clients_that_is_missing(tmp_path: Path) -> None:
    finding = check_shared_memory(Host(tmp_path), Settings(allow_client_shm=True))
    assert_broken(finding, Level.PROBLEM, "/dev/shm cannot be written", "--shm-size=1g")
    assert check_shared_memory(Host(tmp_path), Settings()).level is Level.OK


def test_15_anonymous_memory_that_is_forbidden(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(name: str, flags: int) -> int:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(os, "memfd_create", refuse)
    finding = check_shared_memory(Host(), Settings())
    assert_broken(finding, Level.PROBLEM, "memfd_create fails", "vm.memfd_noexec")


def test_16_a_clock_in_the_past_and_a_slow_one(tmp_path: Path) -> None:
    assert_broken(check_clock(Host(), 0.0), Level.WARNING, "1970-01-01", "set-ntp true")
    source = "/sys/devices/system/clocksource/clocksource0/current_clocksource"
    host = machine(tmp_path, {source: "hpet"})
    assert_broken(check_clock(host), Level.WARNING, "the clock source is hpet", "echo tsc")


def test_17_files_that_options_name(tmp_path: Path) -> None:
    settings = Settings(
        model_repository=(str(tmp_path), str(tmp_path / "missing"), "s3://bucket/models"),
        api_key_file=str(tmp_path / "keys.json"),
    )
    first, second, keys = check_files(settings)
    assert first.level is Level.OK
    assert_broken(second, Level.PROBLEM, "missing does not exist", f"ls -ld {tmp_path}")
    assert_broken(keys, Level.PROBLEM, "--api-key-file=", f"ls -ld {tmp_path}")


def test_18_an_old_python() -> None:
    assert_broken(check_python((3, 10, 4)), Level.PROBLEM, "3.11 or newer", "--python 3.12")
    assert check_python().level is Level.OK


def test_19_packages_of_a_wrong_version(monkeypatch: pytest.MonkeyPatch) -> None:
    versions = {"numpy": "1.20.0", "torch": "2.1.0+cpu"}
    monkeypatch.setattr(
        "naiad.tools.doctor.packages.metadata.requires",
        lambda _: ["numpy>=1.26", "torch>=2.7 ; extra == 'pytorch'"],
    )
    monkeypatch.setattr("naiad.tools.doctor.packages._version", versions.get)
    needed, extra = check_packages()
    assert_broken(needed, Level.PROBLEM, "numpy is 1.20.0", "pip install 'numpy>=1.26'")
    assert_broken(extra, Level.WARNING, "torch 2.1.0+cpu, where >=2.7", "[pytorch]'")


def test_20_an_address_of_another_machine() -> None:
    finding = check_ports(
        Settings(http_address="192.0.2.1", allow_grpc=False, allow_metrics=False)
    )[0]
    assert_broken(finding, Level.PROBLEM, "'192.0.2.1' is not an address", "--http-address=0.0.0.0")


def test_a_kernel_that_does_not_overcommit(tmp_path: Path) -> None:
    host = machine(tmp_path, {"/proc/sys/vm/overcommit_memory": "2"})
    if psutil.virtual_memory().available > GIB:
        finding = check_memory(host, ControlGroup())
        assert_broken(finding, Level.WARNING, "refuses to overcommit", "vm.overcommit_memory=0")


def test_fewer_descriptors_than_connections(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(resource, "getrlimit", lambda _: (1024, 4096))
    finding = check_descriptors(Settings(http_max_connections=10000))
    mend = "--http-max-connections=3096"
    assert_broken(finding, Level.WARNING, "--http-max-connections=10000", mend)


def test_wrong_options_are_an_error_of_the_command_line() -> None:
    result = doctor("--http-port=x")
    assert result.returncode == 1
    assert "http-port" in result.stderr


def test_the_report_puts_what_mends_below_what_is_wrong() -> None:
    findings = [
        Finding("python", Level.OK, "fine"),
        Finding("http port", Level.PROBLEM, "taken", "kill 7"),
    ]
    assert render(findings).splitlines() == [
        "python     OK       fine",
        "http port  PROBLEM  taken",
        "                    -> kill 7",
    ]


@pytest.mark.parametrize(
    ("version", "bounds", "expected"),
    [
        ("2.13.0+cpu", ">=2.7", True),
        ("2.9", ">=2.13", False),
        ("6.33.6", ">=6.31,<8", True),
        ("8.0.0", ">=6.31,<8", False),
        ("7", "<8,>=6.31", True),
        ("1.0", "", True),
        ("1.0.0", "==1.0", True),
    ],
)
def test_compares_versions(version: str, bounds: str, expected: bool) -> None:
    assert satisfies(version, bounds) is expected
