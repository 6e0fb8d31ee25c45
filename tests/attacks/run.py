"""Runs attacks against live servers and prints what each of them cost.

`python -m tests.attacks.run` runs all, `python -m tests.attacks.run NAME...` some, and --list
prints their names. `--part 2/4` runs every fourth attack, from the second on, so that four
processes on cores of their own share the work. Each attack gets a server of its own. An attack
fails when a probe was later than MAX_PROBE_S, when the event loop was busy for longer than
MAX_BUSY_S, when the memory of the server rose above the attack's budget, when a process or a
descriptor is left, when the server has died, or when the attack itself reports an error. On a busy
machine give --max-probe-ms, because the limit holds for an idle one; the time that the event loop
was busy does not depend on other processes. Attacks on language models need PyTorch in this
interpreter, and are skipped without it.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib
import importlib.util
import json
import pkgutil
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import tests.attacks
from tests.attacks import llm
from tests.attacks.attack import ATTACKS, CODE, MIB, Attack
from tests.attacks.memory import FLAGS as MEMORY_FLAGS
from tests.attacks.memory import MAX_GROWTH_BYTES, MEMORY
from tests.attacks.probe import Reading
from tests.attacks.slow import FLAGS as SLOW_FLAGS
from tests.attacks.slow import SLOW
from tests.attacks.target import Target
from tests.server.harness import Server, naiad
from tests.server.llm_checkpoint import parameter, write_checkpoint, write_model
from tests.server.llm_repository import SMALL

MAX_PROBE_S = 0.25
MAX_BUSY_S = 0.05
"""More than the 20 ms that a request may hold the event loop: the reading covers a whole turn of
the loop, in which many connections may end at once."""
_SETTLE_S = 10.0
_LLM = "llm"
_REPOSITORIES = Path(__file__).parents[1] / "repositories"
_OWN_MODULES = {"attack", "probe", "run", "target"}


@dataclass
class Result:
    name: str
    probes: dict[str, Reading] = field(default_factory=dict)
    seconds: float = 0.0
    sent_bytes: int = 0
    peak_bytes: int = 0
    busy_s: float = 0.0
    """The longest that the server's event loop has computed without a pause, since its start."""
    left: list[str] = field(default_factory=list)
    failures: list[str] = field(default_factory=list)

    @property
    def worst_s(self) -> float:
        return max((reading.worst_s for reading in self.probes.values()), default=0.0)

    def row(self) -> str:
        worst = " ".join(f"{name} {r.worst_s * 1000:.0f}" for name, r in self.probes.items())
        return (
            f"{'FAIL' if self.failures else 'ok  '} {self.name:34s} {self.seconds:6.1f} s"
            f"  sent {self.sent_bytes / MIB:6.1f} MiB  worst probe ms: {worst:20s}"
            f"  loop busy {self.busy_s * 1000:.0f} ms"
            f"  peak +{self.peak_bytes / MIB:.0f} MiB  left: {', '.join(self.left) or 'nothing'}"
        )


def import_attacks() -> None:
    for module in pkgutil.iter_modules(tests.attacks.__path__):
        if module.name not in _OWN_MODULES and not module.name.startswith("test_"):
            importlib.import_module(f"tests.attacks.{module.name}")
    for function in SLOW:
        name = function.__name__.replace("_", "-")
        ATTACKS[name] = Attack(name, partial(_attack_server, function), 64 * MIB, SLOW_FLAGS)
    for name, function in MEMORY.items():
        ATTACKS[name] = Attack(
            name, partial(_attack_server, function), MAX_GROWTH_BYTES, MEMORY_FLAGS
        )
    for llm_attack in (*llm.ATTACKS, *llm.TRUSTING):
        name = f"llm-{llm_attack.__name__.replace('_', '-')}"
        ATTACKS[name] = Attack(
            name, partial(_attack_server, llm_attack), 256 * MIB, repository=_LLM
        )


@contextlib.contextmanager
def _repositories(name: str) -> Iterator[list[str]]:
    """The repositories to serve. One with language models is written when it is needed."""
    if name == CODE:
        with tempfile.TemporaryDirectory() as folder:
            shutil.copytree(_REPOSITORIES / "faults" / "runs_code", Path(folder) / "runs_code")
            yield [str(_REPOSITORIES / "main"), folder]
        return
    if name != _LLM:
        yield [str(_REPOSITORIES / name)]
        return
    with tempfile.TemporaryDirectory() as folder:
        checkpoint = write_checkpoint(Path(folder) / "checkpoint", max_positions=4096)
        config = 'backend: "llm"\n' + parameter("checkpoint", checkpoint)
        config += "".join(parameter(key, value) for key, value in SMALL.items())
        models = Path(folder) / "models"
        write_model(models, llm.MODEL, config)
        write_model(models, "trusting", config + parameter("trust_request_chat_template", "true"))
        yield [str(_REPOSITORIES / "main"), str(models)]


