"""The command `naiad router`."""

from __future__ import annotations

from typing import Any

from naiad.router.options import RouterOptions
from naiad.tools.options_command import OptionsCommand

HELP = """Route requests to many servers: Naiad, Triton or vLLM.

\b
  naiad router --replica http://10.0.0.1:8000,grpc=10.0.0.1:8001 --replica http://10.0.0.2:8000
  naiad router --config fleet.toml --api-key-file keys.json
  curl -s 127.0.0.1:8000/router/replicas
"""


def run_router(values: dict[str, Any]) -> int:
    options = RouterOptions(**values)
    from naiad.router.process import run

    return run(options)


command = OptionsCommand("router", RouterOptions, run_router, HELP)
