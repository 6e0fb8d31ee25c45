"""Every manifest is valid by its own API's schema, and its command line by ours."""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from naiad.cluster.command import command
from naiad.cluster.spec import parse_spec
from naiad.settings.resolve import OPTIONS, find_option
from tests.unit.deploy.schema import CRDS, Manifest, custom_schema, manifests

DEPLOY = Path(__file__).parents[3] / "deploy"
CHART = DEPLOY / "helm" / "naiad"
FILES = sorted(
    path for folder in ("kserve", "gateway", "kuberay") for path in DEPLOY.glob(f"{folder}/*.yaml")
)
VARIANTS: dict[str, Manifest] = {
    "default": {},
    "everything": {
        "replicas": 3,
        "models": {"existingClaim": "models"},
        "apiKeys": {"existingSecret": "keys"},
        "tls": {"existingSecret": "tls"},
        "gpus": 1,
        "keda": {"enabled": True, "firstTokenSeconds": 1.5},
        "podMonitor": {"enabled": True, "labels": {"release": "prometheus"}},
        "networkPolicy": {"enabled": True, "from": [{"podSelector": {}}]},
        "args": ["--log-json=true", "--model-control-mode=poll"],
        "env": [{"name": "NAIAD_LOG_INFO", "value": "false"}],
        "podLabels": {"llm-d.ai/engine-type": "vllm"},
        "tolerations": [{"key": "nvidia.com/gpu", "operator": "Exists"}],
    },
    "stateful": {
        "kind": "StatefulSet",
        "cache": {"storageClassName": "fast", "size": "100Gi"},
        "autoscaling": {"enabled": True, "podMetric": "naiad_pending_requests"},
        "tls": {"existingSecret": "tls", "mutual": True},
        "serviceAccount": {"create": False},
        "podDisruptionBudget": {"enabled": False},
    },
}
GO_PATH = Path("/usr/share/gocode")


