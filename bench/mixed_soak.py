"""Runs everything at once for hours and shows that memory, descriptors and processes stay flat.

    python -m bench.mixed_soak [--hours 2] [--seed 7] [--folder build/soak]

A live server has small and large tensors over HTTP and gRPC, streams, sequences, an ensemble, a
language model where torch is installed, clients that leave at random moments, wrong requests, a
reload and a load and unload every minute, and kills of random workers and templates. Every
response is checked. The folder gets `samples.csv` (every 10 s), `processes.csv` (the memory of each
process, every minute), `server.log`, and at the end `summary.md` and `soak.svg`; `python -m
bench.soak_report FOLDER` makes these two at any time. The exit code is 1 if a response was wrong, a
request failed without a kill, or a reading grew.

The load is gentle on purpose: the figure that counts is what is left after hours.
"""

from __future__ import annotations

import argparse
import contextlib
import csv
import importlib.util
import os
import random
import re
import shutil
import signal
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from bench.process_tree import cpu_seconds, memory_bytes, process_memory_bytes
from bench.soak_clients import Client, make_clients
from bench.soak_report import FIELDS, Sample, write_report
from tests.attacks.random_kills import (
    EXPECTED_ERRORS,
    FLAGS,
    NOTICE_S,
    PARTS,
    REQUEST_LIMIT_S,
    RESTART_LIMIT_S,
    HttpClient,
    Kill,
    RefusedError,
    write_repository,
)
from tests.server.harness import Server, launch_naiad, process_name, process_tree, wait_gone
from tests.server.model_folder import Control, model_code, put, write_model

SAMPLE_S = 10.0
DETAILS_EVERY = 6
"""Samples from one table of all processes to the next."""
MEMORY = ("Pss_Anon", "Pss_Shmem", "Pss_File")
KILL_S = 20.0
"""Mean time between kills."""
TEMPLATE_SHARE = 0.05
RELOAD_S = 60.0
READY_LIMIT_S = 120.0
MAIN = Path(__file__).parents[1] / "tests" / "repositories" / "main"
SEQUENCE_CONFIG = """backend: "python"
max_batch_size: 4
input [ { name: "IN" data_type: TYPE_INT32 dims: [ 1 ] } ]
output [ { name: "OUT" data_type: TYPE_INT32 dims: [ 1 ] } ]
sequence_batching {
  max_sequence_idle_microseconds: 60000000
  control_input [
    { name: "START" control [ { kind: CONTROL_SEQUENCE_START int32_false_true: [ 0, 1 ] } ] },
    { name: "CORRID" control [ { kind: CONTROL_SEQUENCE_CORRID data_type: TYPE_UINT64 } ] } ]
  oldest { max_candidate_sequences: 4 }
}
instance_group [ { count: 1 kind: KIND_CPU } ]
"""
SEQUENCE_CODE = """
import numpy as np
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def initialize(self, args):
        self.totals = {}

    def execute(self, requests):
        responses = []
        for request in requests:
            def read(name):
                return int(pb_utils.get_input_tensor_by_name(request, name).as_numpy().ravel()[0])

            number = read("CORRID")
            total = (0 if read("START") else self.totals[number]) + read("IN")
            self.totals = {**dict(list(self.totals.items())[-100:]), number: total}
            out = pb_utils.Tensor("OUT", np.array([[total]], np.int32))
            responses.append(pb_utils.InferenceResponse([out]))
        return responses
"""


def write_soak_repository(folder: Path, *, has_chat: bool) -> Path:
    """Writes the models of the random kills and those that only the soak has."""
    repository = write_repository(folder / "models")
    for name, source in (("sums", "add_sub"), ("large", "identity_fp32")):
        shutil.copytree(MAIN / source, repository / name)
        config = repository / name / "config.pbtxt"
        config.write_text(config.read_text().replace(f'name: "{source}"', f'name: "{name}"'))
    (repository / "steps" / "1").mkdir(parents=True)
    (repository / "steps" / "config.pbtxt").write_text(SEQUENCE_CONFIG)
    (repository / "steps" / "1" / "model.py").write_text(SEQUENCE_CODE)
    write_model(repository, "cycled", "first", initialize="self.weights = np.ones(4_000_000)")
    write_model(repository, "renewed", "0")
    if has_chat:
        write_chat_model(repository, folder)
    return repository


