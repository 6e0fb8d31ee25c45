"""A process that lets one model complete its config and ends: `python -m naiad.worker.completion`,
for `naiad check --write`.

A process of its own, because a model file that is no good may take it down.
"""

from __future__ import annotations

import os
import sys

import msgspec

from naiad.errors import NaiadError
from naiad.ipc.completion_request import CompletionAnswer, CompletionRequest
from naiad.worker.import_backend import import_backend


def answer(request: CompletionRequest) -> CompletionAnswer:
    try:
        backend = import_backend(request.backend)()
        if request.examples:
            completed = backend.complete_by_example(request.arguments, request.examples)
        else:
            completed = backend.complete_config(request.arguments)
    except NaiadError as error:
        return CompletionAnswer(error=error.message)
    except Exception as error:
        return CompletionAnswer(error=f"{type(error).__name__}: {error}")
    return CompletionAnswer(msgspec.json.decode(completed))


def main() -> None:
    request = msgspec.json.decode(sys.stdin.buffer.read(), type=CompletionRequest)
    # Whatever libraries print must not get between us and who reads the answer.
    out = os.dup(1)
    os.dup2(2, 1)
    content = msgspec.json.encode(answer(request))
    with os.fdopen(out, "wb") as file:
        file.write(content)


if __name__ == "__main__":
    main()
