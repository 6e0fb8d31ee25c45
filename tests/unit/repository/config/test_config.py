"""Reading a model's directory: which file is read, what is completed, what is refused."""

from __future__ import annotations

from pathlib import Path

import pytest

from naiad.pb.model_config_pb2 import ModelConfig, ModelInstanceGroup
from naiad.repository.config.config import (
    MAX_CONFIG_BYTES,
    ConfigOptions,
    ModelConfigFile,
    read_model_config,
)
from naiad.repository.config.problem import InvalidConfigError, Problem
from naiad.repository.config.source_map import Position

OPTIONS = ConfigOptions()


@pytest.fixture
def model(tmp_path: Path) -> Path:
    (tmp_path / "m" / "1").mkdir(parents=True)
    return tmp_path / "m"


def write(model: Path, text: str, file: str = "1/model.py") -> ModelConfigFile:
    (model / "config.pbtxt").write_text(text)
    if file:
        (model / file).touch()
    return read_model_config(model, options=OPTIONS)


def problem(model: Path, options: ConfigOptions = OPTIONS, override: str | None = None) -> Problem:
    with pytest.raises(InvalidConfigError) as raised:
        read_model_config(model, options=options, override=override)
    return raised.value.problems[0]


@pytest.mark.parametrize(
    ("file", "backend", "platform"),
    [
        ("model.onnx", "onnxruntime", "onnxruntime_onnx"),
        ("model.pt", "pytorch", "pytorch_libtorch"),
        ("model.pt2", "pytorch", "torch_aoti"),
        ("model.plan", "tensorrt", "tensorrt_plan"),
        ("model.xml", "openvino", ""),
        ("model.py", "python", ""),
    ],
)
def test_the_file_in_the_newest_version_decides_the_backend(
    model: Path, file: str, backend: str, platform: str
) -> None:
    (model / "2").mkdir()
    (model / "1" / "model.graphdef").touch()
    (model / "2" / file).touch()
    config = read_model_config(model, options=OPTIONS).config
    assert (config.name, config.backend, config.platform, config.default_model_filename) == (
        "m",
        backend,
        platform,
        file,
    )


def test_a_directory_may_be_an_onnx_model(model: Path) -> None:
    (model / "1" / "model.onnx").mkdir()
    assert read_model_config(model, options=OPTIONS).config.backend == "onnxruntime"


@pytest.mark.parametrize(
    ("text", "backend", "platform", "file"),
    [
        ('backend: "onnxruntime"', "onnxruntime", "onnxruntime_onnx", "model.onnx"),
        ('platform: "onnxruntime_onnx"', "onnxruntime", "onnxruntime_onnx", "model.onnx"),
        ('platform: "pytorch_libtorch"', "pytorch", "pytorch_libtorch", "model.pt"),
        ('platform: "torch_aoti"', "pytorch", "torch_aoti", "model.pt2"),
        ('backend: "pytorch" platform: "torch_aoti"', "pytorch", "torch_aoti", "model.pt2"),
        ('backend: "pytorch"', "pytorch", "pytorch_libtorch", "model.pt"),
        ('default_model_filename: "model.xml"', "openvino", "", "model.xml"),
        ('backend: "python" default_model_filename: "net.py"', "python", "", "net.py"),
        ('backend: "identity"', "identity", "", ""),
        ('platform: "ensemble"', "", "ensemble", ""),
    ],
)
def test_a_given_backend_wins_over_the_files(
    model: Path, text: str, backend: str, platform: str, file: str
) -> None:
    config = write(model, text).config
    assert (config.backend, config.platform, config.default_model_filename) == (
        backend,
        platform,
        file,
    )


def test_the_models_name_may_decide_the_backend(tmp_path: Path) -> None:
    (tmp_path / "x.identity" / "1").mkdir(parents=True)
    config = read_model_config(tmp_path / "x.identity", options=OPTIONS).config
    assert (config.backend, config.default_model_filename) == ("identity", "model.identity")


def test_a_model_without_any_hint_of_its_backend_is_refused(model: Path) -> None:
    reported = problem(model)
    assert reported.message == (
        "Invalid model name: Could not determine backend for model 'm' with no backend in "
        "model configuration. "
        "Expected model name of the form 'model.<backend_name>'."
    )
    assert "put model.py into m/1" in reported.fix


def test_defaults(model: Path) -> None:
    config = write(model, "max_batch_size: 4 dynamic_batching { }").config
    assert config.version_policy.latest.num_versions == 1
    assert list(config.dynamic_batching.preferred_batch_size) == [4]
    assert config.optimization.input_pinned_memory.enable
    assert config.optimization.output_pinned_memory.enable
    (group,) = config.instance_group
    assert (group.name, group.kind, group.count, list(group.gpus)) == (
        "m",
        ModelInstanceGroup.KIND_CPU,
        1,
        [],
    )


def test_given_values_are_kept(model: Path) -> None:
    config = write(
        model,
        """max_batch_size: 8 version_policy { all { } }
        optimization { input_pinned_memory { enable: false } }
        sequence_batching { oldest { preferred_batch_size: 2 } max_sequence_idle_microseconds: 7 }
        instance_group [ { count: 3 kind: KIND_CPU }, { name: "x" kind: KIND_MODEL } ]""",
    ).config
    assert config.version_policy.HasField("all")
    assert not config.optimization.input_pinned_memory.enable
    assert config.optimization.output_pinned_memory.enable
    assert list(config.sequence_batching.oldest.preferred_batch_size) == [2]
    assert config.sequence_batching.max_sequence_idle_microseconds == 7
    assert [(g.name, g.count, g.kind) for g in config.instance_group] == [
        ("m_0", 3, ModelInstanceGroup.KIND_CPU),
        ("x", 1, ModelInstanceGroup.KIND_MODEL),
    ]