def write_chat_model(repository: Path, folder: Path) -> None:
    from tests.server.llm_checkpoint import parameter, write_checkpoint
    from tests.server.llm_checkpoint import write_model as write_llm
    from tests.server.llm_repository import SMALL

    checkpoint = write_checkpoint(folder / "checkpoint")
    options = "".join(parameter(name, value) for name, value in SMALL.items())
    write_llm(
        repository, "tiny", 'backend: "llm"\n' + parameter("checkpoint", checkpoint) + options
    )


class Soak:
    """The threads of one run: clients, kills, reloads and samples."""

    def __init__(self, server: Server, repository: Path, seed: int, folder: Path) -> None:
        self._server, self._repository = server, repository
        self._chance = random.Random(seed)
        self._seed, self._folder = seed, folder
        self._has_chat = (repository / "tiny").exists()
        self._lock = threading.Lock()
        self._is_over = threading.Event()
        self._kills: list[Kill] = []
        self._pids: set[int] = set()
        self._num_reloads = 0
        self.succeeded: Counter[str] = Counter()
        self.lost: Counter[str] = Counter()
        self.violations: list[str] = []

    def run(self, seconds: float) -> None:
        clients = list(make_clients(self._server, self._seed, has_chat=self._has_chat))
        threads = [threading.Thread(target=self._load, args=client) for client in clients]
        threads += [threading.Thread(target=self._guarded, args=(self._kill_workers,))]
        threads += [threading.Thread(target=self._guarded, args=(self._reload_models,))]
        for thread in threads:
            thread.start()
        try:
            self._sample_until(time.monotonic() + seconds)
        finally:
            self._is_over.set()
            for thread in threads:
                thread.join(3 * REQUEST_LIMIT_S)
        for thread in threads:
            if thread.is_alive():
                self._violate(f"{thread.name} has no response")
        for client, _ in clients:
            client.close()
        self._check_end()

    def _violate(self, message: str) -> None:
        with self._lock:
            self.violations.append(message)
        print(f"{time.strftime('%H:%M:%S')} VIOLATION: {message}", flush=True)

    def _guarded(self, run: object) -> None:
        assert callable(run)
        try:
            run()
        except Exception as error:
            self._violate(f"{type(error).__name__}: {error}")

    # Load.

    def _load(self, client: Client, pause_s: float) -> None:
        chance = random.Random(client.name)
        number = 0
        while not self._is_over.wait(chance.expovariate(1 / pause_s)):
            number += 1
            start_s = time.monotonic()
            try:
                client.call(number)
                with self._lock:
                    self.succeeded[client.name] += 1
            except RefusedError as error:
                self._judge(client, start_s, str(error))
            except Exception as error:
                self._violate(f"{client.name}: {type(error).__name__}: {error}"[:600])
                if isinstance(client, HttpClient):
                    client.close()  # the next request opens another connection
                elif not isinstance(error, AssertionError):
                    return  # the channel or the stream is lost

    def _judge(self, client: Client, start_s: float, message: str) -> None:
        """An error is right only if a worker that the request needed was killed meanwhile, or
        before that and it still restarts."""
        end_s = time.monotonic()
        models = {"", *PARTS.get(client.model, (client.model,))}
        before_s = RESTART_LIMIT_S if "is restarting" in message else NOTICE_S
        with self._lock:
            is_explained = any(
                (kill.model in models or client.model == "*")
                and start_s - before_s <= kill.time_s <= end_s
                for kill in reversed(self._kills)
            )
            self.lost[client.name] += 1
        if not is_explained:
            self._violate(f"{client.name}: failed without a kill: {message}")
        elif not any(text in message for text in EXPECTED_ERRORS):
            self._violate(f"{client.name}: unexpected error: {message}")

    # Disturbances.

    def _kill_workers(self) -> None:
        while not self._is_over.wait(self._chance.expovariate(1 / KILL_S)):
            is_template = self._chance.random() < TEMPLATE_SHARE
            targets = list(self._targets(is_template))
            if not targets:
                continue
            pid, model = self._chance.choice(targets)
            with self._lock:
                self._kills.append(Kill(time.monotonic(), model))
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)

    def _targets(self, is_template: bool) -> Iterator[tuple[int, str]]:
        """Yields process ids with their models. A template has none: all its workers end."""
        for template in children(self._server.pid):
            if is_template:
                yield template, ""
                continue
            for worker in children(template):
                model = re.sub(r"(_\d+)+$", "", process_name(worker))
                # `cycled` and `renewed` are controlled by a client that expects no failures.
                if (self._repository / model).exists() and model not in ("cycled", "renewed"):
                    yield worker, model

    def _reload_models(self) -> None:
        control = Control(self._server)
        number = 0
        while not self._is_over.wait(RELOAD_S):
            number += 1
            put(self._repository / "renewed" / "1" / "model.py", model_code(str(number)))
            for model in ("renewed", "lone"):
                self._expect(control.load(model), (200, ""), f"reload of {model}")
            self._expect(self._word(control, "renewed"), str(number), "renewed after its reload")
            self._expect(control.unload("cycled"), (200, ""), "unload")
            self._expect(control.infer("cycled")[0], 404, "an unloaded model")
            self._expect(control.load("cycled"), (200, ""), "load")
            self._expect(self._word(control, "cycled"), "first", "cycled after its load")
            self._num_reloads += 1

    def _word(self, control: Control, model: str) -> str:
        status, output = control.infer(model)
        if status == 503 and self._was_template_killed():
            return self._word(control, model)
        return output.split()[0] if status == 200 else f"{status} {output}"

    def _was_template_killed(self) -> bool:
        with self._lock:
            return any(
                kill.model == "" and kill.time_s > time.monotonic() - REQUEST_LIMIT_S
                for kill in self._kills
            )

    def _expect(self, received: object, expected: object, what: str) -> None:
        if received != expected and not self._was_template_killed():
            self._violate(f"{what}: {received!r}, expected {expected!r}")

    # Samples.

    def _sample_until(self, end_s: float) -> None:
        start_s = time.monotonic()
        num_lines = num_samples = 0
        with (
            (self._folder / "samples.csv").open("w", newline="") as table,
            (self._folder / "processes.csv").open("w", newline="") as processes,
            (self._folder / "server.log").open("w") as log,
        ):
            writer, details = csv.writer(table), csv.writer(processes)
            writer.writerow(FIELDS)
            details.writerow(["time_s", "pid", "name", *MEMORY])
            while time.monotonic() < end_s:
                if self._server.process.poll() is not None:
                    raise AssertionError(f"the server ended{self._server.tail()}")
                sample = self._sample(time.monotonic() - start_s)
                writer.writerow(sample.row())
                table.flush()
                if num_samples % DETAILS_EVERY == 0:
                    details.writerows(self._details(sample.time_s))
                    processes.flush()
                num_samples += 1
                lines = self._server.lines[num_lines:]
                num_lines += len(lines)
                log.writelines(f"{line}\n" for line in lines)
                log.flush()
                time.sleep(SAMPLE_S)

    def _sample(self, time_s: float) -> Sample:
        tree = set(process_tree(self._server.pid))
        self._pids.update(tree)
        memory = memory_bytes(self._server.pid)
        with self._lock:
            counts = (self.succeeded.total(), self.lost.total(), len(self._kills))
        return Sample(
            time_s=round(time_s, 1),
            pss_bytes=memory["Pss"],
            own_bytes=memory["Pss_Anon"] + memory["Pss_Shmem"],
            server_bytes=private_bytes(self._server.pid),
            descriptors=num_descriptors([self._server.pid]),
            all_descriptors=num_descriptors(tree),
            processes=len(tree),
            threads=sum(num_threads(pid) for pid in tree),
            cpu_s=round(cpu_seconds(self._server.pid), 2),
            responses=counts[0],
            lost=counts[1],
            kills=counts[2],
            reloads=self._num_reloads,
            violations=len(self.violations),
        )

    def _details(self, time_s: float) -> Iterator[list[object]]:
        for pid in process_tree(self._server.pid):
            memory = process_memory_bytes(pid)
            yield [time_s, pid, process_name(pid), *(memory[key] for key in MEMORY)]

    # The end.

    def _check_end(self) -> None:
        end_s = time.monotonic() + READY_LIMIT_S
        while not self._server.is_ready():
            if time.monotonic() > end_s:
                self._violate("the server is not ready at the end")
                break
            time.sleep(0.1)
        code = self._server.stop()
        if code != 0:
            self._violate(f"the server exited with status {code}")
        left = wait_gone(sorted(self._pids - {self._server.pid}), 10)
        if left:
            self._violate(f"left behind: {[(pid, process_name(pid)) for pid in left]}")
        for index, line in enumerate(self._server.lines):
            if "Traceback" in line:
                self._violate("\n".join(self._server.lines[max(0, index - 2) : index + 30]))
                break


