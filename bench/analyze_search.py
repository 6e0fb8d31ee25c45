"""Do the quick and the Optuna search find what brute force finds, with a third of its measurements?

    python -m bench.analyze_search                                   everything; prints a markdown table
    python -m bench.analyze_search --keep DIR --models sleeper       goes on from what is in DIR; --limit 200 stops after so many seconds

`sleeper` has a known best configuration, `digits` is the ONNX digit classifier of the examples.
Each search runs `naiad analyze profile` from nothing. Figures that a search has picked are too good
by chance, brute force's most of all, since it picks among most: so the winners are measured again,
in turn, on one server, and the medians of those are compared. Exit code 1 when a winner is more
than 5% behind brute force's, or a search took more than a third of its measurements.
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
    """Exits when time is up: the same call goes on with what is measured."""
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
            sys.exit(f"{model} {mode}: time is up; call again to go on")
        if code:
            sys.exit(f"{model} {mode}: exit code {code}")
        done.touch()
    found = json.loads((place / "results.json").read_text())[0]
    best = found["ranking"][0]["best"]
    outcome = best["outcomes"][0]
    rate = outcome["figures"]["perf_throughput"]
    return Winner(
        mode,
        len(found["measurements"]),
        outcome["config_name"],
        outcome["values"],
        best["concurrency"],
        rate,
    )


def measured_again(model: str, folder: Path, winners: list[Winner]) -> dict[str, float]:
    """Medians, by mode; all winners are served at once and only one at a time is under load."""
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
    found = {mode: statistics.median(some) for mode, some in rates.items()}
    kept.write_text(json.dumps(found))
    return found


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
        what = (
            ", ".join(
                f"{name.removeprefix('parameters.')} {value}"
                for name, value in winner.values.items()
            )
            or "as it is"
        )
        cells = [
            model,
            winner.mode,
            f"{winner.num_measurements} ({share:.0%})",
            f"{what}, concurrency {winner.concurrency}",
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
    parser.add_argument("--keep", type=Path, help="folder of measurements, to go on from")
    parser.add_argument("--limit", type=float, default=3600.0, help="seconds")
    given = parser.parse_args()
    until = time.monotonic() + given.limit
    folder = given.keep or Path(tempfile.mkdtemp(prefix="naiad-search-"))
    print(
        "| model | search | measurements | winner | infer/s as found | measured again (of brute force's) | within 5% with a third |"
    )
    print("|---|---|---:|---|---:|---:|---|")
    verdicts = [compare_searches(model, folder / model, until) for model in given.models.split(",")]
    sys.exit(0 if all(verdicts) else 1)


if __name__ == "__main__":
    main()
