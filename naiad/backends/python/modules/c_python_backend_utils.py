"""What `import c_python_backend_utils` finds in processes that a model starts itself: this folder
is on their sys.path.

In the worker the name is registered without a file (naiad.backends.python.pb_utils.register).
"""

from naiad.backends.python.pb_utils import *  # noqa: F403
