"""The module `c_python_backend_utils` in processes that a model starts.

This folder is on their sys.path. The worker registers the name without a file
(naiad.backends.python.pb_utils.register).
"""

from naiad.backends.python.pb_utils import *  # noqa: F403
