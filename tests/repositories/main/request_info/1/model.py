"""Answers with what the model can see of its request: id, parameters, flags, timeout, requested
outputs."""

import json

import numpy as np
import triton_python_backend_utils as pb_utils


def facts(request):
    parameters = json.loads(request.parameters() or "{}")
    return [
        f"id={request.request_id()}",
        f"parameters={json.dumps(parameters, sort_keys=True)}",
        f"correlation={request.correlation_id()!r}",
        f"flags={request.flags()}",
        f"timeout={request.timeout()}",
        f"outputs={sorted(request.requested_output_names())}",
        f"cancelled={request.is_cancelled()}",
    ]


class TritonPythonModel:
    def execute(self, requests):
        responses = []
        for request in requests:
            count = np.array([len(request.inputs()[0].as_numpy())], np.int32)
            outputs = [
                pb_utils.Tensor("FACTS", np.array(facts(request), dtype=np.object_)),
                pb_utils.Tensor("COUNT", count),
            ]
            responses.append(pb_utils.InferenceResponse(outputs))
        return responses
