"""How long a stream waits for its next token while others send prompts of 30,000 tokens.

    python -m bench.tokenize_delay                       # paced, native and OpenVINO, SmolLM2
    python -m bench.tokenize_delay --engines paced       # needs no framework, and no GPU
    python -m bench.tokenize_delay --engines paced native --shape llama-3.1-8b  # on a GPU
    python -m bench.tokenize_delay --parameter use_fast_tokenizer=false

One client streams a completion and notes the time between two events. Meanwhile another process
sends long prompts one after the other. The model's context is too short for them, so a prompt is
tokenized and then refused: the engine never sees it, and what is measured is the delay by
tokenizing, not by computing. Cases:

    alone       nobody sends
    refused     as many bytes, refused before they are tokenized (one byte above max_prompt_bytes):
                what the way to the worker costs, and the client that shares the machine
    text, chat  tokenized

`more` is the difference to `refused`; the goal is at most 5 ms for the worst gap. The engine
`paced` (bench/paced_engine.py) makes a token every 2 ms without using a processor, so its gaps show
the delays around the engine and nothing else. On a machine with few cores, the others compute with
all of them and share them with the text process.
"""

from __future__ import annotations

import argparse
import http.client
import json
import multiprocessing
import os
import sys
import tempfile
import time
from multiprocessing.connection import Connection
from multiprocessing.synchronize import Event
from pathlib import Path

import psutil

from bench.llm_checkpoints import write_checkpoint
from bench.llm_shapes import SHAPES
from bench.stream_load import percentile
from bench.stream_wire import Http
from naiad.backends.llm.checkpoint import find_checkpoint
from naiad.llm.checkpoint.folder import open_folder, read_tokenizer
from naiad.llm.checkpoint.gguf_file import GgufFile
from naiad.llm.checkpoint.gguf_tokenizer import build_tokenizer
from tests.server.harness import (
    Server,
    free_ports,
    naiad_command,
    naiad_environment,
    port_flags,
    process_tree,
)

MODEL = "delayed"
NUM_TOKENS = 30_000
CONTEXT = 4096
STREAM_TOKENS = 2_000
NUM_COSTED = 40
STAND_IN = """
import naiad.worker.import_backend
naiad.worker.import_backend.BACKENDS["llm"] = "bench.paced_engine:PacedBackend"
"""


