"""The PyTorch backend: each kind of file returns the results of PyTorch itself, names are matched
as in Triton, and nothing is unpickled without permission."""

from __future__ import annotations

import io
import os
import pickle
import warnings
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from naiad.errors import NaiadError
from naiad.repository.check.check import Severity, check_repository
from tests.unit.backends.framework import Loaded, arrays, bf16, load, parameters, request, tensor

pytest.importorskip("torch", reason="PyTorch is not installed (pip install '.[pytorch]')")

import torch

from naiad.backends.torch.backend import PytorchBackend
from naiad.backends.torch.program import Argument, Program, match
from tests.unit.backends import framework
from tests.unit.backends.torch import torch_models

X, Y = tensor("x", "TYPE_FP32", [4]), tensor("OUTPUT__0", "TYPE_FP32", [3])
LINEAR = {"max_batch_size": 8, "input": [X], "output": [Y]}


def script(tmp_path: Path, module: Any) -> Path:
    (tmp_path / "m" / "1").mkdir(parents=True)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.jit.script(module).save(str(tmp_path / "m/1/model.pt"))
    return tmp_path / "m"


def export(tmp_path: Path, module: Any, *arguments: Any, **keywords: Any) -> Path:
    (tmp_path / "m" / "1").mkdir(parents=True)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.export.save(
            torch.export.export(module.eval(), arguments, **keywords),
            str(tmp_path / "m/1/model.pt2"),
        )
    return tmp_path / "m"


def serve(model_dir: Path, config: dict[str, Any] | None = None) -> Loaded:
    file = next(path.name for path in (model_dir / "1").iterdir() if path.suffix in (".pt", ".pt2"))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return load(PytorchBackend, model_dir, config, file)


@pytest.fixture
def linear() -> Any:
    torch.manual_seed(1)
    return torch_models.Linear()


# TorchScript.


def test_torchscript_equals_pytorch_for_every_batch_shape(tmp_path: Path, linear: Any) -> None:
    served = serve(script(tmp_path, linear), LINEAR)
    batches = [
        np.random.default_rng(1).standard_normal((size, 4), np.float32) for size in (1, 3, 2)
    ]
    responses = served.execute(*(request(x=batch) for batch in batches))
    for response, batch in zip(responses, batches, strict=True):
        np.testing.assert_allclose(
            arrays(response)["OUTPUT__0"],
            linear(torch.from_numpy(batch))[0].detach().numpy(),
            rtol=1e-5,
        )


@pytest.mark.parametrize(
    ("datatype", "dtype"),
    [
        ("BOOL", np.bool_), ("FP16", np.float16), ("FP32", np.float32), ("FP64", np.float64),
        ("UINT8", np.uint8), ("UINT16", np.uint16), ("UINT32", np.uint32), ("UINT64", np.uint64),
        ("INT8", np.int8), ("INT16", np.int16), ("INT32", np.int32), ("INT64", np.int64),
    ],
)  # fmt: skip
def test_every_number_type(tmp_path: Path, datatype: str, dtype: Any) -> None:
    config = {
        "max_batch_size": 4,
        "input": [tensor("x", f"TYPE_{datatype}", [2])],
        "output": [tensor("y", f"TYPE_{datatype}", [2])],
    }
    served = serve(script(tmp_path, torch_models.Same()), config)
    sent = np.array([[0, 1], [1, 1]]).astype(dtype)
    responses = served.execute(request(x=sent), request(x=sent[:1]))
    assert [response.outputs[0].datatype for response in responses] == [datatype, datatype]
    np.testing.assert_array_equal(arrays(responses[0])["y"], sent)


def test_bf16(tmp_path: Path) -> None:
    config = {
        "max_batch_size": 4,
        "input": [tensor("x", "TYPE_BF16", [2])],
        "output": [tensor("y", "TYPE_BF16", [2])],
    }
    sent = bf16("x", [1, 2], [0x3F80, 0xC000])
    (response,) = serve(script(tmp_path, torch_models.Same()), config).execute(request(x=sent))
    assert (response.outputs[0].datatype, bytes(response.outputs[0].data)) == (
        "BF16",
        bytes(sent.data),
    )


