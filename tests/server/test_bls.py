"""Business logic scripting on a real server: every kind of call, and every kind of cycle."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from tests.scenarios.scene import Scene
from tests.server.harness import Server, naiad


def run(server: Server, model: str, script: Any, timeout_s: float = 30) -> Any:
    inputs = [{"name": "SCRIPT", "datatype": "BYTES", "shape": [1], "data": [json.dumps(script)]}]
    status, body = server.post(f"/v2/models/{model}/infer", {"inputs": inputs}, timeout_s)
    response = json.loads(body)
    assert status == 200, response
    return json.loads(response["outputs"][0]["data"][0])


@pytest.fixture
def server(scheduler_server: tuple[Server, str]) -> Server:
    return scheduler_server[0]


def nest(*models: str) -> Any:
    """Returns a script in which each of these models calls the next."""
    script: Any = "done"
    for model in reversed(models):
        script = {"call": model, "script": script}
    return script


# Valid calls.


@pytest.mark.parametrize("caller", ["bls_a", "bls_async"])
def test_a_call(server: Server, caller: str) -> None:
    assert run(server, caller, {"call": "step_a", "x": 4}) == [5]


def test_a_call_from_a_thread_of_the_model(server: Server) -> None:
    assert run(server, "bls_a", {"call": "step_a", "x": 4, "how": "thread"}) == [5]


@pytest.mark.parametrize("caller", ["bls_a", "bls_async"])
def test_all_responses_of_a_decoupled_model(server: Server, caller: str) -> None:
    """As in Triton, the final flag is a response without outputs."""
    assert run(server, caller, {"call": "step_many", "x": 3, "how": "iterate"}) == [
        [0],
        [1],
        [2],
        [],
    ]


def test_the_first_response_of_an_endless_model(scene: Scene) -> None:
    """The call is then cancelled, and the called model sees it."""
    assert run(scene.server, "bls_c", {"call": "decoupled_endless", "x": 0, "how": "first"}) == [0]
    ((request,),) = scene.wait_batches("decoupled_endless", 1)
    assert request["id"] == "inner"


def test_many_calls_at_once(server: Server) -> None:
    scripts = [{"call": "step_a", "x": x} for x in range(20)]
    assert run(server, "bls_async", scripts) == [[x + 1] for x in range(20)]


def test_a_decoupled_caller_sends_one_response_per_call(server: Server) -> None:
    inputs = {
        "SCRIPT": json.dumps(
            [{"call": "step_a", "x": 1}, {"call": "bls_a", "script": {"call": "step_b", "x": 2}}]
        )
    }
    status, body = server.post("/v2/models/bls_decoupled/generate_stream", inputs)
    assert status == 200
    lines = [
        json.loads(line.removeprefix("data: ")) for line in body.decode().split("\n\n") if line
    ]
    assert [json.loads(line["RESULT"]) for line in lines] == [[2], [3]]


def test_an_ensemble_and_a_sequence_can_be_called(server: Server) -> None:
    assert (
        run(server, "bls_b", {"call": "bls_ensemble", "script": "through both"}) == "through both"
    )
    sequence = {"call": "step_sequence", "x": 1, "sequence": 77}
    assert run(server, "bls_a", {**sequence, "flags": 1}) == [2]
    assert run(server, "bls_b", {**sequence, "flags": 2}) == [2]
    assert "must specify the START flag" in run(server, "bls_a", sequence)["error"]


def test_errors_of_the_called_model_are_responses(server: Server) -> None:
    error = run(server, "bls_a", {"call": "nowhere", "x": 1})["error"]
    assert error.endswith("Failed for execute the inference request. Model 'nowhere' is not ready.")
    assert "'decoupled=True'" in run(server, "bls_a", {"call": "step_many", "x": 1})["error"]


def test_chained_and_concurrent_calls(server: Server) -> None:
    script = nest("bls_b", "bls_c", "bls_two", "bls_async")
    with ThreadPoolExecutor(8) as pool:
        assert list(pool.map(lambda _: run(server, "bls_a", script), range(16))) == ["done"] * 16


# Cycles.

CIRCLES = {
    "itself": ("bls_a", ["bls_a"], "'bls_a' -> 'bls_a'"),
    "through another": ("bls_a", ["bls_b", "bls_a"], "'bls_b' -> 'bls_a' -> 'bls_b'"),
    "through two others": (
        "bls_a",
        ["bls_b", "bls_c", "bls_a"],
        "'bls_c' -> 'bls_a' -> 'bls_b' -> 'bls_c'",
    ),
}


@pytest.mark.parametrize("case", list(CIRCLES))
def test_a_cycle_is_rejected_with_its_names(server: Server, case: str) -> None:
    caller, models, names = CIRCLES[case]
    error = run(server, caller, nest(*models))["error"]
    assert f"model {names} is a cycle of calls that would wait forever" in error
    assert run(server, caller, {"call": "step_a", "x": 1}) == [2]


def test_rejects_a_cycle_from_a_thread(server: Server) -> None:
    assert "'bls_a' -> 'bls_a'" in run(server, "bls_a", {"call": "bls_a", "how": "thread"})["error"]


def test_rejects_a_cycle_through_an_ensemble(server: Server) -> None:
    """bls_a calls an ensemble, whose second step is bls_a."""
    assert (
        "'bls_a' -> 'bls_a'"
        in run(server, "bls_a", {"call": "bls_ensemble", "script": "x"})["error"]
    )


def test_a_model_may_call_itself_if_an_instance_is_free(server: Server) -> None:
    assert run(server, "bls_two", nest("bls_two")) == "done"
    assert "'bls_two' -> 'bls_two'" in run(server, "bls_two", nest("bls_two", "bls_two"))["error"]


def test_an_async_execute_may_call_itself_deeply(server: Server) -> None:
    assert run(server, "bls_async", nest(*["bls_async"] * 30)) == "done"
    assert "is a cycle" in run(server, "bls_async", nest(*["bls_async"] * 80))["error"]
    assert run(server, "bls_async", nest("bls_async")) == "done"


def test_rejects_one_of_two_requests_that_would_wait_for_each_other(server: Server) -> None:
    """a -> b and b -> a at the same time: the later call gets an error, and none waits forever."""
    with ThreadPoolExecutor(2) as pool:
        for _ in range(30):
            first = pool.submit(run, server, "bls_a", nest("bls_b"))
            second = pool.submit(run, server, "bls_b", nest("bls_a"))
            for result in (first.result(20), second.result(20)):
                assert result == "done" or "is a cycle of calls" in result["error"]


# Model control from a model.


def test_a_model_loads_and_unloads_others(repositories: Path) -> None:
    flags = ["--model-control-mode=explicit", "--load-model=bls_a"]
    with naiad([str(repositories / "schedulers")], flags) as server:

        def control(what: str, model: str = "step_a") -> Any:
            return run(server, "bls_a", {"call": model, "how": "control", "what": what})

        assert control("ready") is False
        assert control("load") is True
        assert run(server, "bls_a", {"call": "step_a", "x": 1}) == [2]
        assert control("unload") is False
        assert "step_a" in run(server, "bls_a", {"call": "step_a", "x": 1})["error"]
        assert "failed to load 'nowhere'" in control("load", "nowhere")["error"]
