"""Checks that memory does not grow over a million small requests and 10,000 of 1 MiB (`make soak`).

    python -m bench.memory [--small 1000000] [--large 10000]

The memory of the process tree is read after each tenth of the requests. It is flat if the last
reading is at most 2 % or 8 MiB above the first. The exit code is 1 if it is not flat.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import grpc
from tritonclient.grpc import service_pb2, service_pb2_grpc

from bench.process_tree import MIB, memory_bytes
from bench.raw_client import large_request, send_many, small_request
from tests.server.harness import Server, naiad

REPOSITORY = str(Path(__file__).parent / "repository")
STEPS = 10
ALLOWED_RATIO, ALLOWED_BYTES = 1.02, 8 * MIB


def grpc_request(model: str, shape: list[int], names: list[str]) -> Any:
    size = 4
    for dimension in shape:
        size *= dimension
    inputs = [
        service_pb2.ModelInferRequest.InferInputTensor(name=name, datatype="FP32", shape=shape)
        for name in names
    ]
    return service_pb2.ModelInferRequest(
        model_name=model, inputs=inputs, raw_input_contents=[bytes(size)] * len(names)
    )


def send_grpc(server: Server, message: Any, count: int, in_flight: int) -> None:
    options = [("grpc.max_receive_message_length", -1), ("grpc.max_send_message_length", -1)]
    with grpc.insecure_channel(server.grpc, options=options) as channel:
        stub = service_pb2_grpc.GRPCInferenceServiceStub(channel)
        waiting = [stub.ModelInfer.future(message) for _ in range(min(in_flight, count))]
        for number in range(count):
            waiting[number % in_flight].result()
            if number + in_flight < count:
                waiting[number % in_flight] = stub.ModelInfer.future(message)


def soak(server: Server, what: str, count: int, send: Callable[[int], None]) -> bool:
    """Sends the requests in tenths and prints a row of the table. Returns True if memory is
    flat."""
    readings = []
    for _ in range(STEPS):
        send(count // STEPS)
        readings.append(memory_bytes(server.pid))
    first, last = readings[0], readings[-1]
    is_flat = last["Pss"] <= max(first["Pss"] * ALLOWED_RATIO, first["Pss"] + ALLOWED_BYTES)
    top = max(reading["Pss"] for reading in readings)
    cells = [
        f"{value / MIB:.1f}"
        for value in (first["Pss"], top, last["Pss"], first["Rss"], last["Rss"])
    ]
    print(
        f"| {what} | {count:,} | {' | '.join(cells)} | {'yes' if is_flat else 'NO'} |", flush=True
    )
    return is_flat


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--small", type=int, default=1_000_000)
    parser.add_argument("--large", type=int, default=10_000)
    chosen = parser.parse_args()
    small, large = small_request(), large_request(MIB)
    small_message = grpc_request("add_sub", [1, 16], ["INPUT0", "INPUT1"])
    large_message = grpc_request("identity_fp32", [MIB // 4], ["INPUT0"])
    print(
        "| requests | count | PSS after 1/10 | PSS max | PSS end | RSS after 1/10 | RSS end "
        "| flat |"
    )
    print("|---|---:|---:|---:|---:|---:|---:|---|")
    with naiad([REPOSITORY]) as server:
        results = [
            soak(
                server,
                "HTTP JSON, small",
                chosen.small * 8 // 10,
                lambda n: send_many(server.http_port, small, n),
            ),
            soak(
                server,
                "gRPC, small",
                chosen.small * 2 // 10,
                lambda n: send_grpc(server, small_message, n, 64),
            ),
            soak(
                server,
                "HTTP binary, 1 MiB",
                chosen.large // 2,
                lambda n: send_many(server.http_port, large, n, depth=1),
            ),
            soak(
                server,
                "gRPC, 1 MiB",
                chosen.large // 2,
                lambda n: send_grpc(server, large_message, n, 4),
            ),
        ]
    return 0 if all(results) else 1


if __name__ == "__main__":
    sys.exit(main())