def test_sequence_defaults(model: Path) -> None:
    config = write(model, "max_batch_size: 8 sequence_batching { oldest { } }").config
    assert config.sequence_batching.max_sequence_idle_microseconds == 1_000_000
    assert list(config.sequence_batching.oldest.preferred_batch_size) == [8]


def test_an_ensemble_gets_no_instances(model: Path) -> None:
    config = write(model, 'platform: "ensemble" ensemble_scheduling { }').config
    assert not config.instance_group
    assert not config.HasField("optimization")


def groups(model: Path, text: str, *gpus: int) -> list[tuple[str, int, list[int]]]:
    (model / "config.pbtxt").write_text(text)
    config = read_model_config(model, options=ConfigOptions(gpus=gpus)).config
    return [
        (ModelInstanceGroup.Kind.Name(g.kind), g.count, list(g.gpus)) for g in config.instance_group
    ]


def test_gpus(model: Path) -> None:
    (model / "1" / "model.py").touch()
    assert groups(model, "", 0, 1) == [("KIND_GPU", 1, [0, 1])]
    assert groups(model, "instance_group { gpus: 1 }", 0, 1) == [("KIND_GPU", 1, [1])]
    assert groups(model, "instance_group { gpus: 7 }", 0, 1) == [("KIND_CPU", 1, [7])]
    assert groups(model, "instance_group { kind: KIND_GPU count: 2 }", 0) == [("KIND_GPU", 2, [0])]
    assert groups(model, "instance_group { kind: KIND_CPU }", 0) == [("KIND_CPU", 1, [])]
    assert groups(model, 'backend: "vllm"', 0) == [("KIND_MODEL", 1, [])]
    assert groups(model, 'backend: "openvino"', 0) == [("KIND_CPU", 1, [])]
    assert groups(model, 'backend: "onnxruntime"') == [("KIND_CPU", 2, [])]
    assert groups(model, 'backend: "onnxruntime"', 0) == [("KIND_GPU", 1, [0])]


def test_a_configuration_can_be_chosen_by_name(model: Path) -> None:
    (model / "configs").mkdir()
    (model / "configs" / "big.pbtxt").write_text("max_batch_size: 64")
    (model / "config.pbtxt").write_text("max_batch_size: 8")
    (model / "1" / "model.py").touch()

    def max_batch_size(name: str) -> int:
        return read_model_config(
            model, options=ConfigOptions(config_name=name)
        ).config.max_batch_size

    assert (max_batch_size(""), max_batch_size("big"), max_batch_size("other")) == (8, 64, 8)
    (model / "configs" / "big.pbtxt").write_text("oops")
    reported = problem(model, ConfigOptions(config_name="big"))
    assert reported.file == "m/configs/big.pbtxt"


def test_without_auto_completion_the_file_is_needed(model: Path) -> None:
    (model / "1" / "model.py").touch()
    options = ConfigOptions(is_auto_complete_enabled=False)
    reported = problem(model, options)
    assert (
        reported.message
        == "failed to open text file for read m/config.pbtxt: No such file or directory"
    )
    assert "add a config.pbtxt" in reported.fix
    (model / "config.pbtxt").touch()
    assert read_model_config(model, options=options).config.backend == "python"


def test_the_name_must_be_the_directorys(model: Path) -> None:
    (model / "config.pbtxt").write_text('\n name: "other"')
    (model / "1" / "model.py").touch()
    reported = read_model_config(model, options=OPTIONS).misnamed
    assert reported is not None
    assert (
        reported.message
        == "unexpected directory name 'm' for model 'other', directory name must equal model name"
    )
    assert reported.position == Position(2, 2)
    overridden = read_model_config(model, options=OPTIONS, override='{"name": "other"}').misnamed
    assert overridden is not None
    assert overridden.position is None
    assert read_model_config(model, options=OPTIONS, override='{"name": "m"}').misnamed is None


def test_an_override_replaces_the_file(model: Path) -> None:
    (model / "config.pbtxt").write_text("oops")
    (model / "1" / "model.py").touch()
    file = read_model_config(
        model, options=OPTIONS, override='{"max_batch_size": "2", "dynamic_batching": {}}'
    )
    assert file.config.max_batch_size == 2
    assert file.config.backend == "python"
    assert list(file.config.dynamic_batching.preferred_batch_size) == [2]
    assert file.lines.position("max_batch_size") is None
    assert "Invalid config override: " in problem(model, override="{").message


def test_files_that_cannot_be_read(model: Path) -> None:
    (model / "config.pbtxt").mkdir()
    assert (
        problem(model).message == "failed to open text file for read m/config.pbtxt: Is a directory"
    )
    (model / "config.pbtxt").rmdir()
    (model / "config.pbtxt").symlink_to(model / "gone")
    assert problem(model).code == "unreadable"
    (model / "config.pbtxt").unlink()
    with (model / "config.pbtxt").open("wb") as file:
        file.truncate(MAX_CONFIG_BYTES + 1)
    assert "larger than" in problem(model).message


def test_lines_notes_and_versions(model: Path) -> None:
    (model / "3").mkdir()
    text = 'backend: "python"\nparameters { key: "a" }\nparameters { key: "a" }'
    file = write(model, text)
    assert file.lines.position("backend") == Position(1, 1)
    assert [note.code for note in file.notes] == ["duplicate-key"]
    assert file.versions == [1, 3]
    assert isinstance(file.config, ModelConfig)
