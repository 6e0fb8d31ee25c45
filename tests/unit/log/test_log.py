import asyncio
import json
import logging
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from naiad import log
from naiad.log import LogSettings


@pytest.fixture(autouse=True)
def _fresh_log() -> Iterator[None]:
    log.configure(LogSettings())
    yield
    log.configure(LogSettings())


def written(capfd: pytest.CaptureFixture[str]) -> tuple[str, str]:
    assert log.flush(10)
    out, err = capfd.readouterr()
    return out, err


def test_info_goes_to_stdout_and_the_rest_to_stderr(capfd: pytest.CaptureFixture[str]) -> None:
    log.info("one")
    log.warning("two")
    log.error("three")
    out, err = written(capfd)
    assert re.fullmatch(
        r"I\d{4} \d\d:\d\d:\d\d\.\d{6} " + str(os.getpid()) + r' test_log\.py:\d+\] "one"\n', out
    )
    assert [line.split("] ")[1] for line in err.splitlines()] == ['"two"', '"three"']
    assert [line[0] for line in err.splitlines()] == ["W", "E"]


def test_the_line_number_is_that_of_the_caller(capfd: pytest.CaptureFixture[str]) -> None:
    line = sys._getframe().f_lineno + 1
    log.info("here")
    assert f"test_log.py:{line}]" in written(capfd)[0]


@pytest.mark.parametrize("severity", ["info", "warning", "error"])
def test_a_switched_off_level_writes_nothing(
    severity: str, capfd: pytest.CaptureFixture[str]
) -> None:
    levels = {"info": True, "warning": True, "error": True, severity: False}
    log.configure(
        LogSettings(
            log_info=levels["info"], log_warning=levels["warning"], log_error=levels["error"]
        )
    )
    getattr(log, severity)("silent")
    log.emit(severity.upper(), "silent too", "model.py", 1, 1)
    assert written(capfd) == ("", "")


def test_verbose_lines_follow_the_level_at_run_time(capfd: pytest.CaptureFixture[str]) -> None:
    log.verbose(1, "no")
    assert not log.is_verbose(1)
    log.settings.log_verbose_level = 1
    log.verbose(1, "yes")
    log.verbose(2, "no")
    log.emit("VERBOSE", "from a model", "model.py", 1, 1)
    out, _ = written(capfd)
    assert [line.split("] ")[1] for line in out.splitlines()] == ['"yes"', '"from a model"']
    assert out.startswith("I")


def test_a_workers_line_keeps_its_origin(capfd: pytest.CaptureFixture[str]) -> None:
    log.emit("ERROR", "boom", "/repo/m/1/model.py", 9, 777, 1_707_158_058_707_423_000)
    assert written(capfd)[1] == 'E0205 18:34:18.707423 777 model.py:9] "boom"\n'


def test_both_formats_show_request_ids(capfd: pytest.CaptureFixture[str]) -> None:
    log.info("done", request_id="r-1")
    log.settings.log_json = True
    log.info("done", request_id="r-1")
    text, line = written(capfd)[0].splitlines()
    assert text.endswith('"[request id: r-1] done"')
    assert json.loads(line)["request_id"] == "r-1"
    assert json.loads(line)["message"] == "done"


def test_escaping_can_be_turned_off_as_in_triton(capfd: pytest.CaptureFixture[str]) -> None:
    log.configure(LogSettings(should_escape=False))
    log.info('raw "text"')
    assert written(capfd)[0].endswith('] raw "text"\n')


def test_a_table_starts_on_its_own_line(capfd: pytest.CaptureFixture[str]) -> None:
    log.table("+---+\n| a |\n+---+\n")
    head, rest = written(capfd)[0].split("\n", 1)
    assert re.fullmatch(r"I\d{4} \S+ \d+ test_log\.py:\d+\] ", head)
    assert rest == "+---+\n| a |\n+---+\n\n"


def test_tables_respect_json_and_log_info(capfd: pytest.CaptureFixture[str]) -> None:
    log.settings.log_json = True
    log.table("+---+\n")
    log.settings.log_info = False
    log.table("+---+\n")
    assert [json.loads(line)["message"] for line in written(capfd)[0].splitlines()] == ["+---+\n"]


