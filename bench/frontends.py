"""Requests per second and CPU time per request with 1, 2, 4 and 8 frontend processes.

    python -m bench.frontends --frontends 1 2 4 8 --instances 8 --connections 256 --wrk PATH
    python -m bench.frontends --model onnx --half --perf-analyzer PATH --triton COMMAND
    python -m bench.frontends --plot add_sub.jsonl onnx.jsonl > docs/images/frontends.svg

Each row is a server of its own, with `add_sub` or a small ONNX model and dynamic batching, under
wrk. `scheduler` is how busy the server process was, `frontends` and `workers` are how many CPUs
those processes used together. `fewer` repeats it with a quarter and a sixteenth of the connections.
`half` (--half) is the latency at half of the row's own rate: the connections pause between their
requests. `perf_analyzer_http` and `_grpc` are what several perf_analyzers at once get, by the
server's count, and how many CPUs they used themselves; --clients says how many perf_analyzers with
how many threads and concurrent requests each, such as 4x4x64.
--triton adds a row for the genuine Triton, whose command gets {repository}, {http}, {grpc} and
{metrics} filled in. Commands may begin with `env NAME=VALUE`.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from tests.server.harness import Server, free_ports, naiad_environment, port_flags

LUA = Path(__file__).parent / "infer.lua"
PAUSE_LUA = """
local number = 0
function setup(thread)
  number = number + 1
  thread:set("seed", number)
end
function init(args)
  math.randomseed(seed)
end
function delay()
  return math.floor(math.random() * 2 * {mean_ms} + 0.5)
