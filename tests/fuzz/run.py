"""Fuzzes the targets one after another and prints a row for each (`make fuzz`).

    python -m tests.fuzz.run [NAMES] [--seconds 600] [--seed 1]

libFuzzer guides targets in this process (guided.py); live targets get random mutations of their
seeds. An input that shows a defect is saved in build/fuzz/NAME/crashes, and its path is printed.
`python -m tests.fuzz.run NAME --input FILE` runs it again. When the defect is mended, the file goes
to tests/fuzz/found/NAME, where `make test` replays it. The exit code is 1 if something was found.
"""

from __future__ import annotations

import argparse
import hashlib
import random
import re
import subprocess
import sys
import time
from collections import deque
from pathlib import Path

from tests.fuzz.target import Target, load_targets

MAX_CASE_S = 10
MAX_MEMORY_MIB = 2048
MAX_INPUT_BYTES = 16 * 1024
KEPT_CASES = 50
"""A live server may fail some cases after the one that is to blame."""
WORK = Path("build/fuzz")


def run_guided(target: Target, seconds: int, seed: int) -> tuple[int, str, bool]:
    """Returns the number of cases, a remark and True if nothing was found."""
    corpus, crashes = WORK / target.name / "corpus", WORK / target.name / "crashes"
    for folder in (corpus, crashes):
        folder.mkdir(parents=True, exist_ok=True)
    for data in (*target.seeds(), *target.found()):
        (corpus / hashlib.sha1(data).hexdigest()).write_bytes(data)
    command = [
        sys.executable,
        "-m",
        "tests.fuzz.guided",
        target.name,
        f"-max_total_time={seconds}",
        f"-timeout={MAX_CASE_S}",
        f"-rss_limit_mb={MAX_MEMORY_MIB}",
        f"-max_len={MAX_INPUT_BYTES}",
        f"-seed={seed}",
        f"-artifact_prefix={crashes}/",
        "-print_final_stats=1",
        "-verbosity=1",
        str(corpus),
    ]
    before = set(crashes.iterdir())
    with (WORK / target.name / "log.txt").open("w") as log:
        code = subprocess.run(command, stdout=log, stderr=subprocess.STDOUT, check=False).returncode
    text = (WORK / target.name / "log.txt").read_text(errors="replace")
    cases = re.search(r"number_of_executed_units:\s*(\d+)", text)
    edges = re.findall(r"cov: (\d+)", text)
    new = sorted(str(path) for path in set(crashes.iterdir()) - before)
    remark = f"{edges[-1] if edges else 0} places of the code; {' '.join(new) or 'nothing found'}"
    if code and not new:
        remark = f"the fuzzer exited with {code}: {WORK / target.name / 'log.txt'}"
    return int(cases[1]) if cases else 0, remark, code == 0 and not new


def run_live(target: Target, seconds: int, seed: int) -> tuple[int, str, bool]:
    crashes = WORK / target.name / "crashes"
    crashes.mkdir(parents=True, exist_ok=True)
    chance = random.Random(seed)
    seeds = target.seeds()
    recent: deque[bytes] = deque(maxlen=KEPT_CASES)
    num_cases = 0
    end_s = time.monotonic() + seconds
    while time.monotonic() < end_s:
        data = target.mutated(chance.choice(seeds), chance.choice(seeds), chance)
        recent.append(data)
        num_cases += 1
        try:
            target.run(data)
        except Exception as error:
            folder = crashes / f"{seed}-{num_cases}"
            folder.mkdir(exist_ok=True)
            for number, case in enumerate(recent):
                (folder / f"{number:02}").write_bytes(case)
            return num_cases, f"{folder}: {type(error).__name__}: {error}", False
    return num_cases, "nothing found", True


def main() -> int:
    targets = load_targets()
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("names", nargs="*", metavar="NAME", help=", ".join(targets))
    parser.add_argument("--seconds", type=int, default=600, help="time for each target")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--input", type=Path, help="run this one input and show what happens")
    chosen = parser.parse_args()
    unknown = [name for name in chosen.names if name not in targets]
    if unknown:
        parser.error(f"no target is called {unknown[0]}; there are {', '.join(targets)}")
    if chosen.input:
        targets[chosen.names[0]].run(chosen.input.read_bytes())
        return 0
    is_clean = True
    print("| target | seconds | cases | result |\n|---|---:|---:|---|", flush=True)
    for name in chosen.names or targets:
        target = targets[name]
        missing = target.missing_packages()
        if missing:
            print(f"| {name} | 0 | 0 | skipped: needs {', '.join(missing)} |", flush=True)
            continue
        run = run_live if target.is_live else run_guided
        start_s = time.monotonic()
        num_cases, remark, is_good = run(target, chosen.seconds, chosen.seed)
        is_clean = is_clean and is_good
        print(
            f"| {name} | {time.monotonic() - start_s:.0f} | {num_cases:,} | {remark} |", flush=True
        )
    return 0 if is_clean else 1


if __name__ == "__main__":
    sys.exit(main())
