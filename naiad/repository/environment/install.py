"""Runs pip (or uv, where there is no pip) for an environment that the server makes: a model's
requirements, or what a worker needs.

Rule: the installer decides where packages come from, by its own settings (PIP_INDEX_URL,
      PIP_NO_INDEX, PIP_FIND_LINKS, pip.conf).
"""

from __future__ import annotations

import asyncio
import contextlib
import importlib.util
import os
import shutil
import signal
import sys
from pathlib import Path

from naiad import log
from naiad.errors import NaiadError, invalid_arg

TIMEOUT_S = 3600.0
MAX_WORDS = 600


def installer(python: Path) -> list[str] | None:
    """The command that installs for this interpreter; None when there is neither pip nor uv."""
    if importlib.util.find_spec("pip") is not None:
        return [
            sys.executable,
            "-m",
            "pip",
            "--python",
            str(python),
            "--disable-pip-version-check",
            "--no-input",
            "install",
            "--quiet",
        ]
    uv = shutil.which("uv")
    return [uv, "pip", "install", "--quiet", "--python", str(python)] if uv is not None else None


async def run_quietly(command: list[str], cwd: Path, what: str) -> None:
    """Its output goes to the log when it fails. Raises NaiadError; a cancelled one is killed, with
    what it has started."""
    try:
        process = await asyncio.create_subprocess_exec(
            *command, cwd=cwd, stdin=asyncio.subprocess.DEVNULL, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT,
            start_new_session=True,
        )  # fmt: skip
    except OSError as error:
        raise invalid_arg(f"{what}: {command[0]} cannot be started: {error.strerror}") from error
    try:
        async with asyncio.timeout(TIMEOUT_S):
            output, _ = await process.communicate()
    except TimeoutError:
        raise invalid_arg(f"{what}: not done after {TIMEOUT_S:g} s") from None
    finally:
        if process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            await process.wait()
    if process.returncode:
        text = output.decode("utf-8", "replace").strip()
        log.error(f"{what}:\n{text}")
        raise _failure(what, text, cwd)


def _failure(what: str, output: str, cwd: Path) -> NaiadError:
    """The installer's own errors, without the server's paths."""
    lines = output.splitlines()
    errors = [
        line.removeprefix("ERROR:").removeprefix("error:").strip()
        for line in lines
        if line.lower().startswith("error:")
    ]
    words = "; ".join(errors) or next(reversed(lines), "it failed without a word")
    return invalid_arg(f"{what}: {words.replace(f'{cwd}/', '').replace(str(cwd), '.')[:MAX_WORDS]}")
