"""Writes a megabyte to stdout and to stderr at each request."""

import sys

import numpy as np
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def execute(self, requests):
        for stream in (sys.stdout, sys.stderr):
            stream.write(("x" * 1023 + "\n") * 1024)
            stream.flush()
        return [
            pb_utils.InferenceResponse([pb_utils.Tensor("OUT", np.ones(1, np.int32))])
            for _ in requests
        ]