def long_text(checkpoint: Path) -> str:
    """Returns English text and code of about NUM_TOKENS tokens, in ASCII."""
    source = (Path(__file__).parents[1] / "naiad/tools/quantize/calibration.txt").read_text()
    source = source.encode("ascii", "replace").decode()
    tokenizer = (
        build_tokenizer(GgufFile(checkpoint).metadata)
        if checkpoint.is_file()
        else read_tokenizer(open_folder(checkpoint))
    )
    assert tokenizer is not None
    size = len(source) * NUM_TOKENS // len(tokenizer.encode(source))
    return (source * (1 + size // len(source)))[:size]


def write_dummy(folder: Path, shape: str) -> Path:
    checkpoint = write_checkpoint(folder, SHAPES[shape])
    template = "{% for message in messages %}{{ message.content }}\n{% endfor %}"
    (checkpoint / "chat_template.jinja").write_text(template)
    return checkpoint


def start(folder: Path, engine: str, checkpoint: Path, parameters: dict[str, str]) -> Server:
    values = {
        "checkpoint": str(checkpoint),
        "max_model_len": str(CONTEXT),
        "max_prompt_bytes": str(len(long_text(checkpoint)) + 100),
        **({} if engine == "paced" else {"engine": engine}),
        **parameters,
    }
    model = folder / engine / "repository" / MODEL
    (model / "1").mkdir(parents=True)
    (model / "config.pbtxt").write_text(
        'backend: "llm"\n'
        + "".join(
            f'parameters {{ key: "{name}" value: {{ string_value: "{value}" }} }}\n'
            for name, value in values.items()
        )
    )
    packages = folder / engine / "packages"
    packages.mkdir()
    if engine == "paced":
        (packages / "sitecustomize.py").write_text(STAND_IN)
    ports = free_ports()
    command = naiad_command("serve", f"--model-repository={model.parent}", *port_flags(ports))
    path = os.pathsep.join([str(packages), os.environ.get("PYTHONPATH", os.getcwd())])
    return Server(command, ports, naiad_environment({"PYTHONPATH": path})).wait_started(600.0)


def gaps(port: int, seconds: float) -> list[float]:
    """Streams completions for so long. Returns the milliseconds between events."""
    found: list[float] = []
    wire = Http(port, MODEL)
    end_s = time.monotonic() + seconds
    while time.monotonic() < end_s:
        wire.send("Once upon a time", STREAM_TOKENS)
        last_s, is_ended = 0.0, False
        while not is_ended:
            count, is_ended = wire.receive()
            now_s = time.monotonic()
            if count and last_s:
                found.append((now_s - last_s) * 1000)
            if count:
                last_s = now_s
            if now_s > end_s:
                break
        if not is_ended:  # the connection ends the request
            break
    wire.close()
    return found


def body_of(case: str, text: str) -> tuple[str, dict[str, object]]:
    if case == "refused":
        text += "x" * 200
    if case == "chat":
        message = {"role": "user", "content": text[: len(text) - 500]}
        return "/v1/chat/completions", {"model": MODEL, "messages": [message], "max_tokens": 1}
    return f"/v2/models/{MODEL}/generate", {"text_input": text, "max_tokens": 1}


def send_prompts(
    port: int, case: str, text: str, started: Event, stopped: Event, pipe: Connection
) -> None:
    """Runs in a process of its own. Sends the milliseconds that each prompt took."""
    path, fields = body_of(case, text)
    body = json.dumps(fields)
    times: list[float] = []
    connection = http.client.HTTPConnection("127.0.0.1", port)
    expected = "bytes, expected at most" if case == "refused" else "tokens"
    while not stopped.is_set():
        start_s = time.monotonic()
        connection.request("POST", path, body)
        response = connection.getresponse()
        reply = response.read().decode()
        if response.status != 400 or expected not in reply:
            sys.exit(f"{case}: expected a refusal, got {response.status} {reply[:300]}")
        times.append((time.monotonic() - start_s) * 1000)
        started.set()
    pipe.send(times)


def measure(port: int, case: str, text: str, seconds: float) -> tuple[list[float], list[float]]:
    """Returns the gaps of the stream, and how long each prompt took, in milliseconds."""
    if case == "alone":
        return gaps(port, seconds), []
    context = multiprocessing.get_context("spawn")
    started, stopped = context.Event(), context.Event()
    ours, theirs = context.Pipe()
    process = context.Process(
        target=send_prompts, args=(port, case, text, started, stopped, theirs)
    )
    process.start()
    while not started.wait(0.1):
        if not process.is_alive():
            sys.exit(f"{case}: the client has failed")
    found = gaps(port, seconds)
    stopped.set()
    times = ours.recv()
    process.join()
    return found, times


def worker_cpu_ms(server: Server) -> float:
    """The processor time of the worker, which is the parent of the first text process."""
    for pid in process_tree(server.pid):
        process = psutil.Process(pid)
        if any("naiad.backends.llm.text_" in word for word in process.cmdline()):
            parent = process.parent()
            assert parent is not None
            times = parent.cpu_times()
            return (times.user + times.system) * 1000
    raise RuntimeError("the server has no text process")


def cost_ms(server: Server, case: str, text: str) -> float:
    """Returns the processor time that one prompt takes in the worker, without a stream."""
    path, fields = body_of(case, text)
    before_ms = worker_cpu_ms(server)
    for _ in range(NUM_COSTED):
        server.post(path, fields)
    return (worker_cpu_ms(server) - before_ms) / NUM_COSTED


def run(engine: str, parameters: dict[str, str], options: argparse.Namespace) -> None:
    with tempfile.TemporaryDirectory() as folder:
        if options.shape:
            checkpoint = write_dummy(Path(folder) / "checkpoint", options.shape)
            if engine == "native":
                parameters = {"load_format": "dummy", **parameters}
        else:
            checkpoint = find_checkpoint(options.checkpoint, [])
        server = start(Path(folder), engine, checkpoint, parameters)
        try:
            port, text = server.http_port, long_text(checkpoint)
            for case in ("refused", "text", "chat"):  # until caches and processes are warm
                measure(port, case, text, 1.0)
            time.sleep(options.settle_s)
            base = 0.0
            for case in ("alone", "refused", "text", "chat"):
                found, times = measure(port, case, text, options.seconds)
                worst = max(found)
                if case == "refused":
                    base = worst
                row = " ".join(f"{percentile(found, share):8.2f}" for share in (0.5, 0.99, 0.999))
                more = f"{worst - base:+8.2f}" if case in ("text", "chat") else " " * 8
                prompt_ms = percentile(times, 0.5) if times else float("nan")
                print(
                    f"{engine:9} {case:8} {len(found):7} {row} {worst:8.2f} {more} "
                    f"{len(times):7} {prompt_ms:9.1f}",
                    flush=True,
                )
            costs = [
                f"{cost_ms(server, case, text):.1f} ms {case}"
                for case in ("refused", "text", "chat")
            ]
            print(f"{engine:9} processor time of the worker per prompt: {', '.join(costs)}")
        finally:
            server.stop()


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--engines", nargs="+", default=["paced", "native", "openvino"])
    parser.add_argument("--checkpoint", default="smollm2")
    parser.add_argument("--shape", help="a dummy checkpoint: a name of bench/llm_shapes.py")
    parser.add_argument("--seconds", type=float, default=10.0)
    parser.add_argument("--settle-s", type=float, default=3.0)
    parser.add_argument("--parameter", action="append", default=[], metavar="NAME=VALUE")
    options = parser.parse_args()
    parameters = dict(text.split("=", 1) for text in options.parameter)
    print(
        f"{'engine':9} {'case':8} {'events':>7} {'p50 ms':>8} {'p99':>8} {'p99.9':>8} {'worst':>8} "
        f"{'more':>8} {'prompts':>7} {'prompt ms':>9}"
    )
    for engine in options.engines:
        run(engine, parameters, options)


if __name__ == "__main__":
    main()
