import os
import subprocess
import sys
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import naiad.cli.main
from naiad import __version__, log
from naiad.cli.main import run
from naiad.cli.serve import ServeCommand, expand_abbreviations
from naiad.errors import NaiadError, internal
from naiad.log import LogSettings
from naiad.settings import Settings
from naiad.settings.resolve import OPTIONS, TRITONSERVER_DEFAULTS


class FakeServer(types.ModuleType):
    """Replaces naiad.server, which would start a real server."""

    def __init__(self) -> None:
        super().__init__("naiad.server")
        self.settings: Settings | None = None
        self.outcome: Callable[[], int] = lambda: 0

    def run(self, settings: Settings) -> int:
        self.settings = settings
        return self.outcome()


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> FakeServer:
    fake = FakeServer()
    monkeypatch.setitem(sys.modules, "naiad.server", fake)
    monkeypatch.setattr(naiad, "server", fake, raising=False)
    for name in [name for name in os.environ if name.startswith("NAIAD_")]:
        monkeypatch.delenv(name)
    return fake


@pytest.fixture(autouse=True)
def _restore_log() -> Any:
    yield
    log.configure(LogSettings())


def serve(*arguments: str) -> int:
    return run(
        naiad.cli.main.naiad, "naiad", ["serve", "--model-repository", "/models", *arguments]
    )


def tritonserver(*arguments: str) -> int:
    command = ServeCommand("tritonserver", TRITONSERVER_DEFAULTS, "")
    return run(
        command, "tritonserver", expand_abbreviations(["--model-repository=/models", *arguments])
    )


def used(server: FakeServer) -> Settings:
    assert server.settings is not None
    return server.settings


def test_serve_listens_on_loopback(server: FakeServer) -> None:
    assert serve() == 0
    assert (used(server).http_address, used(server).grpc_address, used(server).metrics_address) == (
        "127.0.0.1",
    ) * 3
    assert used(server).model_repository == ("/models",)


def test_tritonserver_listens_everywhere(server: FakeServer) -> None:
    assert tritonserver() == 0
    assert (used(server).http_address, used(server).grpc_address, used(server).metrics_address) == (
        "0.0.0.0",
    ) * 3


def test_the_command_line_of_kserves_triton_runtime(server: FakeServer) -> None:
    command = ServeCommand("tritonserver", TRITONSERVER_DEFAULTS, "")
    arguments = [
        "--model-store=/mnt/models",
        "--grpc-port=9000",
        "--http-port=8080",
        "--allow-grpc=true",
        "--allow-http=true",
    ]
    assert run(command, "tritonserver", arguments) == 0
    assert used(server).model_repository == ("/mnt/models",)
    assert (used(server).grpc_port, used(server).http_port) == (9000, 8080)


def test_accepts_values_after_a_space_or_an_equals_sign(server: FakeServer) -> None:
    assert (
        serve(
            "--http-port",
            "1",
            "--grpc-port=2",
            "--model-store",
            "/second",
            "--model-repository=/third",
            "--exit-timeout-secs",
            "3",
        )
        == 0
    )
    assert (used(server).http_port, used(server).grpc_port) == (1, 2)
    assert used(server).model_repository == ("/models", "/second", "/third")


def test_a_switch_has_no_value(server: FakeServer, capsys: pytest.CaptureFixture[str]) -> None:
    assert serve("--disable-auto-complete-config") == 0
    assert used(server).disable_auto_complete_config
    assert serve("--disable-auto-complete-config", "false") == 1
    assert capsys.readouterr().err.startswith("Unexpected argument: false\n")
    assert serve("--disable-auto-complete-config=true") == 1


