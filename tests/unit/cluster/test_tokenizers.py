"""Deployments with a tokenizer: replicas publish KV events, and routers read them."""

from __future__ import annotations

import importlib.util
import time
from pathlib import Path
from typing import Any

import msgspec
import pytest

from naiad.cluster import controller, supervisor, tokenizer_checks
from naiad.cluster.command import describe
from naiad.cluster.controller import Controller
from naiad.cluster.router_load import RouterLoad
from naiad.cluster.spec import parse_spec
from naiad.cluster.supervisor import ServerSpec, Supervisor
from naiad.cluster.tokenizer_checks import TokenizerChecks, tokenizer_problem
from naiad.errors import NaiadError
from naiad.router.config import RouterConfig, check_replica
from tests.unit.cluster.fake_machines import FakeMachines, node

CHAT = """
[router]
count = 2
[[deployment]]
name = "all"
repository = "/m"
router_policy = "session"
[[deployment]]
name = "chat"
repository = "/m"
models = ["chat"]
router_policy = "prefix"
"""
TOKENIZER = 'tokenizer = "/models/chat"\n'
PROBLEM = "there is no file '/models/chat'"


class Cluster:
    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.machines = FakeMachines(node("head"), node("other"))
        self.now_s = 0.0
        self.controller = self.make_controller()

    def make_controller(self) -> Controller:
        load = RouterLoad(is_known=True)
        return Controller(
            self.machines, self.folder, "id-head", lambda *_: load, lambda: self.now_s
        )

    def apply(self, text: str) -> None:
        self.controller.apply(parse_spec(text.encode(), ".toml", "cluster.toml"))

    def tick(self, count: int = 3) -> None:
        for _ in range(count):
            self.now_s += 1
            self.machines.make_ready()
            self.controller.tick()

    def server(self, deployment: str) -> ServerSpec:
        [name] = [name for name in self.machines.servers if name.startswith(f"{deployment}-")]
        return self.machines.servers[name][0]

    def config(self, node_name: str) -> dict[str, Any]:
        """What the router of a node was told last."""
        [config] = [
            self.machines.configs[name]
            for name, (_, node_id, _) in self.machines.servers.items()
            if name.startswith("router") and node_id == f"id-{node_name}"
        ]
        for spec in msgspec.json.decode(config, type=RouterConfig).replica:
            check_replica(spec)
        decoded: dict[str, Any] = msgspec.json.decode(config)
        return decoded

    def row(self, node_name: str, deployment: str = "chat") -> dict[str, str]:
        rows = self.config(node_name)["replica"]
        [row] = [row for row in rows if row["name"].startswith(f"{deployment}-")]
        found: dict[str, str] = row
        return found


@pytest.fixture
def cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Cluster:
    monkeypatch.setattr(controller, "tokenizer_problem", lambda path: "")
    return Cluster(tmp_path / "state")


def test_replicas_publish_where_they_listen_and_routers_know_it(cluster: Cluster) -> None:
    cluster.apply(CHAT + TOKENIZER)
    cluster.tick()
    chat = cluster.server("chat")
    assert chat.publishes_kv_events
    for backend in ("llm", "vllm", "tensorrtllm"):
        for setting, port in (
            ("kv_events_endpoint", "{kv_events}"),
            ("kv_events_replay_endpoint", "{kv_replay}"),
        ):
            wanted = f"--backend-config={backend},{setting}=tcp://{chat.address}:{port}"
            assert wanted in chat.arguments
    for name in ("head", "other"):
        assert cluster.config(name)["model"]["chat"] == {
            "policy": "prefix",
            "tokenizer": "/models/chat",
        }
        assert cluster.row(name)["kv_events"] == f"tcp://{chat.address}:9003"
        assert cluster.row(name)["kv_replay"] == f"tcp://{chat.address}:9004"
        assert "kv_events" not in cluster.row(name, "all")
    assert not cluster.server("all").publishes_kv_events
    assert not any("kv_events" in argument for argument in cluster.server("all").arguments)


