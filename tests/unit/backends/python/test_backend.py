"""PythonBackend: loads, executes and unloads models, and reports errors with Triton's messages."""

from __future__ import annotations

import asyncio
import gc
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from naiad.backends.python.backend import PythonBackend
from naiad.errors import NaiadError
from naiad.ipc.work import WorkError, WorkResponse
from tests.unit.backends.fake_runtime import FakeRuntime
from tests.unit.backends.models import PREFIX, error_of, executing, load, request, run, write_model

DOUBLE = (
    "return [pb_utils.InferenceResponse([pb_utils.Tensor('Y', r.inputs()[0].as_numpy() * 2)]) "
    "for r in requests]"
)
DECOUPLED = {"model_transaction_policy": {"decoupled": True}}


def floats(response: WorkResponse | None) -> list[float]:
    assert response is not None
    assert response.error is None
    return [float(value) for value in np.frombuffer(response.outputs[0].data, np.float32)]


# Loading.


def test_initialize_arguments(tmp_path: Path, runtime: FakeRuntime) -> None:
    source = (
        "class TritonPythonModel:\n    def initialize(self, args):\n"
        "        pb_utils.seen = (args, pb_utils.get_model_dir())\n"
    )
    load(tmp_path, source, runtime)
    from naiad.backends.python import pb_utils

    arguments, model_dir = pb_utils.seen  # type: ignore[attr-defined]
    del pb_utils.seen  # type: ignore[attr-defined]
    assert model_dir == str(tmp_path / "m" / "1")
    assert json.loads(arguments.pop("model_config"))["name"] == "m"
    assert arguments == {
        "model_instance_kind": "CPU",
        "model_instance_name": "m_0",
        "model_instance_device_id": "0",
        "model_repository": str(tmp_path / "m"),
        "model_version": "1",
        "model_name": "m",
    }


BLS = "pb_utils.InferenceRequest(model_name='o', inputs=[], requested_output_names=[]).exec()"


@pytest.mark.parametrize(
    ("source", "message"),
    [
        (
            "class TritonPythonModel:\n    def initialize(self, args):\n"
            "        raise ValueError('bad')",
            "ValueError: bad\n\nAt:\n  model.py(5): initialize\n",
        ),
        (
            "class TritonPythonModel:\n    def __init__(self):\n        1 / 0",
            "ZeroDivisionError: division by zero\n\nAt:\n  model.py(5): __init__\n",
        ),
        (
            "import nonexistent_thing",
            "ModuleNotFoundError: No module named 'nonexistent_thing'\n\n"
            "At:\n  model.py(3): <module>\n",
        ),
        ("def broken(:", "SyntaxError: invalid syntax (model.py, line 3)"),
        ("raise SystemExit(3)", "SystemExit: 3\n\nAt:\n  model.py(3): <module>\n"),
        (
            f"class TritonPythonModel:\n    def initialize(self, args):\n        {BLS}",
            "TritonModelException: BLS is only supported during the 'execute' function.\n\n"
            "At:\n  model.py(5): initialize\n",
        ),
        (
            "class TritonPythonModel:\n    def initialize(self, args):\n"
            "        open(args['model_repository'] + '/weights.bin')",
            "FileNotFoundError: [Errno 2] No such file or directory: 'weights.bin'\n\n"
            "At:\n  model.py(5): initialize\n",
        ),
    ],
)
def test_reports_load_errors(
    tmp_path: Path, runtime: FakeRuntime, source: str, message: str
) -> None:
    with pytest.raises(NaiadError) as caught:
        load(tmp_path, source, runtime)
    assert (caught.value.code.name, caught.value.message) == ("INTERNAL", message)
    assert str(tmp_path) not in caught.value.message
    if "At:" in message:
        assert str(tmp_path) in caught.value.details, "the log's copy has the paths"


COMPLETING = """
class TritonPythonModel:
    @{kind}
    def auto_complete_config({parameters}):
        config.add_input({{"name": "X", "data_type": "TYPE_FP32", "dims": [-1]}})
        config.set_max_batch_size(8)
        config.as_dict()["parameters"] = {{"dir": pb_utils.get_model_dir()}}
        {last}

    def execute(self, requests):
        pass
"""