def test_passes_strings_as_lists(tmp_path: Path) -> None:
    config = {
        "input": [tensor("words", "TYPE_STRING", [-1])],
        "output": [tensor("loud", "TYPE_STRING", [-1]), tensor("n", "TYPE_INT64", [-1])],
    }
    outputs = serve(script(tmp_path, torch_models.Shout()), config).infer(
        words=np.array(["a", "größer"], object)
    )
    assert outputs["loud"].tolist() == [b"a!", "größer!".encode()]
    # TorchScript counts bytes.
    assert outputs["n"].tolist() == [1, 8]


def test_passes_inputs_as_a_dictionary(tmp_path: Path) -> None:
    config = {
        "input": [tensor(name, "TYPE_FP32", [2]) for name in ("p", "q")],
        "output": [tensor("sum", "TYPE_FP32", [2])],
    }
    served = serve(script(tmp_path, torch_models.Keyed()), config)
    assert served.infer(p=np.ones(2, np.float32), q=np.full(2, 2, np.float32))["sum"].tolist() == [
        3,
        3,
    ]


def test_optional_arguments_may_be_omitted(tmp_path: Path, linear: Any) -> None:
    inputs = [X, tensor("bias", "TYPE_FP32", [3], optional=True)]
    served = serve(
        script(tmp_path, linear),
        {
            "input": [tensor("x", "TYPE_FP32", [1, 4]), *inputs[1:]],
            "output": [tensor("y", "TYPE_FP32", [1, 3])],
        },
    )
    x = np.ones((1, 4), np.float32)
    plain = served.infer(x=x)["y"]
    np.testing.assert_allclose(
        served.infer(x=x, bias=np.full(3, 5, np.float32))["y"], plain + 5, rtol=1e-6
    )


def test_a_failing_request_fails_alone_and_its_message_has_no_paths(tmp_path: Path) -> None:
    config = {
        "max_batch_size": 4,
        "input": [tensor("x", "TYPE_INT64", [1])],
        "output": [tensor("y", "TYPE_FP32", [1])],
    }
    served = serve(script(tmp_path, torch_models.Lookup()), config)
    good, bad = served.execute(request(x=[[1]]), request(x=[[99]]))
    assert arrays(good)["y"].tolist() == [[10.0]]
    assert bad.error is not None
    assert bad.error.message.startswith("PyTorch execute failure: ")
    assert "index" in bad.error.message
    assert "/" not in bad.error.message


def test_rejects_a_datatype_other_than_that_of_the_config(tmp_path: Path) -> None:
    config = {"max_batch_size": 4, "input": [X], "output": [tensor("y", "TYPE_INT32", [3])]}
    (response,) = serve(script(tmp_path, torch_models.Linear()), config).execute(
        request(x=np.ones((1, 4), np.float32))
    )
    assert response.error is not None
    assert (
        response.error.message
        == "unexpected datatype TYPE_FP32 for inference output 'y', expecting TYPE_INT32"
    )


def test_without_a_config_the_message_suggests_one(tmp_path: Path) -> None:
    with pytest.raises(NaiadError) as caught:
        serve(script(tmp_path, torch_models.Conv()))
    assert (
        """backend: "pytorch"
max_batch_size: 4
input [
  { name: "image" data_type: TYPE_FP32 dims: [ 1, -1, -1 ] }
]
output [
  { name: "OUTPUT__0" data_type: TYPE_FP32 dims: [ 10 ] }
]
dynamic_batching { }
"""
        in caught.value.message
    )
    assert "naiad check --write --example image=1,1,32,32 REPOSITORY" in caught.value.message


def test_applies_the_parameters_of_triton(tmp_path: Path) -> None:
    given = parameters(
        DISABLE_OPTIMIZED_EXECUTION="true",
        INFERENCE_MODE="false",
        DISABLE_CUDNN="true",
        INTRA_OP_THREAD_COUNT="1",
        ENABLE_WEIGHT_SHARING="true",
        ENABLE_JIT_EXECUTOR="true",
        ENABLE_JIT_PROFILING="true",
        ENABLE_TENSOR_FUSER="false",
        ENABLE_CACHE_CLEANING="true",
    )
    try:
        served = serve(script(tmp_path, torch_models.Linear()), {**LINEAR, "parameters": given})
        assert served.infer(x=np.ones((1, 4), np.float32))["OUTPUT__0"].shape == (1, 3)
        assert torch.get_num_threads() == 1
        assert any(
            "ENABLE_WEIGHT_SHARING has no effect" in text for _, text, _, _ in served.runtime.logged
        )
    finally:
        torch._C._set_graph_executor_optimize(True)
        torch.backends.cudnn.enabled = True