def test_a_model_that_is_named_comes_before_the_pattern_of_all(cluster: Cluster) -> None:
    cluster.apply(CHAT + TOKENIZER)
    cluster.tick()
    assert list(cluster.config("head")["model"]) == ["chat", "*"]


def test_without_a_tokenizer_nothing_is_published(cluster: Cluster) -> None:
    cluster.apply(CHAT)
    cluster.tick()
    assert not cluster.server("chat").publishes_kv_events
    assert "kv_events" not in cluster.row("head")
    assert cluster.config("head")["model"]["chat"]["tokenizer"] == ""


def test_apply_refuses_a_tokenizer_that_the_head_cannot_use(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(controller, "tokenizer_problem", lambda path: PROBLEM)
    with pytest.raises(NaiadError) as refusal:
        cluster.apply(CHAT + TOKENIZER)
    assert refusal.value.message == (
        "deployment 'chat': the head, which has a router, cannot use the tokenizer "
        f"'/models/chat': {PROBLEM}"
    )
    cluster.tick()
    assert cluster.machines.servers == {}


def test_a_router_that_cannot_use_a_tokenizer_compares_texts(cluster: Cluster) -> None:
    cluster.machines.tokenizers["id-other"] = {"/models/chat": PROBLEM}
    cluster.machines.tokenizers["id-head"] = {"/models/chat": ""}
    cluster.apply(CHAT + TOKENIZER)
    cluster.tick()
    assert cluster.row("head")["kv_events"]
    assert cluster.config("head")["model"]["chat"]["tokenizer"] == "/models/chat"
    assert cluster.config("other")["model"]["chat"] == {"policy": "prefix", "tokenizer": ""}
    found = {**cluster.controller.status(), "error": ""}
    assert (
        f"on other: it compares texts, because it cannot use the tokenizer '/models/chat': "
        f"{PROBLEM}" in describe(found)
    )
    # A controller that was killed remembers it until the first report.
    cluster.controller = cluster.make_controller()
    cluster.machines.states.update(dict.fromkeys(cluster.machines.states, None))
    cluster.machines.configs.clear()
    cluster.controller.tick()
    assert cluster.config("other")["model"]["chat"]["tokenizer"] == ""
    cluster.machines.tokenizers["id-other"] = {"/models/chat": ""}
    cluster.tick()
    assert cluster.config("other") == cluster.config("head")
    assert "compares texts" not in describe({**cluster.controller.status(), "error": ""})


def test_a_router_without_pyzmq_keeps_its_replicas(cluster: Cluster) -> None:
    missing = "the package zmq is not installed: pip install '.[kv-events]'"
    cluster.machines.tokenizers["id-other"] = {"/models/chat": missing}
    cluster.machines.without_zmq.add("id-other")
    cluster.apply(CHAT + TOKENIZER)
    cluster.tick()
    assert cluster.row("head")["kv_replay"]
    assert not {"kv_events", "kv_replay"} & set(cluster.row("other"))
    assert cluster.row("other")["url"] == cluster.row("head")["url"]
    assert cluster.config("other")["model"]["chat"]["tokenizer"] == ""


def test_a_router_that_runs_gets_a_tokenizer_after_its_node_has_checked_it(
    cluster: Cluster,
) -> None:
    for name in ("id-head", "id-other"):
        cluster.machines.tokenizers[name] = {}
    cluster.apply(CHAT)
    cluster.tick()
    cluster.apply(CHAT + TOKENIZER)
    cluster.tick(1)
    assert cluster.config("other")["model"]["chat"]["tokenizer"] == ""
    assert "compares texts" not in describe({**cluster.controller.status(), "error": ""})
    cluster.machines.tokenizers["id-other"] = {"/models/chat": ""}
    cluster.tick()
    assert cluster.config("other")["model"]["chat"]["tokenizer"] == "/models/chat"
    assert cluster.config("head")["model"]["chat"]["tokenizer"] == ""


def test_supervisors_of_routers_get_the_list_of_tokenizers(cluster: Cluster) -> None:
    cluster.apply(CHAT)
    cluster.tick()
    assert cluster.machines.files["router", "tokenizers.json"] == b"[]"
    spec = cluster.machines.servers["router"][0]
    assert spec.files[spec.tokenizers_file] == b"[]"
    cluster.apply(CHAT + TOKENIZER)
    cluster.tick()
    assert cluster.machines.files["router", "tokenizers.json"] == b'["/models/chat"]'


def test_the_supervisor_chooses_the_ports_and_reports_tokenizers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tokenizer_checks, "_PACKAGES", {})
    monkeypatch.setattr(supervisor, "CHECK_S", 0.01)
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: object())
    (tmp_path / "s").mkdir()
    (tmp_path / "s" / "list.json").write_text('["/not/there"]')
    spec = ServerSpec(
        name="s",
        arguments=("--version", "tcp://127.0.0.1:{kv_events}", "{kv_replay}"),
        publishes_kv_events=True,
        tokenizers_file="list.json",
    )
    one = Supervisor(spec, tmp_path)
    try:
        ports = one.report().ports
        assert set(ports) == {"http", "grpc", "metrics", "kv_events", "kv_replay"}
        assert len(set(ports.values())) == 5
        assert one._command(ports)[-2:] == [
            f"tcp://127.0.0.1:{ports['kv_events']}",
            str(ports["kv_replay"]),
        ]
        limit_s = time.monotonic() + 20
        while not one.report().tokenizers and time.monotonic() < limit_s:
            time.sleep(0.01)
        assert one.report().tokenizers == {"/not/there": "there is no file '/not/there'"}
    finally:
        one.stop(0.0)


