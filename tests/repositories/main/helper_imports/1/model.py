"""Imports a module and a package beside model.py, a module of the model's folder, and reads a file
by its own path."""

import os

import beside
import numpy as np
import triton_python_backend_utils as pb_utils
from parts.inner import INNER


class TritonPythonModel:
    def initialize(self, args):
        with open(os.path.join(os.path.dirname(os.path.abspath(__file__)), "data.txt")) as data:
            read = data.read().strip()
        folder = os.path.basename(args["model_repository"].rstrip("/"))
        self.words = np.array([beside.BESIDE, INNER, read, folder], dtype=np.object_)

    def execute(self, requests):
        return [
            pb_utils.InferenceResponse([pb_utils.Tensor("WORDS", self.words)]) for _ in requests
        ]
