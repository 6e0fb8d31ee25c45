"""Answers with a parameter of its config, which a load request can override."""

import json

import numpy as np
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def initialize(self, args):
        config = json.loads(args["model_config"])
        self.word = np.array([config["parameters"]["greeting"]["string_value"]], dtype=np.object_)

    def execute(self, requests):
        return [pb_utils.InferenceResponse([pb_utils.Tensor("WORD", self.word)]) for _ in requests]
