"""Tests checkpoints and the reports that are made from them."""

from __future__ import annotations

import csv
import io
import json
import re
from collections.abc import Sequence
from pathlib import Path

import msgspec
import pytest

from naiad.analyze.checkpoint import FILE, Checkpoint, CheckpointJob, Goal, read_history
from naiad.analyze.measurement import Measurement, ModelOutcome
from naiad.analyze.metric import Limit
from naiad.analyze.progress import duration
from naiad.analyze.report import run_report
from naiad.analyze.settings import ReportOptions
from naiad.settings.option import OptionError
from naiad.tools.page.ticks import linear_ticks, log_ticks, short
from tests.unit.perf.test_reports import check_page

GOAL = Goal({"m": {"perf_throughput": 1.0}}, {"m": {"perf_latency_p99": Limit(maximum=40)}})
JOB = CheckpointJob(
    ["m"],
    "f1",
    "quick",
    GOAL,
    "naiad analyze profile <x>",
    "a machine",
    "2026-01-01T00:00:00+00:00",
    "1.0",
    40,
    "models",
)


def measured(
    instances: int, batch: int, concurrency: int, rate: float, error: str = ""
) -> Measurement:
    values = {"instance_count": instances, "max_batch_size": batch} if instances else {}
    name = f"m_config_{instances}{batch}" if instances else "m_config_default"
    figures = (
        {}
        if error
        else {
            "perf_throughput": rate,
            "perf_latency_p99": 30.0 + concurrency,
            "perf_server_queue": 1.5,
        }
    )
    outcome = ModelOutcome(
        "m", name, batch or 1, "Enabled", f"{instances or 1}:CPU", values, figures
    )
    return Measurement(
        f"{name}/{concurrency}",
        concurrency,
        1,
        [outcome],
        {"cpu_used_ram": 120.0},
        error=error,
        seconds=1.0,
    )


MEASUREMENTS = [
    measured(0, 0, 1, 100),
    measured(1, 2, 4, 250),
    measured(2, 4, 8, 400),
    measured(2, 4, 16, 500),
    measured(3, 8, 8, 0, error="out of memory\nand more"),
]


def rounds(default_rate: float, rate: float) -> list[Measurement]:
    """Returns three rounds at concurrency 8 that differ by 1%."""
    return [
        msgspec.structs.replace(one, key=f"{one.key}/{number}", stage="comparison", round=number)
        for number in (1, 2, 3)
        for one in (
            measured(0, 0, 8, default_rate * (0.98 + 0.01 * number)),
            measured(2, 4, 8, rate * (1.02 - 0.01 * number)),
        )
    ]


def fill(folder: Path, comparison: Sequence[Measurement] = ()) -> Path:
    checkpoint = Checkpoint(folder)
    assert checkpoint.begin(JOB) == {}
    for one in (*MEASUREMENTS, *comparison):
        checkpoint.add(JOB, one)
    checkpoint.close()
    return folder


def test_a_checkpoint_stores_all_measurements(tmp_path: Path) -> None:
    again = Checkpoint(fill(tmp_path))
    known = again.begin(JOB)
    again.close()
    assert list(known.values()) == MEASUREMENTS


def test_drops_a_half_written_line(tmp_path: Path) -> None:
    path = fill(tmp_path) / FILE
    whole = path.read_bytes()
    path.write_bytes(whole[:-25])
    checkpoint = Checkpoint(tmp_path)
    assert len(checkpoint.begin(JOB)) == len(MEASUREMENTS) - 1
    checkpoint.add(JOB, MEASUREMENTS[-1])
    checkpoint.close()
    assert len(read_history(tmp_path).measurements["m"]) == len(MEASUREMENTS)


def test_rejects_measurements_of_another_configuration(tmp_path: Path) -> None:
    checkpoint = Checkpoint(fill(tmp_path))
    with pytest.raises(OptionError, match="another configuration of m"):
        checkpoint.begin(msgspec.structs.replace(JOB, fingerprint="f2"))
    checkpoint.close()


def test_rejects_a_damaged_checkpoint(tmp_path: Path) -> None:
    path = fill(tmp_path) / FILE
    path.write_bytes(b"garbage\n" + path.read_bytes())
    with pytest.raises(OptionError, match="line 1"):
        read_history(tmp_path)