end
"""
"""Each connection pauses for a random time before each request."""
ONNX_CONFIG = """
backend: "onnxruntime"
max_batch_size: 64
input [ {{ name: "x" data_type: TYPE_FP32 dims: [ 16 ] }} ]
output [ {{ name: "y" data_type: TYPE_FP32 dims: [ 8 ] }} ]
dynamic_batching {{ }}
parameters {{ key: "intra_op_thread_count" value {{ string_value: "1" }} }}
instance_group [ {{ count: {instances} kind: KIND_CPU }} ]
"""
ONNX_BODY = json.dumps(
    {"inputs": [{"name": "x", "datatype": "FP32", "shape": [1, 16], "data": list(range(16))}]}
)
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


def onnx_repository(folder: Path, instances: int) -> Path:
    from bench.backends import tiny_model

    (folder / "tiny" / "1").mkdir(parents=True)
    tiny_model(folder / "tiny" / "1" / "model.onnx")
    (folder / "tiny" / "config.pbtxt").write_text(ONNX_CONFIG.format(instances=instances))
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
        try:
            is_same = Path(f"/proc/{process}/cmdline").read_bytes() == own
        except OSError:
            continue
        names[process] = "scheduler" if process == pid else "frontends" if is_same else "workers"
    return names


def script(options: argparse.Namespace, mean_ms: float | None = None) -> str:
    """The Lua script of wrk: the request, and the pauses between requests."""
    text = LUA.read_text()
    if options.model == "onnx":
        text += f"\nwrk.path = '/v2/models/tiny/infer'\nwrk.body = '{ONNX_BODY}'\n"
    return text if mean_ms is None else text + PAUSE_LUA.format(mean_ms=mean_ms)


def wrk(
    options: argparse.Namespace,
    port: int,
    connections: int,
    seconds: float,
    mean_ms: float | None = None,
) -> dict[str, Any]:
    with tempfile.NamedTemporaryFile("w", suffix=".lua") as lua:
        lua.write(script(options, mean_ms))
        lua.flush()
        text = subprocess.run(
            [*shlex.split(options.wrk), f"-t{options.threads}", f"-c{connections}",
             f"-d{max(int(seconds), 1)}s", "--latency", "-s", lua.name, f"http://127.0.0.1:{port}"],
            capture_output=True, text=True, check=True,
        ).stdout  # fmt: skip
    rate, p50, p99 = (
        re.search(pattern, text, re.MULTILINE)[1]  # type: ignore[index]
        for pattern in (r"Requests/sec:\s+([\d.]+)", r"^\s+50%\s+(\S+)", r"^\s+99%\s+(\S+)")
    )
    errors = [line.strip() for line in text.splitlines() if "Non-2xx" in line or "errors" in line]
    return {"requests_per_s": round(float(rate)), "p50": p50, "p99": p99, "errors": errors}


def half_load(options: argparse.Namespace, port: int, full_rate: float) -> dict[str, Any]:
    """The latency at half of the rate. The first two runs find the pause that gives it."""
    connections = options.connections
    target = full_rate / 2
    mean_ms = max(connections / target * 1000 - 1, 0.0)
    for _ in range(2):
        rate = wrk(options, port, connections, 1, mean_ms)["requests_per_s"]
        mean_ms = max(mean_ms + connections * 1000 * (1 / target - 1 / rate), 0.0)
    return wrk(options, port, connections, options.seconds, mean_ms)


def perf_analyzers(
    options: argparse.Namespace, server: Server, protocol: str, setting: str
) -> dict[str, Any]:
    """Several perf_analyzers at once. The server counts, because their own windows differ."""
    name = "tiny" if options.model == "onnx" else "add_sub"
    processes, threads, concurrency = setting.split("x")
    command = [
        *shlex.split(options.perf_analyzer), "-m", name, "-i", protocol,
        "-u", server.grpc if protocol == "grpc" else server.http, "--async",
        "--max-threads", threads, "--concurrency-range", concurrency, "-p", "10000",
    ]  # fmt: skip
    clients = [
        subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        for _ in range(int(processes))
    ]
    try:
        time.sleep(2)
        before, start_s = success_count(server, name), time.monotonic()
        before_cpu_s = sum(cpu_s(client.pid) for client in clients)
        time.sleep(options.seconds)
        after, took_s = success_count(server, name), time.monotonic() - start_s
        used_cpus = (sum(cpu_s(client.pid) for client in clients) - before_cpu_s) / took_s
        num_running = sum(client.poll() is None for client in clients)
    finally:
        for client in clients:
            client.kill()
            client.wait()
    return {
        "inferences_per_s": round((after - before) / took_s),
        "clients": num_running,
        "client_cpus": round(used_cpus, 2),
    }


def success_count(server: Server, name: str) -> int:
    body = json.loads(server.get(f"/v2/models/{name}/stats")[1])
    return int(body["model_stats"][0]["inference_stats"]["success"]["count"])


def naiad_command(frontends: int, folder: Path, ports: tuple[int, int, int]) -> list[str]:
    return [
        sys.executable, "-c", "import sys; from naiad.cli.main import main; sys.exit(main())",
        "serve", f"--model-repository={folder}", *port_flags(ports),
        f"--frontend-processes={frontends}",
    ]  # fmt: skip


def triton_command(command: str, folder: Path, ports: tuple[int, int, int]) -> list[str]:
    http, grpc, metrics = ports
    return shlex.split(command.format(repository=folder, http=http, grpc=grpc, metrics=metrics))


def measure(frontends: int, folder: Path, options: argparse.Namespace) -> dict[str, Any]:
    """0 frontends is the genuine Triton."""
    ports = free_ports()
    if frontends:
        command = naiad_command(frontends, folder, ports)
    else:
        command = triton_command(options.triton, folder, ports)
    server = Server(command, ports, naiad_environment() if frontends else None)
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
        row = {
            "frontends": frontends or "triton",
            **full,
            "cpu_us_per_request": round(total_us, 1),
            "busy": {name: round(used_s / took_s, 2) for name, used_s in used.items()},
        }
        row["fewer"] = {
            count: wrk(options, server.http_port, max(count, options.threads), 2)
            for count in (options.connections // 4, options.connections // 16)
        }
        if options.half:
            row["half"] = half_load(options, server.http_port, full["requests_per_s"])
        if options.perf_analyzer:
            for protocol in ("http", "grpc"):
                row[f"perf_analyzer_{protocol}"] = {
                    setting: perf_analyzers(options, server, protocol, setting)
                    for setting in options.clients
                }
        return row
    finally:
        server.stop()


COLORS = ("#07c", "#c50", "#283")


def plot(curves: dict[str, list[dict[str, Any]]]) -> str:
    """Requests per second over the number of frontends, as SVG. One line per name."""
    width, height, left, bottom = 480, 280, 70, 240
    kept = {
        name: sorted(
            (row for row in rows if row["frontends"] != "triton"), key=lambda row: row["frontends"]
        )
        for name, rows in curves.items()
    }
    numbers = sorted({row["frontends"] for rows in kept.values() for row in rows})
    highest = max(row["requests_per_s"] for rows in kept.values() for row in rows)
    top_rate = -(-highest // 20_000) * 20_000
    step = (width - left - 40) / max(len(numbers) - 1, 1)

    def point(number: int, rate: float) -> tuple[float, float]:
        x = left + 10 + numbers.index(number) * step
        return x, bottom - rate / top_rate * (bottom - 20)

    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" '
        'font-family="sans-serif" font-size="12">',
        f'<rect width="{width}" height="{height}" fill="white"/>',
    ]
    for rate in range(0, top_rate + 1, 20_000):
        y = point(numbers[0], rate)[1]
        parts.append(f'<line x1="{left}" x2="{width - 20}" y1="{y}" y2="{y}" stroke="#ddd"/>')
        parts.append(f'<text x="{left - 8}" y="{y + 4}" text-anchor="end">{rate:,}</text>')
    for (name, rows), color in zip(kept.items(), COLORS, strict=False):
        points = [point(row["frontends"], row["requests_per_s"]) for row in rows]
        line = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
        parts.append(f'<polyline points="{line}" fill="none" stroke="{color}" stroke-width="2"/>')
        for row, (x, y) in zip(rows, points, strict=True):
            parts.append(f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3" fill="{color}"/>')
            parts.append(
                f'<text x="{x:.1f}" y="{y - 8:.1f}" text-anchor="middle">'
                f"{row['requests_per_s']:,}</text>"
            )
        x, y = points[-1]
        parts.append(
            f'<text x="{x:.1f}" y="{y + 18:.1f}" text-anchor="end" fill="{color}">{name}</text>'
        )
    for number in numbers:
        x, _ = point(number, 0)
        parts.append(f'<text x="{x:.1f}" y="{bottom + 18}" text-anchor="middle">{number}</text>')
    parts.append(f'<text x="{width / 2}" y="{height - 6}" text-anchor="middle">frontends</text>')
    return "\n".join([*parts, "</svg>"])


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--plot", type=Path, nargs="+")
    parser.add_argument("--frontends", nargs="+", type=int, default=[1, 2, 4, 8])
    parser.add_argument("--instances", type=int, default=8)
    parser.add_argument("--connections", type=int, default=256)
    parser.add_argument("--seconds", type=float, default=4)
    parser.add_argument("--threads", type=int, default=4)
    parser.add_argument("--wrk", default="wrk")
    parser.add_argument("--model", choices=["add_sub", "onnx"], default="add_sub")
    parser.add_argument("--half", action="store_true")
    parser.add_argument("--perf-analyzer", default="")
    parser.add_argument("--clients", nargs="+", default=["4x4x64", "8x1x32"])
    parser.add_argument("--triton", default="")
    options = parser.parse_args()
    if options.plot is not None:
        curves = {
            path.stem: [json.loads(line) for line in path.read_text().splitlines()]
            for path in options.plot
        }
        print(plot(curves))
        return
    with tempfile.TemporaryDirectory() as name:
        make = onnx_repository if options.model == "onnx" else repository
        folder = make(Path(name), options.instances)
        for frontends in [*([0] if options.triton else []), *options.frontends]:
            print(json.dumps(measure(frontends, folder, options)), flush=True)


if __name__ == "__main__":
    main()
