"""Completion, manual pages, --version and the extra `all`."""

from __future__ import annotations

import importlib.util
import os
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

import naiad.cli.main
from naiad import __version__
from naiad.cli.main import run
from naiad.settings.resolve import OPTIONS

ROOT = Path(__file__).parents[3]


def naiad_command(*arguments: str) -> int:
    return run(naiad.cli.main.naiad, "naiad", arguments)


def completions(*words: str) -> set[str]:
    """What bash would offer for the last of these words."""
    result = subprocess.run(
        [sys.executable, "-c", "from naiad.cli.main import main; main()"],
        env={
            **os.environ,
            "_NAIAD_COMPLETE": "bash_complete",
            "COMP_WORDS": " ".join(words),
            "COMP_CWORD": str(len(words) - 1),
        },
        capture_output=True,
        text=True,
        timeout=60,
    )
    return {line.partition(",")[2] for line in result.stdout.splitlines()}


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_scripts(shell: str, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    if shell == "bash" and shutil.which("bash") is None:
        pytest.skip("click asks bash for its version")
    assert naiad_command("completion", shell) == 0
    script = capsys.readouterr().out
    for variable in ("_NAIAD_COMPLETE", "_TRITONSERVER_COMPLETE", "_MODEL_ANALYZER_COMPLETE"):
        assert f"{variable}={shell}_complete" in script
    if shutil.which(shell):
        (tmp_path / "script").write_text(script)
        subprocess.run([shell, "-n", tmp_path / "script"], check=True)


def test_completes_commands_and_the_options_of_lazy_commands() -> None:
    assert {"serve", "doctor", "key", "perf"} <= completions("naiad", "")
    assert completions("naiad", "serve", "--http-por") == {"--http-port"}
    assert "--http-port" in completions("naiad", "doctor", "--http-p")
    assert "--concurrency-range" in completions("naiad", "perf", "--concurrency-r")


def test_manual_pages(capsys: pytest.CaptureFixture[str]) -> None:
    assert naiad_command("man") == 0
    page = capsys.readouterr().out
    assert page.startswith('.TH "NAIAD" "1"')
    assert "\\fBdoctor\\fR" in page
    assert naiad_command("man", "serve") == 0
    page = capsys.readouterr().out.replace("\\-", "-")
    for name in OPTIONS:
        assert f"--{name}" in page


@pytest.mark.skipif(shutil.which("groff") is None, reason="needs groff")
def test_groff_finds_no_fault_in_any_manual_page(capsys: pytest.CaptureFixture[str]) -> None:
    names = set(naiad.cli.main.naiad.commands)
    if importlib.util.find_spec("torch") is None:
        names.remove("quantize")
        assert naiad_command("man", "quantize") == 1
        assert "'naiad quantize' needs torch" in capsys.readouterr().err
    for name in ["", *names]:
        assert naiad_command("man", *filter(None, [name])) == 0
        page = capsys.readouterr().out
        result = subprocess.run(
            ["groff", "-man", "-Tutf8", "-ww", "-z"], input=page, capture_output=True, text=True
        )
        assert result.stderr == "", name


def test_an_unknown_manual_page(capsys: pytest.CaptureFixture[str]) -> None:
    assert naiad_command("man", "swim") == 1
    assert "no command 'swim'. Commands: analyze, " in capsys.readouterr().err


def test_the_version_helps_a_report_of_a_bug(capsys: pytest.CaptureFixture[str]) -> None:
    assert naiad_command("--version") == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == f"naiad {__version__}"
    titles = [line.partition(":")[0] for line in lines[1:]]
    assert titles == ["source", "python", "system", "machine", "packages"]
    assert "numpy " in lines[-1] or lines[-1] == "packages: unknown"


def test_the_extra_all_has_every_extra() -> None:
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"][
        "optional-dependencies"
    ]
    listed = extras["all"][0].removeprefix("naiad[").removesuffix("]").split(",")
    assert set(listed) == set(extras) - {"all"}