def test_writes_all_reports(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "out"
    assert (
        run_report(
            ReportOptions(checkpoint_directory=str(fill(tmp_path / "cp")), export_path=str(out))
        )
        == 0
    )
    text = capsys.readouterr().out
    assert (
        "best is m_config_24 with 400.0 infer/sec at p99 38.00 ms, concurrency 8; gains were not"
        " measured at equal load, so it may be no better than the default" in text
    )
    assert "1 measurements failed:\n  m_config_38, concurrency 8: out of memory" in text
    for heading in (
        "Model Config Name",
        "Max Batch Size",
        "Dynamic Batching",
        "Total Instance Count",
        "p99 Latency (ms)",
        "Satisfies Constraints",
    ):
        assert f"| {heading}" in text
    rows = list(csv.DictReader(io.StringIO((out / "metrics-model-inference.csv").read_text())))
    assert [row["Satisfies Constraints"] for row in rows] == ["Yes", "Yes", "Yes", "No", ""]
    document = json.loads((out / "results.json").read_text())
    assert document[0]["ranking"][0]["name"] == "m_config_24"
    page = (out / "report.html").read_text()
    assert check_page(page)["svg"] >= 4
    assert "naiad analyze profile &lt;x&gt;" in page
    assert "a machine" in page
    assert "out of memory" in page


def test_reports_the_gain_at_equal_load(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    cp = fill(tmp_path / "cp", rounds(320, 400))
    run_report(ReportOptions(checkpoint_directory=str(cp), export_path=str(tmp_path)))
    text = capsys.readouterr().out
    gain = "x1.25 (x1.23 to x1.28) of the default at the same load, over 3 rounds"
    assert (
        f"best is m_config_24 with 400.0 infer/sec at p99 38.00 ms, concurrency 8: {gain}" in text
    )
    assert "+25.0 (+22.5 to +27.5)" in text
    assert re.search(r"m_config_default +\|.* 8 .* 320\.0", text), "the default at the same load"
    assert "x4.00" not in text
    (row,) = csv.DictReader(io.StringIO((tmp_path / "gains.csv").read_text()))
    assert (row["Verdict"], row["Concurrency"], row["Rounds"]) == ("better", "8", "3")
    assert (row["Gain (%)"], row["Lowest Gain (%)"], row["Highest Gain (%)"]) == (
        "25.00",
        "22.52",
        "27.53",
    )
    metrics = (tmp_path / "metrics-model-inference.csv").read_text()
    assert len(list(csv.DictReader(io.StringIO(metrics)))) == len(MEASUREMENTS), (
        "rounds are not measurements of the search"
    )
    page = (tmp_path / "report.html").read_text()
    check_page(page)
    assert "x1.23 to x1.28 in 3 rounds, at concurrency 8" in page
    entry = json.loads((tmp_path / "results.json").read_text())[0]["ranking"][0]
    assert entry["is_better"]
    assert entry["gains"][0]["gain"] == pytest.approx(0.25)


def test_reports_a_winner_inside_the_noise_as_no_better(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    cp = fill(tmp_path / "cp", rounds(400, 402))
    run_report(ReportOptions(checkpoint_directory=str(cp), export_path=str(tmp_path)))
    verdict = "m_config_24 is no better than what you have"
    assert (
        f"{verdict}: x1.00 (x0.99 to x1.03) of the default at concurrency 8, over 3 rounds"
        in capsys.readouterr().out
    )
    page = (tmp_path / "report.html").read_text()
    assert f'<span class="fact-note">{verdict}' in page
    assert json.loads((tmp_path / "results.json").read_text())[0]["ranking"][0]["name"] == (
        "m_config_default"
    )


def test_reports_selected_configurations(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    cp = str(fill(tmp_path / "cp"))
    options = ReportOptions(
        checkpoint_directory=cp,
        export_path=str(tmp_path),
        report_model_configs=["m_config_12"],
        output_formats=["csv"],
    )
    assert run_report(options) == 0
    assert "\nm_config_12\n" in capsys.readouterr().out
    assert not (tmp_path / "report.html").exists()
    with pytest.raises(OptionError, match="unknown format 'pdf'"):
        run_report(msgspec.structs.replace(options, output_formats=["pdf"]))
    with pytest.raises(OptionError, match="contains no measurements"):
        run_report(ReportOptions(checkpoint_directory=str(tmp_path / "none")))


def test_reports_that_every_measurement_failed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    checkpoint = Checkpoint(tmp_path)
    checkpoint.begin(JOB)
    checkpoint.add(JOB, MEASUREMENTS[-1])
    checkpoint.close()
    assert (
        run_report(ReportOptions(checkpoint_directory=str(tmp_path), export_path=str(tmp_path)))
        == 0
    )
    assert "no result, because each of the 1 measurements failed" in capsys.readouterr().out
    check_page((tmp_path / "report.html").read_text())


def test_formats_durations_and_ticks() -> None:
    assert [duration(seconds) for seconds in (5, 65, 4000)] == ["5 s", "1 min 05 s", "1 h 06 min"]
    assert linear_ticks(0, 97) == [0, 20, 40, 60, 80, 100]
    assert log_ticks(1, 100) == [1, 2, 4, 8, 16, 32, 64, 128]
    assert log_ticks(1, 5000) == [1, 10, 100, 1000, 10000]
    assert [short(value) for value in (0.1234, 12, 1234, 12345, 2.5e6)] == [
        "0.123",
        "12",
        "1,234",
        "12.3k",
        "2.5M",
    ]