def _can_run(attack: Attack) -> bool:
    return attack.repository != _LLM or importlib.util.find_spec("torch") is not None


def _attack_server(function: Callable[[Server], None], target: Target) -> None:
    """Runs an attack that needs nothing but the addresses of the server."""
    function(target.server)


def run_attack(attack: Attack, max_probe_s: float = MAX_PROBE_S) -> Result:
    result = Result(attack.name)
    with (
        _repositories(attack.repository) as repositories,
        naiad(repositories, attack.flags) as server,
    ):
        target = Target(server)
        prober = subprocess.Popen(
            [sys.executable, "-m", "tests.attacks.probe", str(server.http_port)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert prober.stdout is not None
        assert prober.stdout.readline().strip() == "ready", "the probes were not served"
        if attack.repository == _LLM:
            llm.warm_up(server)
        processes, descriptors = target.processes(), target.num_descriptors()
        memory_bytes = target.status_bytes("VmRSS")
        target.reset_peak()
        start_s = time.monotonic()
        try:
            attack.run(target)
        except (AssertionError, OSError) as error:
            result.failures.append(f"{type(error).__name__}: {error}")
        result.seconds = time.monotonic() - start_s
        result.sent_bytes = target.sent_bytes
        if server.process.poll() is not None:
            result.failures.append(f"the server died:{server.tail()}")
            prober.kill()
            return result
        result.peak_bytes = target.status_bytes("VmHWM") - memory_bytes
        result.busy_s = target.metric("naiad_event_loop_busy_max_seconds")
        result.left = _leftovers(target, processes, descriptors)
        readings = json.loads(prober.communicate()[0])
        result.probes = {name: Reading(**reading) for name, reading in readings.items()}
    _judge(result, attack, max_probe_s)
    return result


def _leftovers(target: Target, processes: set[int], descriptors: int) -> list[str]:
    """What the attack left behind after `_SETTLE_S` at most."""
    end_s = time.monotonic() + _SETTLE_S
    while True:
        left = []
        # A process that exceeds its limits is replaced by another one.
        if (more := len(target.processes()) - len(processes)) > 0:
            left.append(f"{more} processes")
        if (count := target.num_descriptors() - descriptors) > 0:
            left.append(f"{count} descriptors")
        if not left or time.monotonic() > end_s:
            return left
        time.sleep(0.1)


def _judge(result: Result, attack: Attack, max_probe_s: float) -> None:
    for name, reading in result.probes.items():
        if reading.worst_s > max_probe_s:
            result.failures.append(
                f"a probe of '{name}' took {reading.worst_s:.3f} s, allowed are {max_probe_s:.3f} s"
            )
        if reading.failures:
            result.failures.append(f"{reading.failures} probes of '{name}' failed")
    if result.busy_s > MAX_BUSY_S:
        result.failures.append(
            f"the event loop was busy for {result.busy_s:.3f} s, allowed are {MAX_BUSY_S:.3f} s"
        )
    if result.peak_bytes > attack.max_memory_bytes:
        result.failures.append(
            f"memory rose by {result.peak_bytes / MIB:.0f} MiB, "
            f"allowed are {attack.max_memory_bytes / MIB:.0f} MiB"
        )
    result.failures += [f"{what} left behind" for what in result.left]


def _part(text: str) -> tuple[int, int]:
    number, _, count = text.partition("/")
    if not 1 <= int(number) <= int(count):
        raise ValueError(text)
    return int(number), int(count)


def main() -> int:
    parser = argparse.ArgumentParser(description="Attack a live server and measure what it costs.")
    parser.add_argument("names", nargs="*", help="attacks to run; all of them by default")
    parser.add_argument("--list", action="store_true", help="print the names and exit")
    parser.add_argument("--max-probe-ms", type=float, default=MAX_PROBE_S * 1000)
    parser.add_argument("--part", type=_part, default=(1, 1), metavar="K/N")
    arguments = parser.parse_args()
    import_attacks()
    most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))  # thousands of connections
    if arguments.list:
        print("\n".join(ATTACKS))
        return 0
    unknown = [name for name in arguments.names if name not in ATTACKS]
    if unknown:
        parser.error(f"unknown attacks: {', '.join(unknown)}; --list prints all")
    results = []
    number, count = arguments.part
    for name in list(arguments.names or ATTACKS)[number - 1 :: count]:
        if not _can_run(ATTACKS[name]):
            print(f"skip {name:34s} needs PyTorch", flush=True)
            continue
        results.append(run_attack(ATTACKS[name], arguments.max_probe_ms / 1000))
        print(results[-1].row(), flush=True)
        for failure in results[-1].failures:
            print(f"       {failure}", flush=True)
    return int(any(result.failures for result in results))


if __name__ == "__main__":
    sys.exit(main())
