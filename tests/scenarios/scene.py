"""A conversation with a running server, ours or the genuine Triton, and the transcript of what it
did.

Requests go out on one gRPC stream, so the server takes them in the order in which they are sent;
`submitted` waits until it has them all. What the models were given is read from the lines that they
write (models/recorder.py).
Rule: a scenario only acts through a scene, and what it tells (`tell`) is equal on both servers or
      the scenario says why not.
"""

from __future__ import annotations

import json
import os
import tempfile
import threading
import time
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import tritonclient.grpc as grpc_client

from tests.server.harness import Server

LIMIT_S = 120.0
BATCH = "batch of "


class Gate:
    """A model that was sent `path` as GO waits until the gate is opened."""

    def __init__(self, folder: str) -> None:
        self.path = tempfile.mktemp(prefix="gate-", dir=folder)
        os.mkfifo(self.path)
        self._fd = -1

    def wait_entered(self) -> None:
        """Until the model is there."""
        end = time.monotonic() + LIMIT_S
        while self._fd < 0:
            try:
                self._fd = os.open(self.path, os.O_WRONLY | os.O_NONBLOCK)
            except OSError:
                assert time.monotonic() < end, "the model did not come to the gate"
                # opening a FIFO says nothing until its reader is there, and must not block for ever
                time.sleep(0.002)

    def open(self) -> None:
        os.close(self._fd)
        os.unlink(self.path)


class Stream:
    """One gRPC stream and the answers that came on it: those of plain models in the order of their
    requests."""

    def __init__(self, server: Server) -> None:
        self.client = grpc_client.InferenceServerClient(server.grpc)
        self._changed = threading.Condition()
        self._answers: dict[str, list[Any]] = {}
        self._errors: list[str] = []
        self._finals: set[str] = set()
        self.client.start_stream(self._on_response)

    def close(self) -> None:
        self.client.stop_stream()
        self.client.close()

    def _on_response(self, result: Any, error: Any) -> None:
        with self._changed:
            if error is not None:
                self._errors.append(error.message())  # which request it was about is not told
            else:
                response = result.get_response()
                answers = self._answers.setdefault(response.id, [])
                outputs = {
                    output.name: result.as_numpy(output.name).ravel().tolist()
                    for output in response.outputs
                }
                if outputs:
                    answers.append(outputs)
                if response.parameters["triton_final_response"].bool_param:
                    self._finals.add(response.id)
            self._changed.notify_all()

    def answer(self, id: str) -> list[Any]:
        """All outputs of a request, when it is over; the words, when it is an error."""
        with self._changed:
            is_over = self._changed.wait_for(lambda: id in self._finals or self._errors, LIMIT_S)
            assert is_over, f"no answer to {id}; so far {self._answers}"
            if id not in self._finals:
                return ["error", *self._answers.pop(id, []), self._errors.pop(0)]
            self._finals.discard(id)
            return self._answers.pop(id)


