"""Time to first token of one API key while another one floods a language model.

In:  a running server with keys, e.g. `naiad serve --model smollm2 --api-key-file keys.json`. Out:
     the median time of the quiet key alone and next to the flood, and their ratio.
Use: `python -m bench.key_fairness --url localhost:8000 --model NAME --flood KEY --quiet KEY`.
"""

from __future__ import annotations

import argparse
import http.client
import json
import statistics
import threading
import time

PROMPT = "Write one sentence about the sea."


def stream(url: str, model: str, key: str, max_tokens: int, is_over: threading.Event) -> float:
    """Returns the seconds until the first event."""
    connection = http.client.HTTPConnection(url, timeout=600)
    body = {
        "model": model,
        "prompt": PROMPT,
        "max_tokens": max_tokens,
        "stream": True,
        "ignore_eos": True,
    }
    headers = {"authorization": f"Bearer {key}", "content-type": "application/json"}
    start = time.monotonic()
    try:
        connection.request("POST", "/v1/completions", json.dumps(body), headers)
        response = connection.getresponse()
        if response.status != 200:
            raise SystemExit(f"{response.status}: {response.read().decode()}")
        response.readline()
        first_s = time.monotonic() - start
        while response.readline() and not is_over.is_set():
            pass
        return first_s
    finally:
        connection.close()


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--url", default="localhost:8000")
    parser.add_argument("--model", required=True)
    parser.add_argument("--flood", required=True, help="the key that keeps many requests open")
    parser.add_argument("--quiet", required=True, help="the key that sends one at a time")
    parser.add_argument("--clients", type=int, default=64)
    parser.add_argument("--count", type=int, default=15)
    options = parser.parse_args()
    is_over = threading.Event()

    def flood() -> None:
        while not is_over.is_set():
            stream(options.url, options.model, options.flood, 200, is_over)

    def median_ms() -> float:
        times = [
            stream(options.url, options.model, options.quiet, 4, threading.Event())
            for _ in range(options.count)
        ]
        return 1000 * statistics.median(times)

    median_ms()
    alone_ms = median_ms()
    threads = [threading.Thread(target=flood) for _ in range(options.clients)]
    for thread in threads:
        thread.start()
    time.sleep(2)
    crowded_ms = median_ms()
    is_over.set()
    for thread in threads:
        thread.join()
    ratio = crowded_ms / alone_ms
    print(f"alone {alone_ms:.1f} ms, next to the flood {crowded_ms:.1f} ms: {ratio:.2f}x")


if __name__ == "__main__":
    main()