def children(pid: int) -> list[int]:
    found: list[int] = []
    with contextlib.suppress(FileNotFoundError, ProcessLookupError):
        for task in os.listdir(f"/proc/{pid}/task"):
            found += map(int, Path(f"/proc/{pid}/task/{task}/children").read_text().split())
    return found


def private_bytes(pid: int) -> int:
    """Returns the memory that a process shares with no other."""
    rollup = Path(f"/proc/{pid}/smaps_rollup").read_text()
    return sum(
        int(line.split()[1]) << 10
        for line in rollup.splitlines()
        if line.startswith(("Private_Clean", "Private_Dirty"))
    )


def num_descriptors(pids: Iterator[int] | set[int] | list[int]) -> int:
    total = 0
    for pid in pids:
        with contextlib.suppress(FileNotFoundError, ProcessLookupError, PermissionError):
            total += len(os.listdir(f"/proc/{pid}/fd"))
    return total


def num_threads(pid: int) -> int:
    try:
        return len(os.listdir(f"/proc/{pid}/task"))
    except (FileNotFoundError, ProcessLookupError):
        return 0


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--hours", type=float, default=2.0)
    parser.add_argument("--seed", type=int, default=7)
    parser.add_argument("--folder", type=Path, default=Path("build/soak"))
    chosen = parser.parse_args()
    chosen.folder.mkdir(parents=True, exist_ok=True)
    shutil.rmtree(chosen.folder / "models", ignore_errors=True)
    has_chat = importlib.util.find_spec("torch") is not None
    repository = write_soak_repository(chosen.folder, has_chat=has_chat)
    flags = [*FLAGS, "--model-control-mode=explicit", "--load-model=*"]
    server = launch_naiad([str(repository)], flags)
    soak = Soak(server, repository, chosen.seed, chosen.folder)
    try:
        server.wait_started()
        soak.run(chosen.hours * 3600)
    finally:
        if server.process.poll() is None:
            server.stop()
    print(f"responses: {dict(sorted(soak.succeeded.items()))}")
    print(f"lost with a killed worker: {dict(sorted(soak.lost.items()))}")
    is_flat = write_report(chosen.folder)
    return 0 if is_flat and not soak.violations else 1


if __name__ == "__main__":
    sys.exit(main())
