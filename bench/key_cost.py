"""What API keys cost `add_sub` with 16 concurrent requests: no keys, and 1,000 in the file.

In:  the number of rounds. Out: requests per second of both servers by perf_analyzer over HTTP and
     gRPC, in turns, and their ratio. The goal is at least 0.97. The client shares the cores and
     needs time for a header too, so the server without keys is measured with the header as well:
     the first ratio is what a user sees who turns keys on, the second what the server does for it.
Use: `python -m bench.key_cost [--rounds 5]` (installs the genuine perf_analyzer).
"""

from __future__ import annotations

import argparse
import csv
import statistics
import subprocess
import tempfile
from pathlib import Path

from bench import oracle
from naiad.keys import key_change
from naiad.keys.key import KeyDocument, encode_document, utc_now
from naiad.keys.key_change import NewKey
from tests.server.harness import Server, launch_naiad

NUM_KEYS = 1000
CONCURRENCY = 16
REPOSITORY = Path(__file__).parent / "repository"


def write_keys(path: Path) -> str:
    """Returns one of the keys."""
    document, text, now = KeyDocument(), "", utc_now()
    for number in range(NUM_KEYS):
        issued = key_change.create(document, NewKey(name=f"key-{number}"), now)
        document, text = issued.document, issued.token
    path.write_bytes(encode_document(document))
    path.chmod(0o600)
    return text


def throughput(server: Server, protocol: str, key: str) -> float:
    address = server.http if protocol == "http" else server.grpc
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "report.csv"
        flags = ["-m", "add_sub", "-i", protocol, "-u", address, "-f", str(report)]
        flags += ["--concurrency-range", str(CONCURRENCY), "--measurement-interval", "1000"]
        flags += ["--stability-percentage", "999", "--max-trials", "3"]
        if key:
            flags += ["-H", f"authorization:Bearer {key}"]
        done = subprocess.run(
            oracle.perf_analyzer_command(flags),
            env=oracle.perf_analyzer_environment(),
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
        if not report.exists():
            raise SystemExit(f"perf_analyzer gave no figures: {done.stdout[-500:]}")
        with report.open() as file:
            return float(next(csv.DictReader(file))["Inferences/Second"])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    rounds = parser.parse_args().rounds
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "keys.json"
        key = write_keys(path)
        plain = launch_naiad([str(REPOSITORY)])
        guarded = launch_naiad([str(REPOSITORY)], [f"--api-key-file={path}"])
        try:
            for server in (plain, guarded):
                server.wait_started()
            for protocol in ("http", "grpc"):
                rows = [
                    (
                        throughput(plain, protocol, ""),
                        throughput(plain, protocol, key),
                        throughput(guarded, protocol, key),
                    )
                    for _ in range(rounds)
                ]
                without, header_only, with_keys = map(statistics.median, zip(*rows, strict=True))
                print(
                    f"{protocol}: {without:,.0f} requests/s without keys, {header_only:,.0f} with "
                    f"the header alone, {with_keys:,.0f} with {NUM_KEYS} keys: "
                    f"{with_keys / without:.3f}x in all, {with_keys / header_only:.3f}x by the "
                    "server (goal: at least 0.97x)",
                    flush=True,
                )
        finally:
            plain.stop()
            guarded.stop()


if __name__ == "__main__":
    main()
