"""Compares the quick and the Optuna search with brute force.

    python -m bench.analyze_search
        Runs everything and prints a markdown table.
    python -m bench.analyze_search --keep DIR --models sleeper --limit 200
        Resumes from the measurements in DIR and stops after 200 seconds.

`sleeper` has a known best configuration. `digits` is the ONNX digit classifier of the examples.
Each search runs `naiad analyze profile` from scratch. The figures of a winner are too good by
chance, most of all for brute force, which chooses among the most measurements. So the winners are
measured again, in turn, on one server, and the medians are compared. The exit code is 1 if a winner
is more than 5% slower than that of brute force, or if a search needed more than a third of its
measurements.
"""

from __future__ import annotations

import argparse
import csv
import json
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench.compare import launch
from tests.server.harness import Server, naiad_command, naiad_environment

ROOT = Path(__file__).parents[1]
SOURCES = {
    "sleeper": ROOT / "bench" / "search_repository" / "sleeper",
    "digits": ROOT / "examples" / "repository" / "digits",
}
MODES = ("brute", "quick", "optuna")
SPACE = {
    "sleeper": [
        "--run-config-search-max-instance-count",
        "4",
        "--run-config-search-max-model-batch-size",
        "16",
    ],
    "digits": [
        "--run-config-search-max-instance-count",
        "3",
        "--run-config-search-max-model-batch-size",
        "32",
    ],
}
COMMON = [
    "--run-config-search-max-concurrency",
    "64",
    "--stability-percentage",
    "10",
    "--max-trials",
    "5",
    "--num-configs-per-model",
    "1",
    "--progress",
    "off",
]
INTERVAL_MS = {"sleeper": "100", "digits": "150"}
ROUNDS = 5


@dataclass(frozen=True)
class Winner:
    mode: str
    num_measurements: int
    name: str
    values: dict[str, Any]
    concurrency: int
    infer_per_s: float


def search(model: str, mode: str, folder: Path, until: float) -> Winner:
    """Runs one search. Exits when the time is up; the same call resumes later."""
    repository = folder / "models"
    if not repository.exists():
        shutil.copytree(SOURCES[model], repository / model)
    place = folder / mode
    command = naiad_command(
        "analyze",
        "profile",
        "-m",
        str(repository),
        "--profile-models",
        model,
        *SPACE[model],
        *COMMON,
    )
    command += [
        "--run-config-search-mode",
        mode,
        "--measurement-interval",
        INTERVAL_MS[model],
        "-s",
        str(place),
        "-e",
        str(place),
    ]
    done = place / "done"
    if not done.exists():
        running = subprocess.Popen(command, env=naiad_environment(), stdout=subprocess.DEVNULL)
        try:
            code = running.wait(max(1.0, until - time.monotonic()))
        except subprocess.TimeoutExpired:
            running.terminate()
            running.wait()
            sys.exit(f"{model} {mode}: the time is up; run the same command again to resume")
        if code:
            sys.exit(f"{model} {mode}: exit code {code}")
        done.touch()
    result = json.loads((place / "results.json").read_text())[0]
    best = result["ranking"][0]["best"]
    outcome = best["outcomes"][0]
    rate = outcome["figures"]["perf_throughput"]
    return Winner(
        mode,
        sum(one["stage"] == "search" for one in result["measurements"]),
        outcome["config_name"],
        outcome["values"],
        best["concurrency"],
        rate,
    )


def measured_again(model: str, folder: Path, winners: list[Winner]) -> dict[str, float]:
    """Returns the median throughput by mode. One server serves all winners; only one at a time is
    under load."""
    kept = folder / "again.json"
    if kept.exists():
        return dict(json.loads(kept.read_text()))
    with tempfile.TemporaryDirectory() as place:
        for winner in winners:
            source = folder / winner.mode / "output_model_repository" / winner.name
            target = Path(place) / f"{model}_{winner.mode}"
            shutil.copytree(source if winner.values else folder / "models" / model, target)
            config = target / "config.pbtxt"
            config.write_text(config.read_text().replace(f'name: "{winner.name}"\n', ""))
        server = launch("naiad", place)
        try:
            server.wait_started()
            rates: dict[str, list[float]] = {winner.mode: [] for winner in winners}
            for _ in range(ROUNDS):
                for winner in winners:
                    rates[winner.mode].append(
                        throughput(
                            server, f"{model}_{winner.mode}", winner.concurrency, Path(place)
                        )
                    )
        finally:
            server.stop()
    medians = {mode: statistics.median(some) for mode, some in rates.items()}
    kept.write_text(json.dumps(medians))
    return medians


def throughput(server: Server, model: str, concurrency: int, folder: Path) -> float:
    report = folder / "report.csv"
    flags = [
        "-m",
        model,
        "-i",
        "grpc",
        "-u",
        server.grpc,
        "--concurrency-range",
        str(concurrency),
        "-f",
        str(report),
    ]
    flags += ["-p", "400", "-s", "999", "--max-trials", "3"]
    subprocess.run(
        naiad_command("perf", *flags),
        env=naiad_environment(),
        stdout=subprocess.DEVNULL,
        check=True,
    )
    return float(next(csv.DictReader(report.read_text().splitlines()))["Inferences/Second"])


def compare_searches(model: str, folder: Path, until: float) -> bool:
    winners = [search(model, mode, folder, until) for mode in MODES]
    again = measured_again(model, folder, winners)
    is_good = True
    for winner in winners:
        share, reached = (
            winner.num_measurements / winners[0].num_measurements,
            again[winner.mode] / again["brute"],
        )
        is_met = winner.mode == "brute" or (share <= 1 / 3 and reached >= 0.95)
        is_good = is_good and is_met
        changes = ", ".join(
            f"{name.removeprefix('parameters.')} {value}" for name, value in winner.values.items()
        )
        cells = [
            model,
            winner.mode,
            f"{winner.num_measurements} ({share:.0%})",
            f"{changes or 'default'}, concurrency {winner.concurrency}",
        ]
        cells += [
            f"{winner.infer_per_s:,.0f}",
            f"{again[winner.mode]:,.0f} ({reached:.1%})",
            "" if winner.mode == "brute" else ["NO", "yes"][is_met],
        ]
        print("| " + " | ".join(cells) + " |", flush=True)
    return is_good


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--models", default="sleeper,digits")
    parser.add_argument(
        "--keep", type=Path, help="folder of measurements; a later run with it resumes"
    )
    parser.add_argument("--limit", type=float, default=3600.0, help="maximum time in seconds")
    arguments = parser.parse_args()
    until = time.monotonic() + arguments.limit
    folder = arguments.keep or Path(tempfile.mkdtemp(prefix="naiad-search-"))
    print(
        "| model | search | measurements | winner | infer/s in the search "
        "| infer/s measured again (of brute force) | within 5% with a third |"
    )
    print("|---|---|---:|---|---:|---:|---|")
    verdicts = [
        compare_searches(model, folder / model, until) for model in arguments.models.split(",")
    ]
    sys.exit(0 if all(verdicts) else 1)


if __name__ == "__main__":
    main()