@pytest.fixture(scope="session")
def renderer(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """helm, or a program that renders with the same engine (deploy/helm/render.go)."""
    if shutil.which("helm"):
        return ["helm"]
    if shutil.which("go") is None or not (GO_PATH / "src/github.com/Masterminds/sprig").is_dir():
        pytest.skip("needs helm, or Debian's golang-go and golang-github-masterminds-sprig-dev")
    program = tmp_path_factory.mktemp("render") / "render"
    environ = {**os.environ, "GOPATH": str(GO_PATH), "GO111MODULE": "off"}
    environ["GOCACHE"] = str(program.parent / "cache")
    source = DEPLOY / "helm" / "render.go"
    subprocess.run(["go", "build", "-o", program, source], check=True, env=environ)
    return [str(program)]


def render(renderer: list[str], values: Manifest, folder: Path) -> list[Manifest]:
    file = folder / "values.yaml"
    file.write_text(yaml.safe_dump(values))
    command = (
        ["helm", "template", "demo", str(CHART), "--namespace=models", f"--values={file}"]
        if renderer == ["helm"]
        else [*renderer, str(CHART), "demo", "models", str(file)]
    )
    result = subprocess.run(command, capture_output=True, text=True)
    assert result.returncode == 0, result.stderr
    return manifests(result.stdout)


def check(manifest: Manifest) -> None:
    group, _, version = manifest["apiVersion"].rpartition("/")
    if is_builtin(group):
        validate = pytest.importorskip("kubernetes_validate")
        validate.validate(manifest, "1.33", strict=True)
        return
    if not CRDS.is_dir():
        pytest.skip("needs NAIAD_CRDS")
    schema = custom_schema(group, version, manifest["kind"])
    assert schema is not None, f"no schema for {manifest['apiVersion']} {manifest['kind']}"
    pytest.importorskip("jsonschema").validate(manifest, schema)


def is_builtin(group: str) -> bool:
    return group in ("", "apps", "policy", "autoscaling", "networking.k8s.io")


def containers(manifest: Manifest) -> list[Any]:
    spec = manifest.get("spec", {})
    pod = spec.get("template", {}).get("spec") or spec.get("template") or spec
    return list(pod.get("containers", []))


def check_command_line(arguments: list[str]) -> None:
    program, *rest = arguments
    if program == "naiad":
        assert rest.pop(0) == "serve"
    for argument in rest:
        name, _, value = argument.removeprefix("--").partition("=")
        option = find_option(name, argument)
        option.parse(value)


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_manifests_are_valid(path: Path) -> None:
    documents = manifests(path.read_text())
    assert documents
    for document in documents:
        for container in containers(document):
            check_command_line(container["args"])
        check(document)


def test_the_kuberay_example_runs_commands_and_a_cluster_file_that_are_valid() -> None:
    documents = manifests((DEPLOY / "kuberay" / "cluster.yaml").read_text())
    config, *_, cluster = documents
    spec = parse_spec(config["data"]["cluster.toml"].encode(), ".toml", "cluster.toml")
    assert spec.router.address == "0.0.0.0"
    groups = [cluster["spec"]["headGroupSpec"], *cluster["spec"]["workerGroupSpecs"]]
    ran = []
    for group in groups:
        [container] = group["template"]["spec"]["containers"]
        [hook] = container["lifecycle"].values()
        for line in re.split("&&", hook["exec"]["command"][-1]):
            program, tool, name, *arguments = shlex.split(line)
            assert (program, tool) == ("naiad", "cluster")
            command.commands[name].make_context(name, arguments)
            ran.append(name)
    assert ran == ["attach", "apply", "drain"]
    assert cluster["spec"]["authOptions"]["mode"] == "token"


@pytest.mark.parametrize("variant", VARIANTS)
def test_the_chart_renders_valid_manifests(
    variant: str, renderer: list[str], tmp_path: Path
) -> None:
    documents = render(renderer, VARIANTS[variant], tmp_path)
    kinds = {document["kind"] for document in documents}
    assert {"Service", VARIANTS[variant].get("kind", "Deployment")} <= kinds
    for document in documents:
        for container in containers(document):
            check_command_line(container["args"])
        check(document)


def test_the_chart_gives_the_server_time_to_drain(renderer: list[str], tmp_path: Path) -> None:
    values = {"shutdown": {"drainDelaySeconds": 10, "exitTimeoutSeconds": 60}}
    documents = render(renderer, values, tmp_path)
    workload = next(each for each in documents if each["kind"] == "Deployment")
    pod = workload["spec"]["template"]["spec"]
    assert pod["terminationGracePeriodSeconds"] > 70
    assert "--drain-delay-secs=10" in pod["containers"][0]["args"]
    # A Secret mounted by subPath would never change in the container.
    assert not any("subPath" in mount for mount in pod["containers"][0]["volumeMounts"])


def test_two_autoscalers_are_refused(renderer: list[str], tmp_path: Path) -> None:
    with pytest.raises(AssertionError, match="exclude each other"):
        render(renderer, {"keda": {"enabled": True}, "autoscaling": {"enabled": True}}, tmp_path)


def test_the_schema_of_values() -> None:
    jsonschema = pytest.importorskip("jsonschema")
    schema = json.loads((CHART / "values.schema.json").read_text())
    defaults = yaml.safe_load((CHART / "values.yaml").read_text())
    jsonschema.validate(defaults, schema)
    assert set(defaults) == set(schema["properties"]) - {"global"}
    for values in VARIANTS.values():
        jsonschema.validate(values, schema)
    for wrong in (
        {"replica": 2},
        {"kind": "DaemonSet"},
        {"image": {"tag": "latest"}},
        {"modelRepositories": ["models"]},
        {"gpus": -1},
        {"shutdown": {"exitTimeoutSeconds": 0}},
    ):
        with pytest.raises(jsonschema.ValidationError):
            jsonschema.validate(wrong, schema)


def test_the_alerts_and_rules(tmp_path: Path) -> None:
    promtool = shutil.which("promtool")
    if promtool is None:
        pytest.skip("needs promtool")
    result = subprocess.run(
        [promtool, "test", "rules", DEPLOY / "prometheus" / "tests.yml"],
        capture_output=True,
        text=True,
    )
    assert result.returncode == 0, result.stdout + result.stderr


def test_every_alert_is_tested() -> None:
    alerts = yaml.safe_load((DEPLOY / "prometheus" / "alerts.yml").read_text())
    names = {rule["alert"] for group in alerts["groups"] for rule in group["rules"]}
    tests = yaml.safe_load((DEPLOY / "prometheus" / "tests.yml").read_text())["tests"]
    fired = {
        case["alertname"]
        for test in tests
        for case in test.get("alert_rule_test", [])
        if case["exp_alerts"]
    }
    assert names == fired


def test_the_compose_file() -> None:
    compose = yaml.safe_load((DEPLOY / "compose" / "compose.yaml").read_text())
    naiad = compose["services"]["naiad"]
    check_command_line(naiad["command"])
    drain = int(OPTIONS["exit-timeout-secs"].default) + 2
    assert int(naiad["stop_grace_period"].removesuffix("s")) > drain
    for service in compose["services"].values():
        for volume in service.get("volumes", []):
            source = volume.split(":")[0]
            assert not source.startswith(".") or (DEPLOY / "compose" / source).exists(), source


def test_the_checks_find_a_misspelt_field() -> None:
    validate = pytest.importorskip("kubernetes_validate")
    jsonschema = pytest.importorskip("jsonschema")
    pod = {"apiVersion": "v1", "kind": "Service", "metadata": {"name": "a"}, "spec": {"port": []}}
    with pytest.raises(validate.ValidationError):
        check(pod)
    if CRDS.is_dir():
        pool = manifests((DEPLOY / "gateway" / "inference-pool.yaml").read_text())[0]
        pool["spec"]["targetPort"] = 8000
        with pytest.raises(jsonschema.ValidationError):
            check(pool)


@pytest.mark.parametrize("name", ["runtime", "runtime-llm"])
def test_kserves_runtimes_end_within_the_default_grace(name: str) -> None:
    """Only the InferenceService can set another one, and most do not."""
    (container,) = yaml.safe_load((DEPLOY / "kserve" / f"{name}.yaml").read_text())["spec"][
        "containers"
    ]
    flags = dict(flag[2:].split("=", 1) for flag in container["args"] if "=" in flag)
    assert int(flags["drain-delay-secs"]) + int(flags["exit-timeout-secs"]) < 30
