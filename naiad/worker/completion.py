"""A process that lets one model complete its config, and then ends: `python -m
naiad.worker.completion`, for `naiad check --write`.

It is a separate process, because a broken model file may crash it.
"""

from __future__ import annotations

import os
import sys

import msgspec

from naiad.errors import NaiadError
from naiad.ipc.completion_request import CompletionRequest, CompletionResult
from naiad.worker.import_backend import import_backend


def complete(request: CompletionRequest) -> CompletionResult:
    try:
        backend = import_backend(request.backend)()
        if request.examples:
            completed = backend.complete_by_example(request.arguments, request.examples)
        else:
            completed = backend.complete_config(request.arguments)
    except NaiadError as error:
        return CompletionResult(error=error.message)
    except Exception as error:
        return CompletionResult(error=f"{type(error).__name__}: {error}")
    return CompletionResult(msgspec.json.decode(completed))


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