def test_check_prints_the_config_that_torchscript_lacks(tmp_path: Path, linear: Any) -> None:
    script(tmp_path, linear)
    (finding,) = check_repository([tmp_path], should_open=True)
    assert finding.severity is Severity.ERROR
    assert 'input [\n  { name: "x" data_type: TYPE_FP32 dims: [ 4 ] }' in finding.problem.fix
    assert "naiad check --write --example x=1,4" in finding.problem.fix


# torch.export.


def test_an_exported_program_needs_no_config(tmp_path: Path, linear: Any) -> None:
    batch = torch.export.Dim("batch", min=1, max=64)
    served = serve(export(tmp_path, linear, torch.ones(2, 4), dynamic_shapes={"x": {0: batch}}))
    assert served.config == {
        "max_batch_size": 4,
        "dynamic_batching": {},
        "input": [tensor("x", "TYPE_FP32", [4])],
        "output": [
            tensor("OUTPUT__0", "TYPE_FP32", [3]),
            tensor("OUTPUT__1", "TYPE_FP32", [1], reshape={"shape": []}),
        ],
    }
    batches = [np.random.default_rng(1).standard_normal((size, 4), np.float32) for size in (1, 2)]
    for response, sent in zip(
        served.execute(*(request(x=x) for x in batches)), batches, strict=True
    ):
        expected, sums = (value.detach().numpy() for value in linear(torch.from_numpy(sent)))
        np.testing.assert_allclose(arrays(response)["OUTPUT__0"], expected, rtol=1e-5)
        np.testing.assert_allclose(arrays(response)["OUTPUT__1"], sums[:, None], rtol=1e-5)


def test_the_largest_batch_of_an_exported_program_is_its_max_batch_size(
    tmp_path: Path, linear: Any
) -> None:
    shapes = {"x": {0: torch.export.Dim("batch", min=1, max=2)}}
    model = export(tmp_path, linear, torch.ones(2, 4), dynamic_shapes=shapes)
    served = serve(model)
    assert served.config["max_batch_size"] == 2
    assert not [text for _, text, *_ in served.runtime.logged if "exported for" in text]
    config = {**served.config, "max_batch_size": 8}
    larger = serve(model, config)
    (said,) = [text for _, text, *_ in larger.runtime.logged if "exported for" in text]
    assert "is 8, but the program was exported for batches of up to 2" in said


def test_batches_that_only_fail_together_are_reported_once(tmp_path: Path, linear: Any) -> None:
    shapes = {"x": {0: torch.export.Dim("batch", min=1, max=2)}}
    model = export(tmp_path, linear, torch.ones(2, 4), dynamic_shapes=shapes)
    served = serve(model, {**serve(model).config, "max_batch_size": 8})
    one = np.ones((1, 4), np.float32)

    def warnings_about_batches() -> list[str]:
        return [text for _, text, *_ in served.runtime.logged if "fails with a batch" in text]

    assert len(served.execute(request(x=one), request(x=one))) == 2
    assert warnings_about_batches() == []
    for _ in range(3):
        responses = served.execute(*(request(x=one) for _ in range(4)))
        assert not [response for response in responses if response.error]
    (said,) = warnings_about_batches()
    assert "fails with a batch of 4 requests, each of which succeeds alone" in said
    # A bad request among them is not the batch's fault.
    bad = request(x=np.ones((1, 5), np.float32))
    assert [bool(response.error) for response in served.execute(bad, request(x=one))] == [
        True,
        False,
    ]


