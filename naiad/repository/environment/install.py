"""Runs pip (or uv, if there is no pip) to install a model's requirements, or the packages that a
worker needs.

Rule: the installer's own settings decide where packages come from (PIP_INDEX_URL, PIP_NO_INDEX,
      PIP_FIND_LINKS, pip.conf).
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
MAX_MESSAGE_CHARS = 600


def installer(python: Path) -> list[str] | None:
    """The command that installs packages for this interpreter; None if there is neither pip nor
    uv."""
    if importlib.util.find_spec("pip") is not None:
        return [
            sys.executable,
            "-P",
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
    """Runs a command and logs its output only if it fails. Raises NaiadError. If this is cancelled,
    the command and the processes that it has started are killed."""
    try:
        process = await asyncio.create_subprocess_exec(
            *command,
            cwd=cwd,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
            start_new_session=True,
        )
    except OSError as error:
        raise invalid_arg(f"{what}: {command[0]} cannot be started: {error.strerror}") from error
    try:
        async with asyncio.timeout(TIMEOUT_S):
            output, _ = await process.communicate()
    except TimeoutError:
        raise invalid_arg(f"{what}: not finished after {TIMEOUT_S:g} s") from None
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
    """Contains the installer's own errors, without the server's paths."""
    lines = output.splitlines()
    errors = [
        line.removeprefix("ERROR:").removeprefix("error:").strip()
        for line in lines
        if line.lower().startswith("error:")
    ]
    text = "; ".join(errors) or next(reversed(lines), "it failed without a message")
    text = text.replace(f"{cwd}/", "").replace(str(cwd), ".")
    return invalid_arg(f"{what}: {text[:MAX_MESSAGE_CHARS]}")
