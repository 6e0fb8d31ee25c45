"""Runs an interpreter to find its version, and which of the packages that a worker needs it lacks.

In:  the path of an interpreter. Out: an Interpreter, or NaiadError.
"""

from __future__ import annotations

import asyncio
import contextlib
import importlib.util
import sys
from pathlib import Path

import msgspec

from naiad.errors import NaiadError, invalid_arg

NEEDED = ("msgspec", "numpy")
"""All packages that naiad.worker and the Python backend import, apart from the standard library."""
MIN_VERSION = (3, 11)
TIMEOUT_S = 60.0
_SCRIPT = (
    # Without the current directory. `-P` would do it too, but older interpreters do not know it.
    "import sys; sys.path[:] = [path for path in sys.path if path]; "
    "import json; from importlib.util import find_spec; "
    "print(json.dumps({'version': list(sys.version_info[:3]), 'tag': "
    "sys.implementation.cache_tag or '', "
    "'missing': [name for name in sys.argv[1:] if find_spec(name) is None]}))"
)


class Interpreter(msgspec.Struct, frozen=True):
    version: tuple[int, int, int]
    tag: str
    """Interpreters with the same tag can use each other's compiled packages."""
    missing: list[str]

    @property
    def version_text(self) -> str:
        return ".".join(map(str, self.version))


async def probe(executable: Path, variables: dict[str, str], model: str) -> Interpreter:
    try:
        process = await asyncio.create_subprocess_exec(
            str(executable),
            "-c",
            _SCRIPT,
            *NEEDED,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            env=variables,
        )
    except OSError as error:
        raise _unusable(model, error.strerror or "it cannot be started") from error
    try:
        async with asyncio.timeout(TIMEOUT_S):
            output, errors = await process.communicate()
    except TimeoutError:
        raise _unusable(model, "it does not respond") from None
    finally:
        if process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                process.kill()
            await process.wait()
    if process.returncode:
        last = next(
            reversed(errors.decode("utf-8", "replace").strip().splitlines()),
            f"exit status {process.returncode}",
        )
        raise _unusable(model, last)
    try:
        interpreter = msgspec.json.decode(output.strip().splitlines()[-1], type=Interpreter)
    except (msgspec.DecodeError, IndexError):
        raise _unusable(model, "its output is not understood") from None
    if interpreter.version[:2] < MIN_VERSION:
        needed = ".".join(map(str, MIN_VERSION))
        reason = f"it is Python {interpreter.version_text}, but workers need {needed} or later"
        raise _unusable(model, reason)
    return interpreter


def own_places(names: list[str]) -> dict[str, str]:
    """Each of these packages -> the folder in which the server has it."""
    places: dict[str, str] = {}
    for name in names:
        spec = importlib.util.find_spec(name)
        if spec is not None and spec.origin is not None:
            path = Path(spec.origin).parent
            places[name] = str(path.parent if spec.submodule_search_locations else path)
    return places


def own_tag() -> str:
    return sys.implementation.cache_tag or ""


def _unusable(model: str, reason: str) -> NaiadError:
    return invalid_arg(f"the Python interpreter of model '{model}' cannot be used: {reason}")