def test_an_exported_program_with_a_fixed_batch_and_keys(tmp_path: Path) -> None:
    served = serve(
        export(tmp_path, torch_models.Keys(), torch.ones(1, 2), kwargs={"scale": torch.ones(1, 2)})
    )
    assert served.config["input"] == [
        tensor("x", "TYPE_FP32", [1, 2]),
        tensor("scale", "TYPE_FP32", [1, 2]),
    ]
    assert [output["name"] for output in served.config["output"]] == ["double", "scaled"]
    outputs = served.infer(x=np.ones((1, 2), np.float32), scale=np.full((1, 2), 3, np.float32))
    assert outputs["double"].tolist() == [[2, 2]]
    assert outputs["scaled"].tolist() == [[3, 3]]


@pytest.mark.skipif(
    not os.environ.get("NAIAD_TEST_AOT"), reason="compiles for a minute; NAIAD_TEST_AOT=1 runs it"
)
def test_a_compiled_package(tmp_path: Path, linear: Any) -> None:
    (tmp_path / "m" / "1").mkdir(parents=True)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        shapes = ({0: torch.export.Dim("batch", min=1, max=64)},)
        exported = torch.export.export(linear, (torch.ones(2, 4),), dynamic_shapes=shapes)
        torch._inductor.aoti_compile_and_package(
            exported, package_path=str(tmp_path / "m/1/model.pt2")
        )
    with pytest.raises(NaiadError, match=r'name: "ARGS\[0\]"'):
        serve(tmp_path / "m")
    outputs = [
        tensor("RESULT[0]", "TYPE_FP32", [3]),
        tensor("RESULT[1]", "TYPE_FP32", [1], reshape={"shape": []}),
    ]
    config = {
        "max_batch_size": 8,
        "input": [tensor("ARGS[0]", "TYPE_FP32", [4])],
        "output": outputs,
    }
    served = serve(tmp_path / "m", config)
    x = np.random.default_rng(1).standard_normal((3, 4), np.float32)
    inputs: list[dict[str, Any]] = [{"ARGS[0]": x[:1]}, {"ARGS[0]": x[1:]}]
    first, second = served.execute(*(request(**one) for one in inputs))
    expected = linear(torch.from_numpy(x))[0].detach().numpy()
    np.testing.assert_allclose(
        np.concatenate([arrays(first)["RESULT[0]"], arrays(second)["RESULT[0]"]]),
        expected,
        rtol=1e-5,
        atol=1e-6,
    )


# A Python class.

CLASS = """
import torch
from layer import Double          # next to model.py

class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.scale = torch.nn.Parameter(torch.ones(1))
    def forward(self, x):
        return Double()(x) * self.scale
"""
LAYER = (
    "import torch\nclass Double(torch.nn.Module):\n    def forward(self, x):\n        return 2 * "
    "x\n"
)


def python_class(tmp_path: Path, source: str = CLASS) -> Path:
    directory = tmp_path / "m" / "1"
    directory.mkdir(parents=True)
    (directory / "model.py").write_text(source)
    (directory / "layer.py").write_text(LAYER)
    return tmp_path / "m"


def test_a_python_class_with_its_weights(tmp_path: Path) -> None:
    model_dir = python_class(tmp_path)
    torch.save({"scale": torch.full((1,), 5.0)}, model_dir / "1/model.pt")
    config = {
        "runtime": "model.py",
        "max_batch_size": 4,
        "input": [tensor("INPUT__0", "TYPE_FP32", [2])],
        "output": [tensor("y", "TYPE_FP32", [2])],
    }
    served = load(PytorchBackend, model_dir, config, "model.pt")
    assert served.infer(INPUT__0=np.ones((1, 2), np.float32))["y"].tolist() == [[10, 10]]


def test_rejects_a_python_file_without_a_module(tmp_path: Path) -> None:
    with pytest.raises(NaiadError, match="cannot find a subclass of"):
        load(
            PytorchBackend,
            python_class(tmp_path, "import torch\n"),
            {"runtime": "model.py", "input": [X], "output": [Y]},
            "model.py",
        )