@pytest.mark.parametrize(
    ("kind", "parameters"), [("staticmethod", "config"), ("classmethod", "cls, config")]
)
def test_complete_config(tmp_path: Path, runtime: FakeRuntime, kind: str, parameters: str) -> None:
    source = COMPLETING.format(kind=kind, parameters=parameters, last="return config")
    arguments = write_model(tmp_path, source, input=[])
    backend = PythonBackend()
    completed = json.loads(backend.complete_config(arguments))
    assert (completed["max_batch_size"], len(completed["input"]), "parameters" in completed) == (
        8,
        1,
        False,
    )
    backend.load(arguments, runtime)


def test_complete_config_without_the_hook(tmp_path: Path) -> None:
    arguments = write_model(tmp_path, "class TritonPythonModel:\n    pass")
    assert PythonBackend().complete_config(arguments) == arguments.model_config


def test_complete_config_failures(tmp_path: Path) -> None:
    source = COMPLETING.format(kind="staticmethod", parameters="config", last="return None")
    expected = (
        r"^auto_complete_config function in model 'm' must return a valid "
        r"pb\.ModelConfig object\.$"
    )
    with pytest.raises(NaiadError, match=expected):
        PythonBackend().complete_config(write_model(tmp_path, source))
    source = COMPLETING.format(
        kind="staticmethod", parameters="config", last="config.set_max_batch_size(2)"
    )
    with pytest.raises(NaiadError) as caught:
        PythonBackend().complete_config(write_model(tmp_path, source))
    message = (
        "ValueError: configuration specified max_batch_size 8, but in auto-complete-config "
        "function for model 'm' "
    )
    message += "specified max_batch_size 2"
    assert caught.value.message == message + "\n\nAt:\n  model.py(10): auto_complete_config\n"


def test_unload(tmp_path: Path, runtime: FakeRuntime) -> None:
    source = (
        "class TritonPythonModel:\n    def finalize(self):\n"
        "        pb_utils.Logger.log_info('bye')\n        raise ValueError('late')\n"
    )
    backend = load(tmp_path, source, runtime)
    backend.unload()
    assert runtime.logged[0][:2] == ("INFO", "bye")
    assert runtime.logged[1][0] == "ERROR"
    assert runtime.logged[1][1].endswith("ValueError: late")
    PythonBackend().unload()


# Executing.


def test_execute(tmp_path: Path, runtime: FakeRuntime) -> None:
    backend = load(tmp_path, executing(DOUBLE), runtime)
    responses = run(backend, request(1, [1, 2]), request(2, [3]))
    assert [floats(response) for response in responses] == [[2, 4], [6]]
    assert not backend.is_async
    assert runtime.responses == {}


def test_drops_outputs_that_were_not_requested(tmp_path: Path, runtime: FakeRuntime) -> None:
    tensors = "[pb_utils.Tensor(n, np.zeros(1, np.float64)) for n in ('Y', 'TEXT', 'UNKNOWN')]"
    backend = load(
        tmp_path,
        executing(f"return [pb_utils.InferenceResponse({tensors}) for _ in requests]"),
        runtime,
    )
    responses = run(
        backend,
        request(1),
        request(2, requested_outputs=["TEXT"]),
        request(3, requested_outputs=["Y", "TEXT"]),
    )
    names = [
        [tensor.name for tensor in response.outputs]
        for response in responses
        if response is not None
    ]
    assert names == [["Y", "TEXT"], ["TEXT"], ["Y", "TEXT"]]
    assert responses[0] is not None
    assert responses[0].outputs[0].datatype == "FP64", (
        "as in Triton, it is not compared with the config"
    )