def test_the_environment_is_read(server: FakeServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NAIAD_HTTP_PORT", "1234")
    assert serve() == 0
    assert used(server).http_port == 1234


def test_the_exit_code_is_the_servers(server: FakeServer) -> None:
    server.outcome = lambda: 3
    assert serve() == 3


def test_logging_options_and_warnings(
    server: FakeServer, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("TRITON_SERVER_ESCAPE_LOG_MESSAGES", "0")
    file = tmp_path / "log"
    assert (
        serve(
            f"--log-file={file}",
            "--log-verbose=2",
            "--log-format=ISO8601",
            "--http-thread-count=3",
            "--trace-rate=1",
        )
        == 0
    )
    assert log.flush(10)
    assert log.settings == LogSettings(
        str(file), log_verbose_level=2, log_format="ISO8601", should_escape=False
    )
    lines = [line.split("] ", 1)[1] for line in file.read_text().splitlines()]
    assert lines == [
        "Warning: '--trace-rate' has been deprecated and will be removed in future releases."
        " Please use '--trace-config rate=<rate value> instead.",
    ]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            ["--http-prot=1"],
            "error: unrecognized option '--http-prot', did you mean '--http-port'?",
        ),
        (
            ["--http_port=1"],
            "error: unrecognized option '--http_port', did you mean '--http-port'?",
        ),
        (["--qqqqqqqqqqqq"], "error: unrecognized option '--qqqqqqqqqqqq'"),
        (["-x"], "error: unrecognized option '-x'"),
        (["--http-port"], "error: Option '--http-port' requires an argument."),
        (["stray", "more"], "Unexpected argument: stray"),
        (["--log-info=maybe"], 'Bad option: "--log-info".\ninvalid value for bool option: maybe'),
        (["--log-verbose=abc"], 'Bad option: "--log-verbose".\nInvalid option value. Got abc'),
        (["--log-format=foo"], 'Bad option: "--log-format".\ninvalid argument for --log-format'),
        (
            ["--model-control-mode=foo"],
            'Bad option: "--model-control-mode".\ninvalid argument for --model-control-mode',
        ),
        (
            ["--load-model=a"],
            "Error: Use of '--load-model' requires setting"
            " '--model-control-mode=explicit' as well.",
        ),
        (
            ["--grpc-port=8000"],
            "The server cannot listen to HTTP requests and GRPC requests"
            " at the same address and port ",
        ),
    ],
)
@pytest.mark.parametrize("command", [serve, tritonserver])
def test_rejects_invalid_arguments(
    command: Callable[..., int],
    arguments: list[str],
    message: str,
    server: FakeServer,
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert command(*arguments) == 1
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith(message)
    name = "naiad serve" if command is serve else "tritonserver"
    assert err.endswith(f"Try '{name} --help'.\n") or "requires an argument" in err
    assert server.settings is None


def test_rejects_a_missing_repository(
    server: FakeServer, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(naiad.cli.main.naiad, "naiad", ["serve"]) == 1
    assert (
        capsys.readouterr().err
        == "error: creating server: Invalid argument - --model-repository must be specified\n"
    )


def test_errors_of_the_server_are_one_line(
    server: FakeServer, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail() -> int:
        raise internal("failed to load all models")

    server.outcome = fail
    assert serve() == 1
    assert (
        capsys.readouterr().err == "error: creating server: Internal - failed to load all models\n"
    )


def test_an_interrupt_exits_with_130(server: FakeServer) -> None:
    def interrupt() -> int:
        raise KeyboardInterrupt

    server.outcome = interrupt
    assert serve() == 130


def test_tritonserver_accepts_abbreviated_flags(server: FakeServer) -> None:
    assert tritonserver("--http-por=77", "--log-in=false", "--metrics-p", "78") == 0
    assert (used(server).http_port, used(server).log_info, used(server).metrics_port) == (
        77,
        False,
        78,
    )
    assert tritonserver("--log=false") == 1
    assert expand_abbreviations(["--http-port=1", "--", "x", "-h", "--help"]) == [
        "--http-port=1",
        "--",
        "x",
        "-h",
        "--help",
    ]


def test_help_shows_every_option_in_its_group(
    server: FakeServer, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(naiad.cli.main.naiad, "naiad", ["serve", "--help"]) == 0
    out = capsys.readouterr().out
    assert [name for name in OPTIONS if f"--{name}" not in out] == []
    titles = [
        line[:-1] for line in out.splitlines() if line.endswith(":") and not line.startswith(" ")
    ]
    assert titles == list(dict.fromkeys(option.flag.group for option in OPTIONS.values()))
    assert server.settings is None


def test_help_of_tritonserver_shows_its_defaults(capsys: pytest.CaptureFixture[str]) -> None:
    assert tritonserver("--help") == 0
    out = " ".join(capsys.readouterr().out.split())
    assert "Address to listen on for HTTP. Default: 0.0.0.0." in out


def test_version_and_bare_command(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(naiad.cli.main.naiad, "naiad", ["--version"]) == 0
    assert capsys.readouterr().out.startswith(f"naiad {__version__}\n")
    assert run(naiad.cli.main.naiad, "naiad", []) == 0
    assert "serve" in capsys.readouterr().out


def test_rejects_an_unknown_command(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(naiad.cli.main.naiad, "naiad", ["serv"]) == 1
    assert capsys.readouterr().err.startswith("error: No such command 'serv'")


def test_check_reports_problems(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model = tmp_path / "m"
    (model / "1").mkdir(parents=True)
    (model / "1" / "model.py").write_text(
        "class TritonPythonModel:\n    def execute(self, requests):\n        return []\n"
    )
    config = (
        'backend: "python"\ninput { name: "x" data_type: TYPE_FP32 dims: [1] }\n'
        'output { name: "y" data_type: TYPE_FP32 dims: [1] }\n'
    )
    (model / "config.pbtxt").write_text(config)
    assert run(naiad.cli.main.naiad, "naiad", ["check", str(tmp_path)]) == 0
    (model / "config.pbtxt").write_text(config + "nonsense: 1\n")
    capsys.readouterr()
    assert run(naiad.cli.main.naiad, "naiad", ["check", str(tmp_path)]) == 1
    assert "config.pbtxt:4" in capsys.readouterr().out
    assert run(naiad.cli.main.naiad, "naiad", ["check"]) == 1
    assert run(naiad.cli.main.naiad, "naiad", ["check", str(tmp_path / "nothing")]) == 1


def test_help_does_not_import_slow_modules() -> None:
    script = (
        "import sys; from naiad.cli.main import run, naiad;"
        "run(naiad, 'naiad', ['serve', '--help']);"
        "heavy = {'numpy', 'asyncio', 'uvloop', 'google.protobuf', 'logging', 'psutil', 'rich'};"
        "print('HEAVY', sorted(heavy & set(sys.modules)))"
    )
    result = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True, timeout=30
    )
    assert result.stdout.splitlines()[-1] == "HEAVY []"


def test_help_into_a_closed_pipe_prints_no_traceback() -> None:
    read_end, write_end = os.pipe()
    os.close(read_end)
    command = [sys.executable, "-c", "from naiad.cli.main import main; main()", "serve", "--help"]
    result = subprocess.run(
        command, stdout=write_end, stderr=subprocess.PIPE, text=True, check=False, timeout=30
    )
    os.close(write_end)
    assert "Traceback" not in result.stderr


def test_error_messages_start_with_the_code(
    server: FakeServer, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail() -> int:
        raise NaiadError(naiad.errors.Code.UNAVAILABLE, "Socket '0.0.0.0:8000' already in use")

    server.outcome = fail
    assert serve() == 1
    assert (
        capsys.readouterr().err
        == "error: creating server: Unavailable - Socket '0.0.0.0:8000' already in use\n"
    )


def test_a_positional_directory_gets_a_hint(
    server: FakeServer, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    command = naiad.cli.main.naiad
    assert run(command, "naiad", ["serve", str(tmp_path)]) == 1
    error = capsys.readouterr().err
    assert error.startswith(f"Unexpected argument: {tmp_path}\n")
    assert f"write --model-repository {tmp_path}\n" in error
    (tmp_path / "config.json").write_text("{}")
    assert run(command, "naiad", ["serve", str(tmp_path)]) == 1
    assert f"write --model {tmp_path}\n" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("argument", "expected"),
    [
        ("--model-control-mode=foo", "Expected one of none, poll, explicit."),
        ("--rate-limit=foo", "Expected one of off, execution_count."),
        ("--log-format=foo", "Expected default or ISO8601."),
        ("--log-info=foo", "Expected true, on, 1, false, off or 0."),
        ("--http-port=foo", "Expected a whole number."),
        ("--http-port=99999", "expected from 0 to 65535"),
    ],
)
def test_an_error_names_the_allowed_values(
    server: FakeServer, argument: str, expected: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert serve(argument) == 1
    assert expected in capsys.readouterr().err


def test_only_the_server_says_that_it_creates_one(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(naiad.cli.main.naiad, "naiad", ["pull", "/nowhere"]) == 1
    assert capsys.readouterr().err.startswith("error: no checkpoint")


def exit_code(command: Callable[[], None]) -> int:
    with pytest.raises(SystemExit) as caught:
        command()
    return int(str(caught.value.code))


def test_perf_analyzer_has_nvidias_command_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    flags = ["-m", "m", "-u", "127.0.0.1:1", "--concurrency=1:2", "--percentile=95"]
    monkeypatch.setattr(sys, "argv", ["perf_analyzer", *flags])
    assert exit_code(naiad.cli.main.perf_analyzer) == 99
    assert "cannot connect to 127.0.0.1:1" in capsys.readouterr().err
    monkeypatch.setattr(sys, "argv", ["perf_analyzer", "--percentile=x", "-m", "m"])
    assert exit_code(naiad.cli.main.perf_analyzer) == 1
    assert capsys.readouterr().err.endswith("Try 'perf_analyzer --help'.\n")


def test_model_analyzer_has_nvidias_command_line(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    flags = ["-v", "-m", "online", "profile", "--model-repository", str(tmp_path / "nowhere")]
    monkeypatch.setattr(sys, "argv", ["model-analyzer", *flags, "--profile-models", "m"])
    assert exit_code(naiad.cli.main.model_analyzer) == 1
    error = capsys.readouterr().err
    assert "nowhere is not a directory" in error
    assert error.endswith("Try 'model-analyzer profile --help'.\n")


@pytest.mark.parametrize(
    ("arguments", "name"),
    [
        (["init", "python", "OUT"], "OUT/double"),
        (["init", "llm", "--checkpoint", "org/model", "OUT"], "OUT"),
        (["pull", "smollm2"], ""),
    ],
)
def test_a_full_disk_is_said_in_a_sentence_and_nothing_is_left(
    arguments: list[str],
    name: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    out = tmp_path / "out"
    monkeypatch.setenv("NAIAD_CACHE", str(tmp_path / "cache"))

    def refuse(*_arguments: object, **_options: object) -> None:
        raise OSError(28, "No space left on device")

    for method in ("write_text", "write_bytes"):
        monkeypatch.setattr(Path, method, refuse)
    arguments = [str(out) if text == "OUT" else text for text in arguments]
    assert run(naiad.cli.main.naiad, "naiad", arguments) == 1
    shown = capsys.readouterr().err
    what = f"'{name.replace('OUT', str(out))}'" if name else "a file"
    assert f"error: {what} cannot be written: No space left on device" in shown
    assert "Traceback" not in shown
    left = [path for path in tmp_path.rglob("*") if path.is_file() or path.parent == out]
    assert left == []
