import os
import sys

sys.path.insert(
    0, os.path.join(os.path.dirname(os.path.abspath(__file__)), *[".."] * 4, "scenarios", "models")
)
from recorder import Plain


class TritonPythonModel(Plain):
    pass
