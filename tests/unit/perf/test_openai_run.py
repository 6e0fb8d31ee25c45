"""Runs the command against a small OpenAI-style server: figures, failures, replay, exports and
several processes."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from naiad.cli.main import naiad, run
from tests.unit.perf.fake_openai import FakeOpenAi


class Background:
    """Runs the server in a thread with its own event loop, because the command has another."""

    def __init__(self, server: FakeOpenAi) -> None:
        self.server = server
        self._loop = asyncio.new_event_loop()
        self._started = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self._thread.start()
        self._started.wait()

    def _run(self) -> None:
        self._loop.run_until_complete(self.server.start())
        self._started.set()
        self._loop.run_forever()
        self._loop.run_until_complete(self._end())
        self._loop.close()

    async def _end(self) -> None:
        await self.server.stop()
        others = asyncio.all_tasks() - {asyncio.current_task()}
        for task in others:
            task.cancel()
        await asyncio.gather(*others, return_exceptions=True)

    def stop(self) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()

    @property
    def url(self) -> str:
        return f"127.0.0.1:{self.server.port}"


@pytest.fixture
def fake() -> Iterator[Background]:
    background = Background(FakeOpenAi())
    yield background
    background.stop()


def perf(fake: Background, *arguments: str) -> int:
    fixed = [
        "perf",
        "-m",
        "tiny",
        "--service-kind",
        "openai",
        "-u",
        fake.url,
        "-s",
        "100000",
        "-p",
        "20",
        "--num-prompts",
        "3",
    ]
    return run(naiad, "naiad", [*fixed, *arguments])


def test_streamed_chat(
    fake: Background, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    results, export = tmp_path / "r.json", tmp_path / "e.json"
    flags = [
        "--streaming",
        "--isl",
        "12",
        "--osl",
        "5",
        "--concurrency-range",
        "2",
        "--goodput",
        "time_to_first_token:100000",
    ]
    assert (
        perf(
            fake,
            *flags,
            "-H",
            "Authorization: Bearer k",
            "--json",
            str(results),
            "--profile-export-file",
            str(export),
        )
        == 0
    )
    text = capsys.readouterr().out
    assert "Time to first token (ms)" in text
    assert "(100.0% within all limits)" in text
    tokens = json.loads(results.read_text())["levels"][0]["summary"]["tokens"]
    assert tokens["statistics"]["output_sequence_length"]["average"] == 5
    assert tokens["statistics"]["input_sequence_length"]["average"] == 12
    assert tokens["counted_by"] == "usage"
    request = fake.server.requests[0]
    assert request["stream_options"] == {"include_usage": True}
    assert fake.server.headers[0]["authorization"] == "Bearer k"
    exported = json.loads(export.read_text())["experiments"][0]["requests"][0]
    assert exported["response_outputs"][-1]["response"].startswith("data: {")
    assert json.loads(exported["request_inputs"]["payload"])["model"] == "tiny"


def test_completions_without_streaming(
    fake: Background, capsys: pytest.CaptureFixture[str]
) -> None:
    assert perf(fake, "--endpoint", "v1/completions", "--osl", "3", "--request-count", "6") == 0
    assert "Request count: 6" in capsys.readouterr().out
    assert fake.server.paths[0] == "/v1/completions"
    assert len(fake.server.requests) == 6


def test_counts_chunks_if_the_server_does_not_report_tokens(
    capsys: pytest.CaptureFixture[str],
) -> None:
    background = Background(FakeOpenAi(has_usage=False))
    try:
        assert perf(background, "--streaming", "--request-count", "4") == 0
    finally:
        background.stop()
    assert "Each chunk with text is counted as one token" in capsys.readouterr().out


def test_an_event_stream_is_recognised_by_its_type(
    fake: Background, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """genai-perf asks for streams in its payloads, and passes no --streaming."""
    payload = {
        "model": "tiny", "messages": [{"role": "user", "content": "hi"}], "max_tokens": 5,
        "stream": True, "stream_options": {"include_usage": True},
    }  # fmt: skip
    data, export = tmp_path / "data.json", tmp_path / "e.json"
    data.write_text(json.dumps({"data": [{"payload": [payload]}]}))
    flags = ["--input-data", str(data), "--request-count", "4", "--profile-export-file"]
    assert perf(fake, *flags, str(export)) == 0
    assert "Request count: 4" in capsys.readouterr().out
    (experiment,) = json.loads(export.read_text())["experiments"]
    for request in experiment["requests"]:
        assert len(request["response_timestamps"]) == 7  # role, five words, usage
        for output in request["response_outputs"]:  # what genai-perf insists on
            assert output["response"].startswith("data: {")


@pytest.mark.parametrize("flags", [[], ["--streaming"]])
def test_an_answer_that_cannot_be_read_is_a_failed_request(
    fake: Background, flags: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = [*flags, "--extra-inputs", "trouble:html", "--request-count", "4"]
    assert perf(fake, *arguments) == 99
    out, err = capsys.readouterr()
    assert "a response that cannot be decoded" in out
    assert "Traceback" not in out + err


@pytest.mark.parametrize(
    ("trouble", "message"),
    [
        ("error", "HTTP 429: too many requests"),
        ("broken", "the engine died"),
        ("cut", "closed the connection before it responded"),
    ],
)
def test_reports_failures_of_the_server(
    fake: Background, trouble: str, message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert (
        perf(fake, "--streaming", "--extra-inputs", f"trouble:{trouble}", "--max-trials", "1") == 99
    )
    out, err = capsys.readouterr()
    assert message in out
    assert "Traceback" not in out + err


def test_reports_a_missing_server(capsys: pytest.CaptureFixture[str]) -> None:
    assert (
        run(naiad, "naiad", ["perf", "-m", "m", "--service-kind", "openai", "-u", "127.0.0.1:1"])
        == 99
    )
    assert "Connection refused" in capsys.readouterr().out


def test_replay_of_a_trace(
    fake: Background, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    trace = tmp_path / "trace.jsonl"
    trace.write_text(
        "\n".join(
            json.dumps({"timestamp": 10 * n, "input_length": 4 + n, "output_length": 2 + n})
            for n in range(5)
        )
    )
    assert perf(fake, "--streaming", "--replay", str(trace), "--replay-speed", "4") == 0
    assert "Replay: 5 requests at 4x speed" in capsys.readouterr().out
    assert sorted(request["max_tokens"] for request in fake.server.requests) == [2, 3, 4, 5, 6]


def test_payloads_from_a_file(fake: Background, tmp_path: Path) -> None:
    data = tmp_path / "data.json"
    data.write_text(
        json.dumps({"data": [{"payload": [{"model": "own", "prompt": "a b", "max_tokens": 2}]}]})
    )
    assert (
        perf(
            fake, "--endpoint", "v1/completions", "--input-data", str(data), "--request-count", "2"
        )
        == 0
    )
    assert {request["model"] for request in fake.server.requests} == {"own"}


def test_several_processes(fake: Background, capsys: pytest.CaptureFixture[str]) -> None:
    assert (
        perf(
            fake,
            "--streaming",
            "--processes",
            "2",
            "--concurrency-range",
            "4",
            "--request-count",
            "9",
        )
        == 0
    )
    assert "Request count: 9" in capsys.readouterr().out
    assert len(fake.server.requests) == 9


def test_comparison_with_an_earlier_run(
    fake: Background, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    first, page = tmp_path / "first.json", tmp_path / "page.html"
    assert perf(fake, "--streaming", "--request-count", "3", "--json", str(first)) == 0
    flags = [
        "--streaming",
        "--request-count",
        "3",
        "--compare",
        f"before={first}",
        "--compare",
        "short=--osl 1",
        "--html",
        str(page),
    ]
    assert perf(fake, *flags) == 0
    text = capsys.readouterr().out
    assert "| before" in text
    assert "| short" in text
    assert "<svg" in page.read_text()