def test_appends_everything_to_the_log_file(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "naiad.log"
    file.write_text("before\n")
    log.configure(LogSettings(log_file=str(file)))
    log.info("one")
    log.error("two")
    assert written(capfd) == ("", "")
    assert [line[0] for line in file.read_text().splitlines()] == ["b", "I", "E"]


def test_an_unwritable_log_file_is_a_warning(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    log.configure(LogSettings(log_file=str(tmp_path)))
    log.info("still here")
    out, err = written(capfd)
    assert "still here" in out
    assert "cannot write the log file" in err


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="no /dev/full here")
def test_a_full_disk_only_loses_lines(capfd: pytest.CaptureFixture[str]) -> None:
    before = log.num_dropped()
    log.configure(LogSettings(log_file="/dev/full"))
    log.info("lost")
    assert log.flush(10)
    assert log.num_dropped() == before + 1
    log.configure(LogSettings())
    log.info("back")
    assert "back" in written(capfd)[0]


def test_a_huge_message_is_cut(capfd: pytest.CaptureFixture[str]) -> None:
    log.info("x" * (log.MAX_MESSAGE_CHARS + 5))
    assert written(capfd)[0].endswith('xxx... (5 more characters)"\n')


def test_captures_library_logging(capfd: pytest.CaptureFixture[str]) -> None:
    root = logging.getLogger()
    before = root.handlers[:], root.level
    try:
        log.capture_library_logging()
        logging.getLogger("asyncio").error("Task exception\nwas never retrieved")
        logging.getLogger("x").warning("%d", "no number")
        logging.getLogger("x").info("not shown")
    finally:
        root.handlers[:], root.level = before
    err = written(capfd)[1]
    assert '"asyncio: Task exception\\nwas never retrieved"' in err
    assert "could not be formatted" in err
    assert "not shown" not in err


async def test_captures_unhandled_errors_of_the_event_loop(
    capfd: pytest.CaptureFixture[str],
) -> None:
    root = logging.getLogger()
    before = root.handlers[:], root.level
    try:
        log.capture_library_logging()
        asyncio.get_running_loop().call_exception_handler(
            {"message": "callback failed", "exception": ValueError("why")}
        )
    finally:
        root.handlers[:], root.level = before
    assert "ValueError: why" in written(capfd)[1]


def run(script: str, **streams: int | None) -> subprocess.CompletedProcess[str]:
    return subprocess.run(  # type: ignore[call-overload, no-any-return]
        [sys.executable, "-c", script], text=True, timeout=30, check=False, **streams
    )


def test_a_closed_pipe_does_not_kill_the_server() -> None:
    read_end, write_end = os.pipe()
    os.close(read_end)
    script = """
from naiad import log
for _ in range(1000): log.info("x" * 1000)
log.flush(10)
log.error(f"alive, lost {log.num_dropped()}")
"""
    result = run(script, stdout=write_end, stderr=subprocess.PIPE)
    os.close(write_end)
    assert result.returncode == 0
    assert "alive, lost 1000" in result.stderr


def test_does_not_write_the_log_to_a_file_that_gets_the_number_of_stdout(tmp_path: Path) -> None:
    script = f"""
import os
os.close(1)
from naiad import log
log.configure(log.LogSettings())
fd = os.open({str(tmp_path / "precious")!r}, os.O_RDWR | os.O_CREAT)
log.info("must not land there")
assert log.flush(10)
assert os.fstat(fd).st_size == 0
os._exit(7)
"""
    assert run(script).returncode == 7


def test_a_forked_child_logs_through_a_thread_of_its_own() -> None:
    script = """
import os, warnings
warnings.simplefilter("ignore")
from naiad import log
log.info("parent")
log.flush(10)
pid = os.fork()
if pid == 0:
    log.info("child")
    os._exit(0 if log.flush(10) else 1)
raise SystemExit(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
"""
    result = run(script, stdout=subprocess.PIPE)
    assert result.returncode == 0
    assert '"parent"' in result.stdout
    assert '"child"' in result.stdout


def test_lines_are_written_before_the_process_ends() -> None:
    result = run(
        "from naiad import log\nfor i in range(500): log.info(str(i))", stdout=subprocess.PIPE
    )
    assert len(result.stdout.splitlines()) == 500


def test_details_are_lines_below_the_message(capfd: pytest.CaptureFixture[str]) -> None:
    log.error("failed", 'Traceback:\n  File "m.py"\n\n\tx\x1b[2J\n')
    first, *rest = written(capfd)[1].splitlines()
    assert first.endswith('] "failed"')
    assert rest == ["    Traceback:", '      File "m.py"', "", "        x\\u001B[2J"]


def test_details_are_part_of_a_json_line(capfd: pytest.CaptureFixture[str]) -> None:
    log.configure(LogSettings(log_json=True))
    log.error("failed", "one\ntwo")
    (line,) = written(capfd)[1].splitlines()
    assert json.loads(line)["message"] == "failed\none\ntwo"


def test_reopen_follows_the_name_of_the_file(tmp_path: Path) -> None:
    path, moved = tmp_path / "log", tmp_path / "log.1"
    log.configure(LogSettings(log_file=str(path)))
    log.info("before")
    assert log.flush(10)
    path.rename(moved)
    log.reopen()
    log.info("after")
    assert log.flush(10)
    assert '"before"' in moved.read_text()
    assert '"after"' in path.read_text()
    assert '"before"' not in path.read_text()


def test_a_file_that_cannot_be_reopened_stays_open(tmp_path: Path) -> None:
    path, moved = tmp_path / "folder" / "log", tmp_path / "moved"
    path.parent.mkdir()
    log.configure(LogSettings(log_file=str(path)))
    path.parent.rename(moved)
    with pytest.raises(OSError, match="No such file"):
        log.reopen()
    log.info("after")
    assert log.flush(10)
    assert '"after"' in (moved / "log").read_text()


def test_repeated_failures_are_counted(capfd: pytest.CaptureFixture[str]) -> None:
    for _ in range(50):
        log.error("the same failure")
    log.report_repeats(is_final=True)
    lines = written(capfd)[1].splitlines()
    assert len(lines) == 4
    assert '"47 more times within 10 s: the same failure"' in lines[-1]


def test_json_lines_name_the_node_and_the_replica(capfd: pytest.CaptureFixture[str]) -> None:
    log.configure(LogSettings(log_json=True, node="a", replica="d-1"))
    log.info("ready")
    log.printed("m_0", "from the model", 7)
    lines = [json.loads(line) for line in written(capfd)[0].splitlines()]
    assert [(line["node"], line["replica"]) for line in lines] == [("a", "d-1")] * 2
    log.configure(LogSettings(log_json=True))
    log.info("alone")
    assert "node" not in json.loads(written(capfd)[0])
