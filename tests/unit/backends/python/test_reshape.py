from __future__ import annotations

from naiad.backends.python.reshape import read_reshapes
from naiad.ipc.work import WorkRequest, WorkResponse, WorkTensor

CONFIG = {
    "max_batch_size": 8,
    "input": [
        {"name": "A", "dims": [4], "reshape": {"shape": [2, 2]}},
        {"name": "B", "dims": ["-1", 1], "reshape": {"shape": [-1]}},
        {"name": "S", "dims": [1], "reshape": {"shape": []}},
        {"name": "P", "dims": [3]},
    ],
    "output": [{"name": "Y", "dims": [-1, 2], "reshape": {"shape": [2, -1]}}],
}


def tensor(name: str, shape: list[int]) -> WorkTensor:
    return WorkTensor(name, "INT32", shape, b"")


def test_the_model_sees_the_reshape_and_the_client_the_dims() -> None:
    reshapes = read_reshapes(CONFIG)
    assert reshapes is not None
    request = WorkRequest(
        1,
        "",
        [tensor("A", [3, 4]), tensor("B", [3, 7, 1]), tensor("S", [3, 1]), tensor("P", [3, 3])],
    )
    reshapes.to_model([request])
    assert [t.shape for t in request.inputs] == [[3, 2, 2], [3, 7], [3], [3, 3]]
    given = tensor("Y", [3, 2, 5])
    response = WorkResponse([given])
    reshapes.to_client(response)
    assert response.outputs[0].shape == [3, 5, 2]
    assert given.shape == [3, 2, 5]


def test_without_batching_all_dims_are_reshaped() -> None:
    reshapes = read_reshapes({**CONFIG, "max_batch_size": 0})
    assert reshapes is not None
    request = WorkRequest(1, "", [tensor("A", [4])])
    reshapes.to_model([request])
    assert request.inputs[0].shape == [2, 2]


def test_does_not_change_a_shape_of_another_pattern() -> None:
    reshapes = read_reshapes(CONFIG)
    assert reshapes is not None
    response = WorkResponse([tensor("Y", [3, 4, 4])])
    reshapes.to_client(response)
    assert response.outputs[0].shape == [3, 4, 4]


def test_returns_none_without_a_reshape() -> None:
    assert read_reshapes({"input": [{"name": "A", "dims": [4]}], "output": []}) is None
