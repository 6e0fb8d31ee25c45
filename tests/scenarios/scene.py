"""A conversation with a running server, Naiad or the genuine Triton, and its transcript.

Requests are sent on one gRPC stream, so the server receives them in the order of sending;
`wait_submitted` waits until it has received them all. The models write down their requests
(models/recorder.py), and the scene reads these records.
Rule: a scenario acts only through a scene. What it records (`record`) is equal on both servers, or
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
    """A FIFO. A model that gets its path as the input GO waits until the gate is opened."""

    def __init__(self, folder: str) -> None:
        self.path = tempfile.mktemp(prefix="gate-", dir=folder)
        os.mkfifo(self.path)
        self._fd = -1

    def wait_entered(self) -> None:
        """Waits until the model has reached the gate."""
        end = time.monotonic() + LIMIT_S
        while self._fd < 0:
            try:
                self._fd = os.open(self.path, os.O_WRONLY | os.O_NONBLOCK)
            except OSError:
                assert time.monotonic() < end, "the model did not come to the gate"
                # No event tells that a reader has opened the FIFO; a blocking open has no limit.
                time.sleep(0.002)

    def open(self) -> None:
        os.close(self._fd)
        os.unlink(self.path)


class Stream:
    """One gRPC stream and its responses. Models that are not decoupled respond in the order of
    requests."""

    def __init__(self, server: Server) -> None:
        self.client = grpc_client.InferenceServerClient(server.grpc)
        self._changed = threading.Condition()
        self._responses: dict[str, list[Any]] = {}
        self._errors: list[str] = []
        self._finals: set[str] = set()
        self.client.start_stream(self._on_response)

    def close(self) -> None:
        self.client.stop_stream()
        self.client.close()

    def _on_response(self, result: Any, error: Any) -> None:
        with self._changed:
            if error is not None:
                self._errors.append(error.message())  # The error does not name its request.
            else:
                response = result.get_response()
                responses = self._responses.setdefault(response.id, [])
                outputs = {
                    output.name: result.as_numpy(output.name).ravel().tolist()
                    for output in response.outputs
                }
                if outputs:
                    responses.append(outputs)
                if response.parameters["triton_final_response"].bool_param:
                    self._finals.add(response.id)
            self._changed.notify_all()

    def response(self, id: str) -> list[Any]:
        """Waits for the end of a request. Returns all its outputs, or "error", the outputs so far
        and the message."""
        with self._changed:
            is_over = self._changed.wait_for(lambda: id in self._finals or self._errors, LIMIT_S)
            assert is_over, f"no response to {id}; so far {self._responses}"
            if id not in self._finals:
                return ["error", *self._responses.pop(id, []), self._errors.pop(0)]
            self._finals.discard(id)
            return self._responses.pop(id)


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

    def send(
        self,
        id: str,
        model: str,
        sequence: int | str = 0,
        flags: str = "",
        x: Any = 0,
        **options: Any,
    ) -> None:
        """Sends a request.

        `flags` contains s for START and e for END. `x` is the value of X, a list for several
        elements, or None to omit the input. `on` names a stream, on which models that are not
        decoupled respond in the order of requests.
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
        """Sends a request and waits for its response."""
        self.send(id, model, *arguments, **options)
        return self.response(id, options.get("on", ""))

    def wait_submitted(self, on: str = "") -> None:
        """Waits until the server has received all requests sent on the stream."""
        self._probes += 1
        self.ask(f"probe {self._probes}", "probe", go=None, is_unbatched=True, on=on)

    def response(self, id: str, on: str = "") -> list[Any]:
        return self.stream(on).response(id)

    def gate(self) -> Gate:
        return Gate(self.folder)

    def batches(self, model: str) -> list[Any]:
        """Returns what the instances of a model have executed since the last call."""
        batches: list[Any] = []
        pattern = f"{model}_*.jsonl" if model else "*.jsonl"
        for path in sorted(Path(self.folder).glob(pattern)):
            lines = path.read_text().splitlines()
            batches += [json.loads(line) for line in lines[self._read.get(path.name, 0) :]]
            self._read[path.name] = len(lines)
        return batches

    def wait_batches(self, model: str, count: int) -> list[Any]:
        """Waits until at least `count` batches have been executed, and returns them."""
        end = time.monotonic() + LIMIT_S
        batches = self.batches(model)
        while len(batches) < count:
            assert time.monotonic() < end, f"only {batches} of {model}"
            time.sleep(0.005)
            batches += self.batches(model)
        return batches

    def wait_pending(self, model: str, count: int) -> None:
        """Waits until `count` requests wait in the queues of a model."""
        line = f'nv_inference_pending_request_count{{model="{model}",version="1"}} {count}'
        end = time.monotonic() + LIMIT_S
        while line not in self.server.get("/metrics", "metrics")[1].decode():
            assert time.monotonic() < end, f"not {line}"

    def wait_state(self, model: str, state: str, limit_s: float = LIMIT_S) -> None:
        """Waits until every version of a model has this state in the index."""
        end = time.monotonic() + limit_s
        while any(entry.get("state") != state for entry in self._index() if entry["name"] == model):
            assert time.monotonic() < end, f"{model} is not {state}"

    def _index(self) -> list[dict[str, Any]]:
        entries: list[dict[str, Any]] = json.loads(self.server.post("/v2/repository/index", {})[1])
        return entries

    def record(self, what: str, value: Any) -> None:
        self.transcript.append([what, value])

    def record_responses(self, *ids: str) -> None:
        for id in ids:
            self.record(id, self.response(id))

    def record_batches(self, model: str, what: str = "batches") -> None:
        """Records one line for each batch."""
        for batch in self.batches(model):
            self.record(what, " | ".join(brief(request) for request in batch))

    def count_from_here(self, *models: str) -> None:
        """Excludes earlier requests from the statistics that are recorded later."""
        self._counted.update({model: self._counts(model) for model in models})

    def wait_executions(self, model: str, count: int) -> None:
        """Waits until the server has counted this many executions. A response may arrive before
        `execute` has returned."""
        end = time.monotonic() + LIMIT_S
        while self._new_counts(model)["execution_count"] < count:
            assert time.monotonic() < end, f"not {count} executions of {model}"

    def record_statistics(self, model: str, num_requests: int) -> None:
        """Records the counts, but not the times, once they include `num_requests` requests: Triton
        counts a request after it has responded."""
        end = time.monotonic() + LIMIT_S
        while True:
            counts = self._new_counts(model)
            if counts["success"] + counts["fail"] >= num_requests:
                break
            assert time.monotonic() < end, f"only {counts} in the statistics of {model}"
        statistics: dict[str, Any] = {
            name: counts.pop(name, 0) for name in ("inference_count", "execution_count")
        }
        statistics["batch_sizes"] = {
            name.removeprefix(BATCH): counts.pop(name)
            for name in list(counts)
            if name.startswith(BATCH)
        }
        self.record(f"statistics of {model}", statistics | dict(counts))

    def _new_counts(self, model: str) -> Counter[str]:
        return self._counts(model) - self._counted.get(model, Counter())

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
    """Returns one line: id, sequence, flags, then inputs as name=values, with the shape if there is
    more than one element. GO is omitted."""
    parts = [request["id"] or "-"]
    if request["sequence"]:
        parts.append(f"of {request['sequence']}")
    if request["flags"]:
        parts.append(f"flags {request['flags']}")
    for name, (_, shape, values) in request["inputs"].items():
        if name != "GO":
            # Triton leaves the model's own inputs of a null request uninitialized.
            is_null = request["id"] == "" and name == "X"
            text = "?" if is_null else ",".join(map(str, values))
            if len(values) != 1:
                text = f"{'x'.join(map(str, shape))}:{text}"
            parts.append(f"{name}={text}")
    return " ".join(parts)
