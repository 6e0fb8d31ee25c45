"""Answers with the arguments of its initialize; the config among them only by what this model needs
of it."""

import json

import numpy as np
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def initialize(self, args):
        config = json.loads(args["model_config"])
        words = [
            f"{key}={args[key]}"
            for key in ("model_name", "model_version", "model_instance_name", "model_instance_kind")
        ]
        words.append(f"device={args['model_instance_device_id']}")
        words.append(f"parameters={json.dumps(config['parameters'], sort_keys=True)}")
        self.words = np.array(words, dtype=np.object_)

    def execute(self, requests):
        return [pb_utils.InferenceResponse([pb_utils.Tensor("ARGS", self.words)]) for _ in requests]
