"""`naiad deploy kubernetes`: manifests that fit the models, checked like those in deploy/."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import CliRunner, Result

from naiad.errors import NaiadError
from naiad.tools.deploy.command import command
from naiad.tools.deploy.kubernetes import quantity
from naiad.tools.deploy.requirement import GIB, MIB, read_requirements
from naiad.tools.deploy.yaml_text import yaml_text
from tests.unit.deploy.schema import Manifest, manifests
from tests.unit.deploy.test_manifests import check, check_command_line, containers

PYTHON = """
backend: "python"
max_batch_size: 0
input [ { name: "X" data_type: TYPE_FP32 dims: [ 1 ] } ]
output [ { name: "Y" data_type: TYPE_FP32 dims: [ 1 ] } ]
"""
ECHO = """
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def execute(self, requests):
        return []
"""


def add_model(repository: Path, name: str, config: str = PYTHON, num_bytes: int = 0) -> None:
    (repository / name / "1").mkdir(parents=True)
    (repository / name / "config.pbtxt").write_text(config)
    (repository / name / "1" / "model.py").write_text(ECHO)
    with (repository / name / "1" / "weights").open("wb") as file:
        file.truncate(num_bytes)


def add_checkpoint(folder: Path, num_bytes: int) -> Path:
    folder.mkdir()
    config = {
        "model_type": "llama",
        "num_hidden_layers": 32,
        "num_attention_heads": 32,
        "num_key_value_heads": 8,
        "hidden_size": 4096,
        "max_position_embeddings": 8192,
    }
    (folder / "config.json").write_text(json.dumps(config))
    with (folder / "model.safetensors").open("wb") as file:
        file.truncate(num_bytes)
    return folder


def run(*arguments: str) -> Result:
    return CliRunner(catch_exceptions=False).invoke(command, ["kubernetes", *arguments])


def render(*arguments: str) -> dict[str, Manifest]:
    result = run(*arguments)
    assert result.exit_code == 0, result.output
    documents = {document["kind"]: document for document in manifests(result.stdout)}
    for document in documents.values():
        for container in containers(document):
            check_command_line(container["args"])
        check(document)
    return documents


def container(documents: dict[str, Manifest]) -> Any:
    (one,) = containers(documents["Deployment"])
    return one


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    add_model(tmp_path / "models", "small")
    add_model(
        tmp_path / "models",
        "large",
        PYTHON + "instance_group [ { kind: KIND_CPU count: 3 } ]",
        100 * MIB,
    )
    return tmp_path / "models"


def test_a_repository(repository: Path) -> None:
    documents = render(f"--model-repository={repository}")
    assert list(documents) == ["ServiceAccount", "Deployment", "Service", "PodDisruptionBudget"]
    one = container(documents)
    # 512 + 192 + 3 * (192 + 2 * 100) MiB, rounded up to 128 MiB
    assert one["resources"]["limits"] == {"memory": "1920Mi"}
    assert one["resources"]["requests"] == {"memory": "1920Mi", "cpu": "4"}
    assert "--model-repository=/models" in one["args"]
    assert one["image"].endswith("-cpu")
    probe = one["startupProbe"]
    assert probe["periodSeconds"] * probe["failureThreshold"] >= 60
    volumes = documents["Deployment"]["spec"]["template"]["spec"]["volumes"]
    assert {"claimName": "models", "readOnly": True} in [
        volume.get("persistentVolumeClaim") for volume in volumes
    ]


def test_gpus_of_instance_groups(repository: Path) -> None:
    add_model(repository, "one", PYTHON + "instance_group [ { kind: KIND_GPU } ]")
    add_model(repository, "two", PYTHON + "instance_group [ { kind: KIND_GPU gpus: [ 0, 2 ] } ]")
    one = container(render(f"--model-repository={repository}"))
    assert one["resources"]["limits"]["nvidia.com/gpu"] == 3
    assert one["image"].endswith("-cuda13")
    other = container(
        render(f"--model-repository={repository}", "--gpus=1", "--gpu-resource=amd.com/gpu")
    )
    assert other["resources"]["limits"]["amd.com/gpu"] == 1


def test_a_language_model(tmp_path: Path) -> None:
    checkpoint = add_checkpoint(tmp_path / "llama", 16 * GIB)
    result = run(f"--model={checkpoint}")
    # (16 + 2 + 2 * 32 * 8 * 128 * 8192 * 2 bytes = 1 GiB) / 0.9
    assert "on the GPU at least 21.1 GiB" in result.output
    documents = render(f"--model=chat={checkpoint}", "--scaler=keda", "--namespace=ai")
    one = container(documents)
    assert one["resources"]["limits"] == {"memory": "22Gi", "nvidia.com/gpu": 1}
    assert "--model=chat=/models/llama" in one["args"]
    assert "vllm:num_requests_waiting" in json.dumps(documents["ScaledObject"])
    probe = one["startupProbe"]
    # 30 + 3 * (60 + 16 GiB / 100 MiB/s)
    assert probe["periodSeconds"] * probe["failureThreshold"] == pytest.approx(702, abs=2)


def test_a_language_model_on_a_cpu(tmp_path: Path) -> None:
    (tmp_path / "tiny.gguf").write_bytes(bytes(MIB))
    (requirement,) = read_requirements([_llm(tmp_path, str(tmp_path / "tiny.gguf"))])
    assert (requirement.num_gpus, requirement.memory_bytes) == (0, 3 * GIB + int(2.5 * MIB))


def _llm(folder: Path, checkpoint: str) -> Path:
    (folder / "llm" / "chat" / "1").mkdir(parents=True)
    (folder / "llm" / "chat" / "config.pbtxt").write_text(
        'backend: "llm"\n'
        f'parameters {{ key: "checkpoint" value {{ string_value: "{checkpoint}" }} }}'
    )
    return folder / "llm"


def test_secrets_and_scaling(repository: Path) -> None:
    documents = render(
        f"--model-repository={repository}",
        "--serve-from=s3://bucket/models",
        "--api-key-secret=keys",
        "--tls-secret=tls",
        "--scaler=hpa",
        "--replicas=2",
        "--name=demo",
        "--memory=3Gi",
    )
    assert documents["Service"]["metadata"]["name"] == "demo-naiad"
    assert "replicas" not in documents["Deployment"]["spec"]
    assert documents["HorizontalPodAutoscaler"]["spec"]["minReplicas"] == 2
    one = container(documents)
    assert "--api-key-file=/etc/naiad/keys/keys.json" in one["args"]
    assert "--model-repository=s3://bucket/models" in one["args"]
    assert one["readinessProbe"]["httpGet"]["scheme"] == "HTTPS"
    assert one["resources"]["limits"]["memory"] == "3072Mi"
    assert not any("subPath" in mount for mount in one["volumeMounts"])
    assert "models" not in {mount["name"] for mount in one["volumeMounts"]}


def test_the_same_labels_and_ports_as_the_chart(repository: Path) -> None:
    chart = Path(__file__).parents[3] / "deploy/helm/naiad/templates"
    documents = render(f"--model-repository={repository}")
    helpers = (chart / "_helpers.tpl").read_text() + (chart / "workload.yaml").read_text()
    labels = documents["Deployment"]["metadata"]["labels"]
    assert all(f"{label}:" in helpers for label in labels)
    assert documents["Deployment"]["spec"]["selector"]["matchLabels"] == {
        "app.kubernetes.io/name": "naiad",
        "app.kubernetes.io/instance": "naiad",
    }
    for port in container(documents)["ports"]:
        assert f"{{name: {port['name']}, containerPort: {port['containerPort']}}}" in helpers


def test_measured_time(repository: Path) -> None:
    result = run(f"--model-repository={repository}", "--measure")
    assert result.exit_code == 0, result.output
    assert "s to load (measured)" in result.stdout
    assert "small: loaded in" in result.stderr


def test_a_model_that_does_not_load_is_named(repository: Path) -> None:
    (repository / "small" / "1" / "model.py").write_text("import nothing_of_this_name")
    with pytest.raises(NaiadError, match="small did not load"):
        run(f"--model-repository={repository}", "--measure")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--name=Upper"], "--name: 'Upper' must consist of"),
        (["--memory=lots"], "--memory: 'lots' is not a size"),
        (["--replicas=5", "--max-replicas=4"], "--max-replicas is 4, expected at least 5"),
    ],
)
def test_bad_options(repository: Path, arguments: list[str], message: str) -> None:
    with pytest.raises(NaiadError, match=message):
        run(f"--model-repository={repository}", *arguments)


def test_what_cannot_be_planned(tmp_path: Path) -> None:
    with pytest.raises(NaiadError, match="the size of the checkpoint 'org/model' is not known"):
        run("--model=org/model")
    (tmp_path / "empty").mkdir()
    with pytest.raises(NaiadError, match="there is no model in"):
        run(f"--model-repository={tmp_path / 'empty'}")
    assert "give --model-repository DIR or --model" in run().output


@pytest.mark.parametrize(
    "value",
    [
        {"a": {"b": [1, {"c": "x", "d": [True, None]}, "yes", "1", "a: b", ""]}, "e": {}, "f": []},
        ["-x", "#", "http://h:1/p", "0x1", "~", "a\nb", "ünï", "- a", "{}", "*a", "&b", "1e3"],
        {"metadata": {"app.kubernetes.io/name": "naiad", "true": "no"}},
    ],
)
def test_yaml_reads_what_was_written(value: Any) -> None:
    assert yaml.safe_load(yaml_text(value)) == value


def test_quantities_are_rounded_up() -> None:
    assert [quantity(number) for number in (1, 128 * MIB, 128 * MIB + 1, 4 * GIB + 1)] == [
        "128Mi",
        "128Mi",
        "256Mi",
        "5Gi",
    ]
