"""A streamed chat with tritonclient's gRPC client: start `make serve` (or `naiad pull smollm2;
naiad serve --model-repository examples/llm/repository`), then run this."""

from __future__ import annotations

import json
import queue
import sys
from typing import Any

import numpy as np
import tritonclient.grpc as grpcclient


def text_input(name: str, text: str) -> Any:
    tensor = grpcclient.InferInput(name, [1], "BYTES")
    tensor.set_data_from_numpy(np.array([text.encode()], dtype=np.object_))
    return tensor


def main() -> None:
    question = " ".join(sys.argv[1:]) or "What is the capital of France?"
    stream = grpcclient.InferInput("stream", [1], "BOOL")
    stream.set_data_from_numpy(np.array([True]))
    messages = json.dumps([{"role": "user", "content": question}])
    answers: queue.Queue[tuple[Any, Any]] = queue.Queue()
    with grpcclient.InferenceServerClient("127.0.0.1:8001") as client:
        client.start_stream(callback=lambda result, error: answers.put((result, error)))
        client.async_stream_infer(
            "smollm2",
            [text_input("messages", messages), stream],
            parameters={"max_tokens": 100},
            enable_empty_final_response=True,
        )
        is_final = False
        while not is_final:
            result, error = answers.get(timeout=60)
            if error is not None:
                sys.exit(str(error))
            response = result.get_response()
            is_final = response.parameters["triton_final_response"].bool_param
            if response.outputs:
                print(result.as_numpy("text_output")[0].decode(), end="", flush=True)
        print()
        client.stop_stream()


if __name__ == "__main__":
    main()