def test_error_response(tmp_path: Path, runtime: FakeRuntime) -> None:
    error = (
        "pb_utils.InferenceResponse(error=pb_utils.TritonError('no', "
        "pb_utils.TritonError.UNAVAILABLE))"
    )
    backend = load(tmp_path, executing(f"return [{error}]"), runtime)
    assert run(backend) == [WorkResponse(error=WorkError("UNAVAILABLE", "no"))]


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ("return 5", "Expected a list in the execute return, found type '<class 'int'>'."),
        ("return ()", "Expected a list in the execute return, found type '<class 'tuple'>'."),
        (
            "return []",
            "Number of InferenceResponse objects do not match the number of InferenceRequest "
            "objects. InferenceRequest(s) size is:2, "
            "and InferenceResponse(s) size is:0\n",
        ),
        (
            "return [1, 2]",
            "Expected an 'InferenceResponse' object in the execute function return list, found "
            "type '<class 'int'>'.",
        ),
        (
            "requests[1].set_release_flags(pb_utils.TRITONSERVER_REQUEST_RELEASE_RESCHEDULE); "
            "return ['x'] * 2",
            "Expected an 'InferenceResponse' object in the execute function return list, found "
            "type '<class 'str'>'.",
        ),
        (
            "requests[0].set_release_flags(pb_utils.TRITONSERVER_REQUEST_RELEASE_RESCHEDULE); "
            "return ['x'] * 2",
            "Expected a None object in the execute function return list for reschduled request, "
            "found type '<class 'str'>'.",
        ),
        (
            "requests[0].set_release_flags(pb_utils.TRITONSERVER_REQUEST_RELEASE_RESCHEDULE); "
            "return [None] * 2",
            "a request was rescheduled, but the model's config does not set "
            "sequence_batching.iterative_sequence",
        ),
        ("raise ValueError('bad')", "ValueError: bad\n\nAt:\n  model.py(6): execute\n"),
        ("raise SystemExit(3)", "SystemExit: 3\n\nAt:\n  model.py(6): execute\n"),
        (
            "def f():\n    raise KeyError('x')\nf()",
            "KeyError: 'x'\n\nAt:\n  model.py(7): f\n  model.py(8): execute\n",
        ),
        (
            "pb_utils.Tensor('', self.x)",
            "TritonModelException: Tensor name cannot be an empty string.\n\nAt:\n  model.py(6): "
            "execute\n",
        ),
    ],
)
@pytest.mark.parametrize("is_async", [False, True])
def test_reports_wrong_return_values_and_exceptions(
    tmp_path: Path, runtime: FakeRuntime, body: str, message: str, is_async: bool
) -> None:
    source = executing(body)
    if is_async:
        source = source.replace("def execute", "async def execute")
    backend = load(tmp_path, source, runtime)
    responses = run(backend, request(1), request(2))
    assert [error_of(response) for response in responses] == [PREFIX + message] * 2
    assert backend.is_async is is_async
    ((severity, logged, file, _),) = runtime.logged
    assert severity == "ERROR"
    assert logged.startswith(PREFIX)
    if "At:" in message:
        assert str(tmp_path) in logged
        assert file == "model.py"
    gc.collect()
    assert runtime.responses == {}, "no sender responds a second time"


def test_model_without_execute(tmp_path: Path, runtime: FakeRuntime) -> None:
    backend = load(tmp_path, "class TritonPythonModel:\n    pass", runtime)
    assert (
        error_of(run(backend)[0])
        == PREFIX + "Python model m/1/model.py does not implement `execute` method."
    )


def test_rescheduling(tmp_path: Path, runtime: FakeRuntime) -> None:
    body = (
        "requests[0].set_release_flags(pb_utils.TRITONSERVER_REQUEST_RELEASE_RESCHEDULE); return "
        "[None]"
    )
    backend = load(
        tmp_path, executing(body), runtime, sequence_batching={"iterative_sequence": True}
    )
    assert run(backend) == [WorkResponse(is_rescheduled=True)]


def test_async_batches_run_concurrently(tmp_path: Path, runtime: FakeRuntime) -> None:
    source = """
    import asyncio
    class TritonPythonModel:
        async def execute(self, requests):
            x = requests[0].inputs()[0].as_numpy()
            if x[0] == 1:
                self.gate = asyncio.Event()
                await self.gate.wait()
            else:
                self.gate.set()
            return [pb_utils.InferenceResponse([pb_utils.Tensor('Y', x)])]
    """
    backend = load(tmp_path, source, runtime)

    async def both() -> list[Any]:
        first, second = backend.execute([request(1, [1])]), backend.execute([request(2, [2])])
        assert not isinstance(first, list)
        assert not isinstance(second, list)
        return list(await asyncio.gather(first, second))

    assert [floats(responses[0]) for responses in asyncio.run(both())] == [[1], [2]]


