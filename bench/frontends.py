"""Requests per second and CPU time per request with 1, 2, 4 and 8 frontend processes.

    python -m bench.frontends --frontends 1 2 4 8 --instances 8 --connections 256 --wrk PATH
    python -m bench.frontends --plot ROWS.jsonl > docs/images/frontends.svg

Each row is a server of its own, with `add_sub` and dynamic batching, under wrk. `scheduler` is how
busy the server process was, `frontends` and `workers` are how many CPUs those processes used
together. `few_connections` repeats it with a sixteenth of the connections.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from tests.server.harness import Server, free_ports, naiad_environment, port_flags

LUA = Path(__file__).parent / "infer.lua"
MODEL = Path(__file__).parent / "repository" / "add_sub"


def repository(folder: Path, instances: int) -> Path:
    target = folder / "add_sub"
    shutil.copytree(MODEL, target)
    config = target / "config.pbtxt"
    text = re.sub(r"instance_group\s*\[.*?\]\s*$", "", config.read_text(), flags=re.DOTALL)
    if "dynamic_batching" not in text:
        text += "\ndynamic_batching { }\n"
    config.write_text(f"{text}\ninstance_group [ {{ count: {instances} kind: KIND_CPU }} ]\n")
    return folder


def tree(pid: int) -> dict[int, int]:
    """Process id -> parent, of a process and its descendants."""
    parents: dict[int, int] = {}
    for entry in os.listdir("/proc"):
        if entry.isdigit():
            try:
                fields = Path(f"/proc/{entry}/stat").read_text().rpartition(")")[2].split()
            except OSError:
                continue
            parents[int(entry)] = int(fields[1])
    found = {pid: 0}
    while True:
        more = {child: parent for child, parent in parents.items() if parent in found} | found
        if len(more) == len(found):
            return found
        found = more


def cpu_s(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def kinds(pid: int) -> dict[int, str]:
    """Frontends have the command line of the server; workers and templates have their own."""
    own = Path(f"/proc/{pid}/cmdline").read_bytes()
    names = {}
    for process in tree(pid):
        is_same = Path(f"/proc/{process}/cmdline").read_bytes() == own
        names[process] = "scheduler" if process == pid else "frontends" if is_same else "workers"
    return names


def wrk(options: argparse.Namespace, port: int, connections: int, seconds: float) -> dict[str, Any]:
    text = subprocess.run(
        [options.wrk, f"-t{options.threads}", f"-c{connections}", f"-d{int(seconds)}s", "--latency",
         "-s", str(LUA), f"http://127.0.0.1:{port}"],
        capture_output=True, text=True, check=True,
    ).stdout  # fmt: skip
    rate, p50, p99 = (
        re.search(pattern, text)[1]  # type: ignore[index]
        for pattern in (r"Requests/sec:\s+([\d.]+)", r"50%\s+(\S+)", r"99%\s+(\S+)")
    )
    errors = [line.strip() for line in text.splitlines() if "Non-2xx" in line or "errors" in line]
    return {"requests_per_s": round(float(rate)), "p50": p50, "p99": p99, "errors": errors}


def measure(frontends: int, folder: Path, options: argparse.Namespace) -> dict[str, Any]:
    ports = free_ports()
    command = [
        sys.executable, "-c", "import sys; from naiad.cli.main import main; sys.exit(main())",
        "serve", f"--model-repository={folder}", *port_flags(ports),
        f"--frontend-processes={frontends}",
    ]  # fmt: skip
    server = Server(command, ports, naiad_environment())
    try:
        server.wait_started()
        wrk(options, server.http_port, options.connections, 1)
        names = kinds(server.pid)
        before = {pid: cpu_s(pid) for pid in names}
        start_s = time.monotonic()
        full = wrk(options, server.http_port, options.connections, options.seconds)
        took_s = time.monotonic() - start_s
        used = {"scheduler": 0.0, "frontends": 0.0, "workers": 0.0}
        for pid, name in names.items():
            used[name] += cpu_s(pid) - before[pid]
        total_us = sum(used.values()) / took_s / full["requests_per_s"] * 1e6
        few = wrk(options, server.http_port, max(options.connections // 16, options.threads), 2)
        return {
            "frontends": frontends,
            **full,
            "cpu_us_per_request": round(total_us, 1),
            "busy": {name: round(used_s / took_s, 2) for name, used_s in used.items()},
            "few_connections": few,
        }
    finally:
        server.stop()


def plot(rows: list[dict[str, Any]]) -> str:
    """Requests per second over the number of frontends, as SVG."""
    width, height, left, bottom = 480, 280, 70, 240
    top_rate = -(-max(row["requests_per_s"] for row in rows) // 20_000) * 20_000
    rows = sorted(rows, key=lambda row: row["frontends"])
    step = (width - left - 40) / max(len(rows) - 1, 1)

    def point(index: int, rate: float) -> tuple[float, float]:
        return left + 10 + index * step, bottom - rate / top_rate * (bottom - 20)

    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" '
        'font-family="sans-serif" font-size="12">',
        f'<rect width="{width}" height="{height}" fill="white"/>',
    ]
    for rate in range(0, top_rate + 1, 20_000):
        y = point(0, rate)[1]
        parts.append(f'<line x1="{left}" x2="{width - 20}" y1="{y}" y2="{y}" stroke="#ddd"/>')
        parts.append(f'<text x="{left - 8}" y="{y + 4}" text-anchor="end">{rate:,}</text>')
    points = [point(index, row["requests_per_s"]) for index, row in enumerate(rows)]
    line = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
    parts.append(f'<polyline points="{line}" fill="none" stroke="#07c" stroke-width="2"/>')
    for row, (x, y) in zip(rows, points, strict=True):
        parts.append(f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3" fill="#07c"/>')
        parts.append(
            f'<text x="{x:.1f}" y="{y - 8:.1f}" text-anchor="middle">'
            f"{row['requests_per_s']:,}</text>"
        )
        parts.append(
            f'<text x="{x:.1f}" y="{bottom + 18}" text-anchor="middle">{row["frontends"]}</text>'
        )
    parts.append(f'<text x="{width / 2}" y="{height - 6}" text-anchor="middle">frontends</text>')
    return "\n".join([*parts, "</svg>"])


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--plot", type=Path)
    parser.add_argument("--frontends", nargs="+", type=int, default=[1, 2, 4, 8])
    parser.add_argument("--instances", type=int, default=8)
    parser.add_argument("--connections", type=int, default=256)
    parser.add_argument("--seconds", type=float, default=4)
    parser.add_argument("--threads", type=int, default=4)
    parser.add_argument("--wrk", default="wrk")
    options = parser.parse_args()
    if options.plot is not None:
        print(plot([json.loads(line) for line in options.plot.read_text().splitlines()]))
        return
    with tempfile.TemporaryDirectory() as name:
        folder = repository(Path(name), options.instances)
        for frontends in options.frontends:
            print(json.dumps(measure(frontends, folder, options)), flush=True)


if __name__ == "__main__":
    main()
