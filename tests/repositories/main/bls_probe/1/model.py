"""BLS calls that go wrong: the answer is the error that the caller sees, returned or raised."""

import numpy as np
import triton_python_backend_utils as pb_utils

CODES = (
    "UNKNOWN",
    "INTERNAL",
    "NOT_FOUND",
    "INVALID_ARG",
    "UNAVAILABLE",
    "UNSUPPORTED",
    "ALREADY_EXISTS",
    "CANCELLED",
)
ROW = np.ones((1, 16), np.float32)


def inputs(left=ROW, right=ROW):
    return [pb_utils.Tensor("INPUT0", left), pb_utils.Tensor("INPUT1", right)]


def call(model_name, tensors, outputs, **options):
    return pb_utils.InferenceRequest(
        model_name=model_name, inputs=tensors, requested_output_names=outputs, **options
    ).exec()


CASES = {
    "good": lambda: call("add_sub", inputs(), ["OUTPUT0", "OUTPUT1"]),
    "unknown model": lambda: call("nowhere", inputs(), ["OUTPUT0"]),
    "unknown version": lambda: call("add_sub", inputs(), ["OUTPUT0"], model_version=9),
    "known version": lambda: call(
        "versions_specific",
        [pb_utils.Tensor("ANY", np.ones(1, np.int32))],
        ["VERSION"],
        model_version=1,
    ),
    "missing input": lambda: call("add_sub", inputs()[:1], ["OUTPUT0"]),
    "unknown output": lambda: call("add_sub", inputs(), ["OUTPUT9"]),
    "wrong type": lambda: call("add_sub", inputs(ROW.astype(np.int32)), ["OUTPUT0"]),
    "wrong shape": lambda: call("add_sub", inputs(ROW[:, :3]), ["OUTPUT0"]),
    "failing model": lambda: call(
        "failing", [pb_utils.Tensor("KIND", np.array(["error"], np.object_))], ["OUT"]
    ),
    "decoupled without decoupled=True": lambda: call(
        "repeat", [pb_utils.Tensor("COUNT", np.ones(1, np.int32))], ["INDEX"]
    ),
    "empty model name": lambda: call("", inputs(), ["OUTPUT0"]),
    "empty tensor name": lambda: pb_utils.Tensor("", ROW),
    "correlation id of a wrong type": lambda: call(
        "add_sub", inputs(), ["OUTPUT0"], correlation_id=1.5
    ),
    "parameter key of a wrong type": lambda: call(
        "add_sub", inputs(), ["OUTPUT0"], parameters={1: "a"}
    ),
    "parameter value of a wrong type": lambda: call(
        "add_sub", inputs(), ["OUTPUT0"], parameters={"a": [1]}
    ),
    "is ready": lambda: [pb_utils.is_model_ready(name) for name in ("add_sub", "nowhere")],
    "is version ready": lambda: [
        pb_utils.is_model_ready("versions_specific", version) for version in ("1", "2", "3")
    ],
    "load in mode none": lambda: pb_utils.load_model("add_sub"),
    "unload in mode none": lambda: pb_utils.unload_model("add_sub"),
}


def outcome(case):
    try:
        result = CASES[case]()
    except Exception as error:
        return [f"raised {type(error).__name__}", str(error)]
    if not isinstance(result, pb_utils.InferenceResponse):
        return [str(result)]
    if result.has_error():
        code = next(
            name for name in CODES if result.error().code() == getattr(pb_utils.TritonError, name)
        )
        return ["error", code, result.error().message()]
    return [
        f"{tensor.name()} {tensor.as_numpy().ravel()[:2].tolist()}"
        for tensor in result.output_tensors()
    ]


class TritonPythonModel:
    def execute(self, requests):
        responses = []
        for request in requests:
            case = pb_utils.get_input_tensor_by_name(request, "CASE").as_numpy()[0].decode()
            found = np.array(outcome(case), dtype=np.object_)
            responses.append(pb_utils.InferenceResponse([pb_utils.Tensor("FOUND", found)]))
        return responses
