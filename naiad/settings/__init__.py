"""The options of the server.

They are declared in settings.py. resolve.py reads them from the command line, the environment and
the config file.
"""

from naiad.settings.latency import LatencyMetrics, latency_metrics
from naiad.settings.option import OptionError
from naiad.settings.settings import Settings

__all__ = ["LatencyMetrics", "OptionError", "Settings", "latency_metrics"]
