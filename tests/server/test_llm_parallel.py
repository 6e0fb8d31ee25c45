"""A language model on several ranks behind a server: the same responses as on one, ranks that die,
and processes that are gone with the server."""

from __future__ import annotations

import json
import os
import signal
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.server.gates import eventually
from tests.server.harness import Server, naiad, process_name, process_tree, wait_gone
from tests.server.llm_client import GREEDY, generate, worker_pid
from tests.server.llm_repository import SMALL

SCHEMA = {
    "type": "object",
    "properties": {"sum": {"type": "integer"}, "ok": {"type": "boolean"}},
    "required": ["sum", "ok"],
    "additionalProperties": False,
}
RESTART_S = 60.0


@pytest.fixture(scope="module")
def repository(tmp_path_factory: pytest.TempPathFactory) -> Path:
    pytest.importorskip("torch", reason="language models need torch")
    pytest.importorskip("transformers", reason="the tests' checkpoint is made by transformers")
    from tests.server.llm_checkpoint import parameter, write_checkpoint, write_model

    folder = tmp_path_factory.mktemp("parallel")
    checkpoint = write_checkpoint(folder / "checkpoint", max_positions=4096)
    settings = {**SMALL, "checkpoint": checkpoint, "dtype": "float32"}
    for name, more in (("one", {}), ("two", {"tensor_parallel_size": 2})):
        text = "".join(parameter(key, value) for key, value in {**settings, **more}.items())
        write_model(folder / "repository", name, 'backend: "llm"\n' + text)
    arguments = {"model": str(checkpoint), "max_num_seqs": 8, "device": "cpu"}
    arguments |= {"tensor_parallel_size": 2, "dtype": "float32"}
    write_model(
        folder / "repository", "two_vllm",
        'backend: "vllm"\ninstance_group [ { count: 1 kind: KIND_MODEL } ]\n',
        {"1/model.json": json.dumps(arguments)},
    )  # fmt: skip
    return folder / "repository"


@pytest.fixture(scope="module")
def server(repository: Path) -> Iterator[Server]:
    with naiad([str(repository)]) as running:
        yield running


def ranks(pid: int) -> list[int]:
    """Returns the processes of the ranks below a process."""
    return [child for child in process_tree(pid) if process_name(child) == "llm-rank"]


def text(server: Server, model: str, **more: Any) -> str:
    response = generate(server, model, text_input="The river", max_tokens=24, **GREEDY, **more)
    found: str = response["text_output"]
    return found


def test_responses_are_those_of_one_rank(server: Server) -> None:
    assert text(server, "two") == text(server, "one")
    # The prefix is in the cache now.
    assert text(server, "two") == text(server, "one")
    assert text(server, "two_vllm", exclude_input_in_output=True) == text(server, "one")
    config = json.loads(server.get("/v2/models/two/config")[1])
    assert config["parameters"]["tensor_parallel_size"] == {"string_value": "2"}


def test_structured_output(server: Server) -> None:
    pytest.importorskip("xgrammar", reason="structured output needs xgrammar")

    def ask(model: str) -> str:
        body = {
            "model": model,
            "messages": [{"role": "user", "content": "add"}],
            "max_tokens": 200,
            "temperature": 0,
            "response_format": {
                "type": "json_schema", "json_schema": {"name": "sum", "schema": SCHEMA},
            },
        }  # fmt: skip
        status, response = server.post("/v1/chat/completions", body)
        assert status == 200, response
        content: str = json.loads(response)["choices"][0]["message"]["content"]
        return content

    assert ask("two") == ask("one")


def test_kill_9_of_a_rank_restarts_the_group(server: Server) -> None:
    before = text(server, "two")
    worker = worker_pid(server, "two")
    (rank,) = ranks(worker)
    results: list[tuple[int, bytes]] = []

    def ask() -> None:
        body = {"text_input": "The", "max_tokens": 3000, **GREEDY}
        results.append(server.post("/v2/models/two/generate", body))

    client = threading.Thread(target=ask)
    client.start()
    is_running = 'vllm:num_requests_running{model="two"'
    eventually(
        lambda: any(
            line.startswith(is_running) and float(line.split()[-1]) > 0
            for line in server.get("/metrics", "metrics")[1].decode().splitlines()
        ),
        "the request runs",
    )
    os.kill(rank, signal.SIGKILL)
    client.join(30)
    assert results
    assert results[0][0] >= 500
    assert wait_gone([worker, rank]) == []
    eventually(lambda: server.is_ready("/v2/models/two/ready"), "ready again", RESTART_S)
    assert text(server, "two") == before
    assert worker_pid(server, "two") != worker
    assert len(ranks(worker_pid(server, "two"))) == 1


def test_kill_9_of_an_idle_groups_rank_restarts_it(server: Server) -> None:
    worker = worker_pid(server, "two")
    os.kill(ranks(worker)[0], signal.SIGKILL)
    assert wait_gone([worker]) == []
    server.wait_for_line("rank 1 of 2 was killed by SIGKILL: the instance is started again")
    eventually(lambda: server.is_ready("/v2/models/two/ready"), "ready again", RESTART_S)
    assert text(server, "two") == text(server, "one")


def test_kill_9_of_the_worker_leaves_no_rank(server: Server) -> None:
    worker = worker_pid(server, "two")
    (rank,) = ranks(worker)
    os.kill(worker, signal.SIGKILL)
    assert wait_gone([worker, rank]) == []
    eventually(lambda: server.is_ready("/v2/models/two/ready"), "ready again", RESTART_S)


def test_nothing_outlives_the_server(repository: Path, tmp_path: Path) -> None:
    with naiad([str(repository)], environment={"TMPDIR": str(tmp_path)}) as server:
        found = ranks(server.pid)
        assert len(found) == 2
        os.kill(server.pid, signal.SIGKILL)
        assert wait_gone(found) == []
    with naiad([str(repository)], environment={"TMPDIR": str(tmp_path)}) as server:
        assert len(list(tmp_path.glob("naiad-ranks-*"))) == 2, "those of the first are gone"
        worker = worker_pid(server, "two")
        os.kill(ranks(worker)[0], signal.SIGKILL)
        assert wait_gone([worker]) == []
        eventually(lambda: server.is_ready("/v2/models/two/ready"), "ready again", RESTART_S)
        assert len(list(tmp_path.glob("naiad-ranks-*"))) == 2
    assert list(tmp_path.glob("naiad-ranks-*")) == []


@pytest.mark.parametrize(
    ("size", "message"),
    [
        (3, "tensor_parallel_size is 3, but the model has 4 attention heads, which 3 does not"),
        (0, "tensor_parallel_size is 0, expected at least 1"),
    ],
)
def test_sizes_that_do_not_fit_fail_the_load(
    size: int, message: str, repository: Path, tmp_path: Path
) -> None:
    from tests.server.llm_checkpoint import parameter, write_model

    values = {**SMALL, "checkpoint": repository.parent / "checkpoint", "tensor_parallel_size": size}
    config = "".join(parameter(name, value) for name, value in values.items())
    write_model(tmp_path / "models", "bad", 'backend: "llm"\n' + config)
    with naiad([str(tmp_path / "models")], ["--exit-on-error=false"]) as server:
        status, body = server.post("/v2/repository/index", {})
        assert status == 200
        assert message in json.loads(body)[0]["reason"]
