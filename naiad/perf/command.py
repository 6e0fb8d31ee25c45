"""The command `naiad perf`."""

from __future__ import annotations

from typing import Any

from naiad.perf.options import PerfOptions, check_options
from naiad.tools.options_command import OptionsCommand

HELP = """Measure a model under load. Accepts perf_analyzer's flags.

\b
  naiad perf -m add_sub --concurrency-range 1:16:5
  naiad perf -m add_sub -i grpc -u localhost:8001 --request-rate-range 1000 --percentile 99
  naiad perf -m llama --service-kind openai --streaming --isl 512 --osl 128 --concurrency-range 8
"""


def run_perf(values: dict[str, Any]) -> int:
    options = check_options(PerfOptions(**values))
    from naiad.perf.session import run

    return run(options)


command = OptionsCommand("perf", PerfOptions, run_perf, HELP, "-m MODEL [options]")
