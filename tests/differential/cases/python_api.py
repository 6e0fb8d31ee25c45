"""What a Python model may pass to `triton_python_backend_utils`, and what it finds in its process:
expressions that the model evaluates."""

from __future__ import annotations

from typing import Any

from tests.differential.case import Case, infer, tensor

EXPRESSIONS = (
    "sys.argv",
    # Text may be bytes.
    "pb_utils.Tensor(b'X', zeros).name()",
    "pb_utils.Tensor('gr\u00fcn'.encode(), zeros).name()",
    "pb_utils.Tensor(b'', zeros)",
    "pb_utils.Tensor(7, zeros)",
    "pb_utils.TritonError(b'gone').message()",
    "pb_utils.TritonError(b'gone', pb_utils.TritonError.NOT_FOUND).message()",
    "pb_utils.InferenceResponse([], pb_utils.TritonError(b'gone')).error().message()",
    "pb_utils.Logger.log(b'a message')",
    "pb_utils.Logger.log(b'a message', pb_utils.Logger.WARNING)",
    "pb_utils.Logger.log_info(b'a message')",
    "pb_utils.Logger.log_warn(b'a message')",
    "pb_utils.Logger.log_error(b'a message')",
    "pb_utils.Logger.log_verbose(b'a message')",
    "pb_utils.is_model_ready(b'evaluate')",
    "pb_utils.is_model_ready(b'evaluate', b'1')",
    "pb_utils.is_model_ready(b'nowhere')",
    "str(pb_utils.MetricFamily(b'a_sum', b'A sum', pb_utils.MetricFamily.COUNTER)).count('Family')",
    "call(b'evaluate', request_id=b'7').request_id()",
    "call(b'evaluate', requested_output_names=[b'A', 'B']).requested_output_names() == {'A', 'B'}",
    "call('evaluate', requested_output_names='RESULT')",
    "call('evaluate', requested_output_names=[b''])",
    "call('evaluate', correlation_id='moon').correlation_id()",
    "call('evaluate', correlation_id=b'moon').correlation_id()",
    "call('evaluate', parameters={b'k': 1})",
    "call('evaluate', parameters={'k': b'v'})",
    "call(b'nowhere').exec().error().message()",
    # Lookups by name.
    "pb_utils.get_input_tensor_by_name(request, 'WHAT').name()",
    "pb_utils.get_input_tensor_by_name(request, 'NOTHING')",
)


def evaluate(expression: str, **options: Any) -> Case:
    body = {"inputs": [tensor("WHAT", "BYTES", [1], [expression])]}
    return infer(expression, "evaluate", body, **options)


CASES: list[Case] = [evaluate(expression) for expression in EXPRESSIONS]
