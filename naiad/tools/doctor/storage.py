"""Checks the folders that the server writes to, and the files that its options name."""

from __future__ import annotations

import os
import shutil
import tempfile
from pathlib import Path

from naiad.backends.llm.checkpoint import cache_dir
from naiad.settings import Settings
from naiad.tools.doctor.finding import Finding, ok, problem, warning

_LEAST_SPACE = 64 << 20
_LITTLE_SPACE = 1 << 30


def check_folders(settings: Settings) -> list[Finding]:
    cache = Path(settings.repository_cache_directory or cache_dir())
    option = "NAIAD_CACHE=DIR" if not settings.repository_cache_directory else ""
    return [
        _check_folder(
            "cache", cache, option or "--repository-cache-directory=DIR", is_needed=False
        ),
        _check_folder("temporary files", _temporary_folder(), "TMPDIR=DIR", is_needed=True),
    ]


def check_files(settings: Settings) -> list[Finding]:
    """Each file or folder that an option names can be read."""
    named = [
        ("repository", "--model-repository", path)
        for path in settings.model_repository
        if "://" not in path
    ]
    named += [
        ("key file", "--api-key-file", settings.api_key_file),
        ("certificate", "--http-server-cert", settings.http_server_cert),
        ("certificate", "--http-server-key", settings.http_server_key),
        ("certificate", "--http-root-cert", settings.http_root_cert),
        ("certificate", "--grpc-server-cert", settings.grpc_server_cert),
        ("certificate", "--grpc-server-key", settings.grpc_server_key),
        ("certificate", "--grpc-root-cert", settings.grpc_root_cert),
    ]
    return [_check_readable(topic, option, Path(path)) for topic, option, path in named if path]


def _temporary_folder() -> Path:
    """tempfile.gettempdir() falls back to the current folder, which would hide the cause."""
    return Path(os.environ.get("TMPDIR") or "/tmp")


def _check_folder(topic: str, folder: Path, setting: str, is_needed: bool) -> Finding:
    report = problem if is_needed else warning
    existing = next(path for path in (folder, *folder.parents) if path.exists())
    try:
        if not existing.is_dir():
            raise NotADirectoryError(0, "it is a file, not a folder")
        with tempfile.TemporaryFile(dir=existing) as file:
            file.write(b"naiad doctor")
            file.flush()
        free = shutil.disk_usage(existing).free
    except OSError as error:
        purpose = "" if is_needed else "; it holds downloads and Python environments"
        return report(
            topic,
            f"{existing} cannot be written: {error.strerror}{purpose}",
            f"choose another folder: {setting}; in a container mount a volume there",
        )
    if free < _LEAST_SPACE:
        return report(
            topic, f"{existing} has {free >> 20} MiB free", f"df -h {existing}; {setting}"
        )
    if free < _LITTLE_SPACE:
        return warning(
            topic, f"{existing} has only {free >> 20} MiB free", f"df -h {existing}; {setting}"
        )
    return ok(topic, f"{folder}, {free / (1 << 30):.0f} GiB free")


def _check_readable(topic: str, option: str, path: Path) -> Finding:
    if not path.exists():
        return problem(topic, f"{option}={path} does not exist", f"ls -ld {path.parent}")
    mode = os.R_OK | os.X_OK if path.is_dir() else os.R_OK
    if not os.access(path, mode):
        user = os.geteuid()
        return problem(
            topic, f"user {user} may not read {option}={path}", f"chown -R {user} {path}"
        )
    return ok(topic, f"{option}={path}")
