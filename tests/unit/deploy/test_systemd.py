from __future__ import annotations

import configparser
import shutil
import subprocess
from pathlib import Path

import pytest

UNIT = Path(__file__).parents[3] / "deploy" / "systemd" / "naiad.service"


def seconds_to_drain() -> int:
    from naiad.settings.resolve import OPTIONS

    return int(OPTIONS["exit-timeout-secs"].default)


def unit() -> configparser.ConfigParser:
    parser = configparser.ConfigParser(strict=False, interpolation=None)
    parser.optionxform = str  # type: ignore[assignment,method-assign]
    parser.read(UNIT)
    return parser


def test_the_server_has_time_to_drain() -> None:
    service = unit()["Service"]
    assert int(service["TimeoutStopSec"]) > seconds_to_drain()
    # control-group would send SIGTERM to the workers too, before their requests are done.
    assert service["KillMode"] == "mixed"


def test_the_command_line_is_one_that_naiad_accepts(tmp_path: Path) -> None:
    from naiad.settings.resolve import resolve

    program, command, option, file = unit()["Service"]["ExecStart"].split()
    assert (Path(program).name, command, option) == ("naiad", "serve", "--config-file")
    # The file that docs/linux.md shows.
    page = (UNIT.parents[2] / "docs" / "linux.md").read_text()
    text = page.partition(f"cat > {file} <<'END'\n")[2].partition("END")[0]
    (tmp_path / "naiad.toml").write_text(text)
    settings = resolve({"config-file": [str(tmp_path / "naiad.toml")]}, {}).settings
    assert settings.model_repository == ("/srv/models",)
    assert settings.drain_delay_secs + seconds_to_drain() < int(unit()["Service"]["TimeoutStopSec"])


def test_everything_that_is_cached_is_in_a_folder_that_the_service_may_write() -> None:
    """ProtectSystem=strict leaves /var/cache/naiad (CacheDirectory) and /var/lib/naiad writable."""
    lines = [line for line in UNIT.read_text().splitlines() if line.startswith("Environment=")]
    words = " ".join(line.removeprefix("Environment=") for line in lines).split()
    folders = dict(word.split("=", 1) for word in words)
    assert {"HOME", "XDG_CACHE_HOME", "NAIAD_CACHE", "HF_HOME"} <= folders.keys()
    for name, folder in folders.items():
        assert Path(folder).is_relative_to("/var/cache/naiad") or name == "HOME", folder
    assert folders["HOME"] == "/var/lib/naiad"


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="needs systemd-analyze")
def test_systemd_accepts_the_unit(tmp_path: Path) -> None:
    # verify looks for the program, which only an installed Naiad has.
    copy = tmp_path / "naiad.service"
    copy.write_text(UNIT.read_text().replace("/opt/naiad/bin/naiad", "/bin/true"))
    result = subprocess.run(["systemd-analyze", "verify", copy], capture_output=True, text=True)
    assert (result.returncode, result.stderr) == (0, "")
    security = subprocess.run(
        ["systemd-analyze", "security", "--offline=true", "--threshold=20", copy],
        capture_output=True,
        text=True,
    )
    assert security.returncode == 0, security.stdout.splitlines()[-1]