def test_a_node_without_pyzmq_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    spec = ServerSpec(name="s", arguments=(), publishes_kv_events=True)
    with pytest.raises(NaiadError, match=r"no pyzmq, .*: pip install '\.\[kv-events\]'"):
        Supervisor(spec, tmp_path)


def test_a_package_that_is_missing_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    missing = {"tokenizers", "zmq"}
    monkeypatch.setattr(
        importlib.util,
        "find_spec",
        lambda name: None if name in missing else object(),
    )
    assert tokenizer_problem("/x") == (
        "the package tokenizers is not installed: pip install '.[llm]'"
    )
    missing.remove("tokenizers")
    assert tokenizer_problem("/x") == (
        "the package zmq is not installed: pip install '.[kv-events]'"
    )
    missing.clear()
    assert tokenizer_problem("/x") == "there is no file '/x'"


def test_a_tokenizer_is_read_again_when_its_file_changes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tokenizers = pytest.importorskip("tokenizers")
    pytest.importorskip("jinja2")
    monkeypatch.setattr(tokenizer_checks, "_PACKAGES", {})
    folder, paths = tmp_path / "chat", tmp_path / "list.json"
    folder.mkdir()
    paths.write_bytes(msgspec.json.encode([str(folder)]))
    file = folder / "tokenizer.json"
    checks = TokenizerChecks()
    checks.check(paths)
    assert checks.problems == {str(folder): f"there is no file '{file}'"}
    file.write_text("{")
    checks.check(paths)
    assert f"'{file}' cannot be read" in checks.problems[str(folder)]
    tokenizers.Tokenizer(tokenizers.models.WordLevel({"a": 0}, "a")).save(str(file))
    checks.check(paths)
    assert checks.problems == {str(folder): ""}
    monkeypatch.setattr(tokenizer_checks, "_file_problem", lambda file: "it was read again")
    checks.check(paths)
    assert checks.problems == {str(folder): ""}
    file.unlink()
    checks.check(paths)
    assert checks.problems == {str(folder): "it was read again"}
