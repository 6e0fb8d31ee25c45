"""`naiad router` with the policy `prefix`, in front of real engines that publish KV events."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.server.gates import eventually
from tests.server.harness import Server, free_ports, naiad_command, naiad_environment, port_flags
from tests.server.llm_checkpoint import parameter, write_checkpoint, write_model
from tests.server.llm_repository import SMALL

pytest.importorskip("torch", reason="language models need torch")
pytest.importorskip("transformers", reason="the tests' checkpoint is made by transformers")
pytest.importorskip("zmq", reason="the extra kv-events brings it")


class Fleet:
    """Two servers with the model `tiny`, each with events of its own. The first one has the
    endpoints from its model's parameters, the second one from its flags, as in a cluster."""

    def __init__(self, folder: Path) -> None:
        self.checkpoint = write_checkpoint(folder / "checkpoint", max_positions=4096)
        self.servers: dict[str, Server] = {}
        rows = []
        for name in ("a", "b"):
            events, replay, _ = free_ports()
            endpoints = {
                "kv_events_endpoint": f"tcp://127.0.0.1:{events}",
                "kv_events_replay_endpoint": f"tcp://127.0.0.1:{replay}",
            }
            has_parameters = name == "a"
            settings = {**SMALL, **endpoints} if has_parameters else SMALL
            flags = [f"--backend-config=llm,{key}={value}" for key, value in endpoints.items()]
            write_model(
                folder / name,
                "tiny",
                'backend: "llm"\n'
                + parameter("checkpoint", self.checkpoint)
                + "".join(parameter(key, value) for key, value in settings.items()),
            )
            ports = free_ports()
            command = naiad_command(
                "serve",
                f"--model-repository={folder / name}",
                *port_flags(ports),
                *([] if has_parameters else flags),
            )
            self.servers[name] = Server(command, ports, naiad_environment())
            rows.append(
                f'[[replica]]\nurl = "http://127.0.0.1:{ports[0]}"\nname = "{name}"\n'
                f'kv_events = "tcp://127.0.0.1:{events}"\nkv_replay = "tcp://127.0.0.1:{replay}"\n'
            )
        self.config = folder / "fleet.toml"
        self.config.write_text(
            "\n".join(rows)
            + f'\n[model.tiny]\npolicy = "prefix"\ntokenizer = "{self.checkpoint}"\n'
        )
        for server in self.servers.values():
            server.wait_started()

    def route(self) -> Server:
        ports = free_ports()
        command = naiad_command("router", f"--config={self.config}", *port_flags(ports))
        router = Server(command, ports, naiad_environment()).wait_started()
        eventually(
            lambda: all(row["state"] == "ready" for row in replicas(router)), "not ready", 120
        )
        return router

    def stop(self) -> None:
        for server in self.servers.values():
            server.stop()


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fleet]:
    one = Fleet(tmp_path_factory.mktemp("llm_router"))
    yield one
    one.stop()


def replicas(router: Server) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads(router.get("/router/replicas")[1])["replicas"]
    return found


def served(router: Server) -> dict[str, int]:
    return {row["name"]: row["counters"].get("requests", 0) for row in replicas(router)}


def ask(router: Server, system: str, question: str) -> tuple[str, int]:
    """Returns the replica that responded, and how much of the prompt it had in its cache."""
    before = served(router)
    status, body = router.post(
        "/v1/chat/completions",
        {
            "model": "tiny",
            "messages": [
                {"role": "system", "content": system},
                {"role": "user", "content": question},
            ],
            "max_tokens": 4,
            "temperature": 0,
        },
    )
    assert status == 200, body
    usage = json.loads(body)["usage"]
    after = served(router)
    (name,) = [name for name in after if after[name] != before[name]]
    return name, usage["prompt_tokens_details"]["cached_tokens"]


def test_a_prompt_goes_where_its_beginning_is(fleet: Fleet) -> None:
    router = fleet.route()
    try:
        # They differ from the first block on.
        systems = {letter: f"{letter} is who you are here. " * 32 for letter in "pqrs"}
        homes = {letter: ask(router, text, "Hello?")[0] for letter, text in systems.items()}
        assert set(homes.values()) == {"a", "b"}
        for number in range(3):
            for letter, text in systems.items():
                name, num_cached = ask(router, text, f"Question {number}")
                assert name == homes[letter]
                assert num_cached > 700
        second = fleet.route()  # learns from the replay what the engines hold
        try:
            for letter, text in systems.items():
                name, num_cached = ask(second, text, "Again?")
                assert (name, num_cached > 700) == (homes[letter], True)
        finally:
            second.stop()
    finally:
        router.stop()