def test_cancels_an_awaited_batch(tmp_path: Path, runtime: FakeRuntime) -> None:
    source = """
    import asyncio
    class TritonPythonModel:
        async def execute(self, requests):
            if requests[0].request_id() == "own":
                raise asyncio.CancelledError("of the model's making")
            await asyncio.Event().wait()
    """
    backend = load(tmp_path, source, runtime)
    assert "CancelledError: of the model's making" in error_of(run(backend, request(id="own"))[0])

    async def cancel() -> None:
        responses = backend.execute([request()])
        assert not isinstance(responses, list)
        task = asyncio.ensure_future(responses)
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(cancel())


# Senders.


def test_decoupled_in_execute(tmp_path: Path, runtime: FakeRuntime) -> None:
    body = """
    for r in requests:
        sender = r.get_response_sender()
        for value in r.inputs()[0].as_numpy():
            sender.send(pb_utils.InferenceResponse([pb_utils.Tensor('Y', np.array([value]))]))
        sender.send(flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
    """
    backend = load(tmp_path, executing(body), runtime, **DECOUPLED)
    assert run(backend, request(1, [1, 2]), request(2, [])) == [None, None]
    assert [floats(response) if response else None for response, _ in runtime.ended(1)] == [
        [1],
        [2],
        None,
    ]
    assert runtime.ended(2) == [(None, True)]


def test_decoupled_from_a_thread_after_execute(tmp_path: Path, runtime: FakeRuntime) -> None:
    source = """
    import threading
    class TritonPythonModel:
        def execute(self, requests):
            self.gate = threading.Event()
            thread = threading.Thread(target=self.work, args=(requests[0],))
            thread.start()

        def work(self, request):
            self.gate.wait(60)
            call = pb_utils.InferenceRequest(
                model_name='o', inputs=request.inputs(), requested_output_names=[]
            )
            text = [b"failed" if call.exec().has_error() else b"called"]
            output = pb_utils.Tensor('TEXT', np.array(text, object))
            sender = request.get_response_sender()
            sender.send(pb_utils.InferenceResponse([output]), flags=1)
    """
    backend = load(tmp_path, source, runtime, **DECOUPLED)
    assert run(backend) == [None]
    assert runtime.responses == {}
    backend._model.gate.set()
    ((response, is_final),) = runtime.ended(1)
    assert is_final
    assert response is not None
    assert bytes(response.outputs[0].data) == b"\x06\0\0\0called"
    assert runtime.called[0].callers == []


@pytest.mark.parametrize("body", ["return []", "return [None]", "return 5"])
def test_decoupled_must_return_none(tmp_path: Path, runtime: FakeRuntime, body: str) -> None:
    backend = load(tmp_path, executing(body), runtime, **DECOUPLED)
    message = PREFIX + (
        "Python model 'm_0' is using the decoupled mode and the execute function must return None."
    )
    assert error_of(run(backend)[0]) == message


def test_decoupled_model_that_fails_after_a_response(tmp_path: Path, runtime: FakeRuntime) -> None:
    body = """
    self.senders = [r.get_response_sender() for r in requests]
    self.senders[0].send(flags=1)
    self.senders[1].send(pb_utils.InferenceResponse([pb_utils.Tensor('Y', self.x)]))
    raise ValueError('bad')
    """
    backend = load(tmp_path, executing(body), runtime, **DECOUPLED)
    responses = run(backend, request(1), request(2), request(3))
    assert responses[0] is None, "its stream had ended"
    assert error_of(responses[1]) == error_of(responses[2])
    with pytest.raises(Exception, match="Response sender has been closed"):
        backend._model.senders[1].send(flags=1)