def test_compiles_a_model_if_the_parameter_is_set(tmp_path: Path) -> None:
    given = parameters(TORCH_COMPILE_OPTIONAL_PARAMETERS='{"backend": "eager"}')
    config = {
        "runtime": "model.py",
        "parameters": given,
        "input": [tensor("x", "TYPE_FP32", [2])],
        "output": [tensor("y", "TYPE_FP32", [2])],
    }
    served = load(PytorchBackend, python_class(tmp_path), config, "model.py")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        assert served.infer(x=np.ones(2, np.float32))["y"].tolist() == [2, 2]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ("{", "is not valid JSON"),
        ("[]", "must be a JSON object"),
        ('{"model": 1}', "'model' is not an optional parameter for 'torch.compile'"),
    ],
)
def test_rejects_invalid_compile_options(tmp_path: Path, options: str, message: str) -> None:
    config = {
        "runtime": "model.py",
        "parameters": parameters(TORCH_COMPILE_OPTIONAL_PARAMETERS=options),
        "input": [X],
        "output": [Y],
    }
    with pytest.raises(NaiadError) as caught:
        load(PytorchBackend, python_class(tmp_path), config, "model.py")
    assert message in caught.value.message


# Pickle.


class Trap:
    """Writes a file when it is unpickled."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def __reduce__(self) -> Any:
        return Path.touch, (self._path,)


def test_rejects_a_pickled_module(tmp_path: Path, linear: Any) -> None:
    (tmp_path / "m" / "1").mkdir(parents=True)
    torch.save(linear, tmp_path / "m/1/model.pt")
    with pytest.raises(NaiadError, match="UNSAFE_ALLOW_PICKLE"):
        serve(tmp_path / "m", LINEAR)


def test_loads_a_pickled_module_if_the_parameter_allows_it(
    tmp_path: Path, linear: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("TORCH_FORCE_WEIGHTS_ONLY_LOAD", raising=False)
    (tmp_path / "m" / "1").mkdir(parents=True)
    torch.save(linear, tmp_path / "m/1/model.pt")
    served = serve(tmp_path / "m", {**LINEAR, "parameters": parameters(UNSAFE_ALLOW_PICKLE="true")})
    assert served.infer(x=np.ones((1, 4), np.float32))["OUTPUT__0"].shape == (1, 3)
    assert "may run any code" in served.runtime.logged[0][1]


@pytest.mark.parametrize("form", ["legacy", "zip", "weights", "export"])
def test_never_unpickles_any_kind_of_file(tmp_path: Path, form: str, linear: Any) -> None:
    trap = Trap(tmp_path / "sprung")
    file = "model.pt"
    config = dict(LINEAR)
    directory = tmp_path / "m" / "1"
    if form == "export":
        batch = torch.export.Dim("batch", min=1, max=64)
        export(tmp_path, linear, torch.ones(2, 4), dynamic_shapes={"x": {0: batch}})
        file = "model.pt2"
        _replace(directory / file, "sample_inputs/model.pt", _saved(trap))
    elif form == "weights":
        python_class(tmp_path)
        torch.save({"scale": trap}, directory / "model.pt")
        config |= {"runtime": "model.py"}
    else:
        directory.mkdir(parents=True)
        content = pickle.dumps(trap) if form == "legacy" else _saved(trap)
        (directory / file).write_bytes(content)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        with pytest.raises(NaiadError):
            load(PytorchBackend, tmp_path / "m", config, file)
    assert not (tmp_path / "sprung").exists()


def _saved(value: Any) -> bytes:
    buffer = io.BytesIO()
    torch.save(value, buffer)
    return buffer.getvalue()


def _replace(path: Path, ending: str, content: bytes) -> None:
    """Replaces one member of the archive."""
    with zipfile.ZipFile(path) as archive:
        members = {name: archive.read(name) for name in archive.namelist()}
    with zipfile.ZipFile(path, "w", zipfile.ZIP_STORED) as archive:
        for name, data in members.items():
            archive.writestr(name, content if name.endswith(ending) else data)


def test_rejects_an_exported_program_with_pickled_objects(tmp_path: Path, linear: Any) -> None:
    model_dir = export(tmp_path, linear, torch.ones(2, 4))
    _replace(
        model_dir / "1/model.pt2",
        "constants_config.json",
        b'{"config": {"c": {"path_name": "opaque_obj_0", "use_pickle": true}}}',
    )
    with pytest.raises(NaiadError, match="holds pickled parts"):
        serve(model_dir)


# Invalid files.


@pytest.mark.parametrize(
    "content", [b"", b"no model", b"PK\x03\x04 cut off"], ids=["empty", "garbage", "truncated"]
)
def test_rejects_invalid_files(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "m" / "1").mkdir(parents=True)
    (tmp_path / "m/1/model.pt").write_bytes(content)
    with pytest.raises(NaiadError) as caught:
        serve(tmp_path / "m", LINEAR)
    assert caught.value.message.startswith(
        "'m/1/model.pt' is not a PyTorch file, or it is truncated"
    )


def test_rejects_a_truncated_torchscript_file(tmp_path: Path, linear: Any) -> None:
    path = script(tmp_path, linear) / "1/model.pt"
    path.write_bytes(path.read_bytes()[:-200])
    with pytest.raises(NaiadError) as caught:
        serve(tmp_path / "m", LINEAR)
    assert str(tmp_path) not in caught.value.message


def test_rejects_a_missing_file(tmp_path: Path) -> None:
    (tmp_path / "m" / "1").mkdir(parents=True)
    with pytest.raises(NaiadError, match="unable to find"):
        load(PytorchBackend, tmp_path / "m", LINEAR, "model.pt")


# Names.


def matched(
    names: list[str], outputs: list[str] | None = None, known: list[str] | None = None
) -> tuple[dict[str, int], dict[str, Any]]:
    program = Program(
        lambda: None,
        [Argument("a"), Argument("b"), Argument("k", is_keyword=True)],
        "a test",
        known or [],
    )
    config = {
        "input": [tensor(name, "TYPE_FP32", [1]) for name in names],
        "output": [tensor(n, "TYPE_FP32", [1]) for n in outputs or ["o"]],
    }
    from naiad.backends.served_config import read_config

    calling = match(program, read_config(framework.arguments(Path("m"), config)))
    return calling.positions, calling.outputs


@pytest.mark.parametrize(
    ("names", "positions"),
    [
        (["b", "k", "a"], {"b": 1, "k": 2, "a": 0}),
        (["INPUT__2", "INPUT__0", "any__1"], {"INPUT__2": 2, "INPUT__0": 0, "any__1": 1}),
        (["ARGS[1]", "ARGS[0]", "KWARGS[k]"], {"ARGS[1]": 1, "ARGS[0]": 0, "KWARGS[k]": 2}),
        (["one", "two", "three"], {"one": 0, "two": 1, "three": 2}),
    ],
    ids=["by argument", "by index", "by position and key", "in order"],
)
def test_matches_inputs_by_name(names: list[str], positions: dict[str, int]) -> None:
    assert matched(names)[0] == positions


def test_matches_outputs_by_name() -> None:
    names = ["a", "b", "k"]
    assert matched(names, ["OUT__1", "OUT__0"])[1] == {"OUT__1": 1, "OUT__0": 0}
    assert matched(names, ["RESULT[0]", "RESULT[key]"], ["x", "key"])[1] == {
        "RESULT[0]": 0,
        "RESULT[key]": "key",
    }
    assert matched(names, ["key", "x"], ["x", "key"])[1] == {"key": "key", "x": "x"}
    assert matched(names, ["first", "second"])[1] == {"first": 0, "second": 1}


@pytest.mark.parametrize(
    ("names", "message"),
    [
        (
            ["INPUT__0", "INPUT__1", "INPUT__7"],
            "unexpected inference input 'INPUT__7', allowed inputs are: a, b, k",
        ),
        (
            ["INPUT__0", "also__0", "INPUT__1"],
            "two inputs of model 'm' stand for the same argument",
        ),
        (["a", "b"], "configuration expects 2 inputs, model provides 3: no input for k"),
    ],
)
def test_rejects_names_that_match_no_argument(names: list[str], message: str) -> None:
    with pytest.raises(NaiadError) as caught:
        matched(names)
    assert message in caught.value.message


def test_rejects_an_output_that_the_model_does_not_have() -> None:
    with pytest.raises(
        NaiadError, match="unexpected inference output 'OUT__5', allowed outputs are: x"
    ):
        matched(["a", "b", "k"], ["OUT__5"], ["x"])