class Scene:
    def __init__(self, server: Server, folder: str) -> None:
        self.server = server
        self.folder = folder
        self.transcript: list[Any] = []
        self._streams: dict[str, Stream] = {}
        self._probes = 0
        self._read: dict[str, int] = {}
        self._counted: dict[str, Counter[str]] = {}
        self.batches("")

    def close(self) -> None:
        for stream in self._streams.values():
            stream.close()

    def stream(self, name: str) -> Stream:
        if name not in self._streams:
            self._streams[name] = Stream(self.server)
        return self._streams[name]

    # Requests.

    def send(
        self,
        id: str,
        model: str,
        sequence: int | str = 0,
        flags: str = "",
        x: Any = 0,
        **options: Any,
    ) -> None:
        """`flags`: s for START, e for END. `x` is the value of X, a list for several elements, or
                 None to leave it out.

        `on` names a stream: answers of plain models wait for each other on it.
        """
        client = self.stream(options.pop("on", "")).client
        shape_prefix = [] if options.pop("is_unbatched", False) else [options.pop("batch_size", 1)]
        values = x if isinstance(x, list) else [x]
        name = options.pop("input_name", "X")
        inputs = []
        if x is not None:
            array = np.tile(np.array(values, np.int32), [*shape_prefix, 1] if shape_prefix else [1])
            inputs.append(grpc_client.InferInput(name, list(array.shape), "INT32"))
            inputs[-1].set_data_from_numpy(array)
        for extra, value in options.pop("more", {}).items():
            array = np.full([*shape_prefix, 1], value, np.int32)
            inputs.append(grpc_client.InferInput(extra, list(array.shape), "INT32"))
            inputs[-1].set_data_from_numpy(array)
        go = options.pop("go", "")
        if go is not None:
            texts = np.full(
                [*shape_prefix, 1], (go.path if isinstance(go, Gate) else go).encode(), np.object_
            )
            inputs.append(grpc_client.InferInput("GO", list(texts.shape), "BYTES"))
            inputs[-1].set_data_from_numpy(texts)
        outputs = options.pop("outputs", None)
        client.async_stream_infer(
            model,
            inputs,
            request_id=id,
            sequence_id=sequence,
            sequence_start="s" in flags,
            sequence_end="e" in flags,
            enable_empty_final_response=True,
            outputs=None
            if outputs is None
            else [grpc_client.InferRequestedOutput(name) for name in outputs],
            **options,
        )

    def ask(self, id: str, model: str, *arguments: Any, **options: Any) -> list[Any]:
        """Sends it and waits for the answer."""
        self.send(id, model, *arguments, **options)
        return self.answer(id, options.get("on", ""))

    def submitted(self, on: str = "") -> None:
        """Returns when the server has taken all that was sent."""
        self._probes += 1
        self.ask(f"probe {self._probes}", "probe", go=None, is_unbatched=True, on=on)

    def answer(self, id: str, on: str = "") -> list[Any]:
        return self.stream(on).answer(id)

    def gate(self) -> Gate:
        return Gate(self.folder)

    # What can be seen.

    def batches(self, model: str) -> list[Any]:
        """What the instances of a model have executed since this was asked last."""
        found: list[Any] = []
        for path in sorted(
            Path(self.folder).glob(f"{model}_*.jsonl")
            if model
            else Path(self.folder).glob("*.jsonl")
        ):
            lines = path.read_text().splitlines()
            found += [json.loads(line) for line in lines[self._read.get(path.name, 0) :]]
            self._read[path.name] = len(lines)
        return found

    def wait_batches(self, model: str, count: int) -> list[Any]:
        """The same, until there are so many."""
        end = time.monotonic() + LIMIT_S
        found = self.batches(model)
        while len(found) < count:
            assert time.monotonic() < end, f"only {found} of {model}"
            time.sleep(0.005)  # a file tells nobody that it grows
            found += self.batches(model)
        return found

    def wait_pending(self, model: str, count: int) -> None:
        """Until so many requests wait in the queues of a model."""
        line = f'nv_inference_pending_request_count{{model="{model}",version="1"}} {count}'
        end = time.monotonic() + LIMIT_S
        while line not in self.server.get("/metrics", "metrics")[1].decode():
            assert time.monotonic() < end, f"not {line}"

    def wait_state(self, model: str, state: str, limit_s: float = LIMIT_S) -> None:
        """Until the index says so of every version of a model."""
        end = time.monotonic() + limit_s
        while any(entry.get("state") != state for entry in self._index() if entry["name"] == model):
            assert time.monotonic() < end, f"{model} is not {state}"

    def _index(self) -> list[dict[str, Any]]:
        entries: list[dict[str, Any]] = json.loads(self.server.post("/v2/repository/index", {})[1])
        return entries

    def tell(self, what: str, value: Any) -> None:
        self.transcript.append([what, value])

    def tell_answers(self, *ids: str) -> None:
        for id in ids:
            self.tell(id, self.answer(id))

    def tell_batches(self, model: str, what: str = "batches") -> None:
        """Briefly, a line for each."""
        for batch in self.batches(model):
            self.tell(what, " | ".join(brief(request) for request in batch))

    def count_from_here(self, *models: str) -> None:
        """What others have asked of these models before is not told."""
        self._counted.update({model: self._counts(model) for model in models})

    def wait_executions(self, model: str, count: int) -> None:
        """Until the server knows that so many batches are over: an answer may be there before
        `execute` has returned."""
        end = time.monotonic() + LIMIT_S
        while (self._counts(model) - self._counted.get(model, Counter()))[
            "execution_count"
        ] < count:
            assert time.monotonic() < end, f"not {count} executions of {model}"

    def tell_statistics(self, model: str, num_requests: int) -> None:
        """The counts, not the times, when so many requests are in them: Triton counts after it has
        answered."""
        end = time.monotonic() + LIMIT_S
        while True:
            found = self._counts(model) - self._counted.get(model, Counter())
            if found["success"] + found["fail"] >= num_requests:
                break
            assert time.monotonic() < end, f"only {found} in the statistics of {model}"
        told: dict[str, Any] = {
            name: found.pop(name, 0) for name in ("inference_count", "execution_count")
        }
        told["batch_sizes"] = {
            name.removeprefix(BATCH): found.pop(name)
            for name in list(found)
            if name.startswith(BATCH)
        }
        self.tell(f"statistics of {model}", told | dict(found))

    def _counts(self, model: str) -> Counter[str]:
        (statistics,) = json.loads(self.server.get(f"/v2/models/{model}/stats")[1])["model_stats"]
        counts = Counter(
            {name: value["count"] for name, value in statistics["inference_stats"].items()}
        )
        counts.update({name: statistics[name] for name in ("inference_count", "execution_count")})
        counts.update(
            {
                f"{BATCH}{batch['batch_size']}": batch["compute_infer"]["count"]
                for batch in statistics["batch_stats"]
            }
        )
        return +counts


def brief(request: dict[str, Any]) -> str:
    """One line: id, sequence, flags, then inputs as name=values, with the shape where it is not one
    element. GO is left out."""
    parts = [request["id"] or "-"]
    if request["sequence"]:
        parts.append(f"of {request['sequence']}")
    if request["flags"]:
        parts.append(f"flags {request['flags']}")
    for name, (_, shape, values) in request["inputs"].items():
        if name != "GO":
            # a null request's own inputs mean nothing, and Triton leaves them uninitialized
            is_null = request["id"] == "" and name == "X"
            text = "?" if is_null else ",".join(map(str, values))
            parts.append(
                f"{name}={text}"
                if len(values) == 1
                else f"{name}={'x'.join(map(str, shape))}:{text}"
            )
    return " ".join(parts)
