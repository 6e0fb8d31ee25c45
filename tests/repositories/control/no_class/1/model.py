"""A module without TritonPythonModel."""

ANSWER = 42
