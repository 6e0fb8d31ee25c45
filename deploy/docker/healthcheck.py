"""Exits with 0 if the server of this container is alive.

The port is that of the container's first process: its --http-port, NAIAD_HTTP_PORT, or 8000.
"""

from __future__ import annotations

import os
import ssl
import sys
import urllib.error
import urllib.request
from pathlib import Path


def http_port(arguments: list[str], environ: dict[str, str]) -> str:
    for index, argument in enumerate(arguments):
        if argument.startswith("--http-port="):
            return argument.partition("=")[2]
        if argument == "--http-port" and index + 1 < len(arguments):
            return arguments[index + 1]
    return environ.get("NAIAD_HTTP_PORT", "8000")


def is_alive(port: str) -> bool:
    # The certificate names the service, not the loopback address.
    context = ssl._create_unverified_context()
    for scheme in ("http", "https"):
        url = f"{scheme}://127.0.0.1:{port}/v2/health/live"
        try:
            with urllib.request.urlopen(url, timeout=3, context=context) as response:
                return bool(response.status == 200)
        except urllib.error.HTTPError as error:
            # A key or a client certificate is required: the server is there.
            return error.code in (401, 403)
        except OSError:
            continue
    return False


if __name__ == "__main__":
    command = Path("/proc/1/cmdline").read_bytes().decode().split("\0")
    sys.exit(0 if is_alive(http_port(command, dict(os.environ))) else 1)
