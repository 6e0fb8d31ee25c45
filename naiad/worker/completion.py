"""A process that lets one model complete its config, or load, and then ends: `python -m
naiad.worker.completion`, for `naiad check`.

It is a separate process, because a broken model file may crash it.
"""

from __future__ import annotations

import os
import sys
from typing import Any, cast

import msgspec

from naiad.backends.backend import Runtime
from naiad.errors import NaiadError
from naiad.ipc.completion_request import CompletionRequest, CompletionResult
from naiad.worker.import_backend import import_backend


def complete(request: CompletionRequest) -> CompletionResult:
    try:
        backend = import_backend(request.backend)()
        fields: dict[str, Any] = {}
        if request.examples:
            completed = backend.complete_by_example(request.arguments, request.examples)
            fields = msgspec.json.decode(completed)
        elif request.should_complete:
            fields = msgspec.json.decode(backend.complete_config(request.arguments))
        if request.should_load:
            config = {**msgspec.json.decode(request.arguments.model_config), **fields}
            arguments = msgspec.structs.replace(
                request.arguments, model_config=msgspec.json.encode(config)
            )
            backend.load(arguments, cast(Runtime, _Alone()))
    except NaiadError as error:
        return CompletionResult(error=error.message)
    except Exception as error:
        return CompletionResult(error=f"{type(error).__name__}: {error}")
    return CompletionResult(fields)


class _Alone:
    """What a backend of a framework needs of the server while it loads: somebody who listens."""

    def log(self, severity: str, message: str, file: str, line: int) -> None: ...

    def allocate(self, num_bytes: int) -> memoryview:
        return memoryview(bytearray(num_bytes))


def main() -> None:
    request = msgspec.json.decode(sys.stdin.buffer.read(), type=CompletionRequest)
    # What libraries print must not mix with the result.
    out = os.dup(1)
    os.dup2(2, 1)
    content = msgspec.json.encode(complete(request))
    with os.fdopen(out, "wb") as file:
        file.write(content)


if __name__ == "__main__":
    main()