@pytest.mark.parametrize("policy", [{}, DECOUPLED])
def test_ends_requests_that_the_model_drops(
    tmp_path: Path, runtime: FakeRuntime, policy: dict[str, Any]
) -> None:
    backend = load(tmp_path, executing("return None"), runtime, **policy)
    assert run(backend, request(1), request(2)) == [None, None]
    gc.collect()
    for handle in (1, 2):
        ((response, is_final),) = runtime.ended(handle)
        assert is_final
        assert error_of(response) == PREFIX + "the request ended without a response"


def test_a_request_that_the_model_keeps_stays_open(tmp_path: Path, runtime: FakeRuntime) -> None:
    backend = load(tmp_path, executing("self.kept = requests\nreturn [None]"), runtime)
    assert run(backend) == [None]
    gc.collect()
    assert runtime.responses == {}
    source = backend._model.kept[0]
    assert source.inputs()[0].as_numpy().tolist() == [1, 2]
    from naiad.backends.python.response import InferenceResponse

    source.get_response_sender().send(InferenceResponse([]))
    assert runtime.ended(1) == [(WorkResponse(), True)]


def test_a_request_has_one_response_from_the_sender_or_the_return_value(
    tmp_path: Path, runtime: FakeRuntime
) -> None:
    body = """
    response = pb_utils.InferenceResponse([pb_utils.Tensor('Y', self.x)])
    requests[0].get_response_sender().send(response)
    requests[1].get_response_sender()
    return [response, response]
    """
    backend = load(tmp_path, executing(body), runtime)
    responses = run(backend, request(1), request(2))
    assert responses[0] is None
    assert floats(responses[1]) == [1, 2]
    assert "Non-decoupled model cannot send more than one response." in runtime.logged[0][1]
    gc.collect()
    assert set(runtime.responses) == {1}


def test_accepts_none_for_some_requests(tmp_path: Path, runtime: FakeRuntime) -> None:
    body = """
    response = pb_utils.InferenceResponse([pb_utils.Tensor('Y', self.x)])
    requests[0].get_response_sender().send(response, pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
    return [None, response]
    """
    backend = load(tmp_path, executing(body), runtime)
    responses = run(backend, request(1), request(2))
    assert responses[0] is None
    assert floats(responses[1]) == [1, 2]
    assert len(runtime.ended(1)) == 1


# BLS from a model.


@pytest.mark.parametrize("is_async", [False, True])
def test_calls_name_the_requests_they_serve(
    tmp_path: Path, runtime: FakeRuntime, is_async: bool
) -> None:
    call = f"await {BLS.replace('exec', 'async_exec')}" if is_async else BLS
    source = executing(f"response = {call}\n{DOUBLE}")
    if is_async:
        source = source.replace("def execute", "async def execute")
    backend = load(tmp_path, source, runtime)
    run(backend, request(4), request(5))
    assert runtime.called[0].callers == [4, 5]


def test_calls_of_a_task_that_runs_after_execute(tmp_path: Path, runtime: FakeRuntime) -> None:
    source = f"""
    import asyncio
    class TritonPythonModel:
        async def execute(self, requests):
            self.task = asyncio.create_task(self.work(requests[0].get_response_sender()))

        async def work(self, sender):
            await asyncio.sleep(0)
            await {BLS.replace("exec", "async_exec")}
            sender.send(flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
    """
    backend = load(tmp_path, source, runtime, **DECOUPLED)

    async def both() -> None:
        requests = [request(4)]
        responses = backend.execute(requests)
        assert not isinstance(responses, list)
        assert await responses == [None]
        requests.clear()
        await backend._model.task

    asyncio.run(both())
    assert runtime.called[0].callers == [4]
    assert runtime.ended(4) == [(None, True)]


# Readiness.


def test_readiness(tmp_path: Path, runtime: FakeRuntime) -> None:
    plain = load(tmp_path, executing(DOUBLE), runtime)
    assert plain.is_ready()
    assert not plain.has_ready_hook
    source = (
        "class TritonPythonModel:\n    ready = False\n    async def is_ready(self):\n        "
        "return self.ready\n"
    )
    hooked = load(tmp_path, source, runtime)
    assert hooked.has_ready_hook
    assert not hooked.is_ready()
    hooked._model.ready = True
    assert hooked.is_ready()
    assert asyncio.run(hooked.is_ready_async())
    assert asyncio.run(plain.is_ready_async())
