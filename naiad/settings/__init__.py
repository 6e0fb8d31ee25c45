"""The options of the server: declared in settings.py, read from command line, environment and file
by resolve.py."""

from naiad.settings.latency import LatencyMetrics, latency_metrics
from naiad.settings.option import OptionError
from naiad.settings.settings import Settings

__all__ = ["LatencyMetrics", "OptionError", "Settings", "latency_metrics"]
