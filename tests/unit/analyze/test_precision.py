"""Tests that quantization is searched: the dimensions, what a device cannot serve, the figures and
the reports."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import msgspec
import pytest

from naiad.analyze.checkpoint import Checkpoint, CheckpointJob, Goal
from naiad.analyze.measurement import Measurement, ModelOutcome
from naiad.analyze.precision import Precision, PrecisionOutcome
from naiad.analyze.precision_search import (
    ProbeRequest,
    measure_precisions,
    searched_precisions,
    without_unserved,
)
from naiad.analyze.report import run_report
from naiad.analyze.settings import AnalyzedModel, ProfileOptions, ReportOptions, some_of
from naiad.analyze.space import Space, build_space
from naiad.llm.engine_settings import EngineSettings
from naiad.pb.model_config_pb2 import ModelConfig

CHOICES = {
    "run_config_search_quantization": ["auto", "fp8", "int4"],
    "run_config_search_kv_cache_dtype": ["auto", "fp8"],
}


def space() -> Space:
    return build_space(
        ProfileOptions(**CHOICES),  # type: ignore[arg-type]
        [AnalyzedModel(name="m")],
        {"m": ModelConfig(name="m", backend="llm")},
    )


def test_quantization_is_a_dimension_where_it_is_asked_for() -> None:
    names = [dimension.name for dimension in space().dimensions]
    assert names[2:] == ["parameters.quantization", "parameters.kv_cache_dtype"]
    precisions = searched_precisions(space(), "m")
    assert precisions[0] == Precision()
    assert len(precisions) == len(set(precisions)) == 6
    assert searched_precisions(space(), "other") == []


def test_lists_are_checked_and_ordered() -> None:
    parse = some_of("auto", "fp8", "int4")
    assert parse("int4, auto") == ["auto", "int4"]
    for text in ("", "nvfp4"):
        with pytest.raises(ValueError, match="expected a list of auto, fp8, int4"):
            parse(text)


def test_what_the_device_serves_in_no_pair_is_left_out() -> None:
    outcomes = [
        PrecisionOutcome(
            "m",
            one,
            reason="no kernel" if one.kv_cache_dtype == "fp8" or one.quantization == "fp8" else "",
        )
        for one in searched_precisions(space(), "m")
    ]
    kept = {one.name: one.values for one in without_unserved(space().dimensions, outcomes)}
    assert kept["parameters.quantization"] == ("auto", "int4")
    assert "parameters.kv_cache_dtype" not in kept
    assert without_unserved(space().dimensions, []) == space().dimensions


def test_only_the_llm_backend_has_precisions(tmp_path: Path) -> None:
    config = ModelConfig(name="m", backend="vllm")
    found = asyncio.run(measure_precisions(config, tmp_path, [Precision()], ""))
    assert 'backend "llm"' in found[0].reason


def test_a_checkpoint_that_is_not_there_is_a_reason(tmp_path: Path) -> None:
    config = ModelConfig(name="m", backend="llm")
    config.parameters["checkpoint"].string_value = "nowhere.gguf"
    found = asyncio.run(measure_precisions(config, tmp_path, [Precision(), Precision("fp8")], ""))
    assert ["no checkpoint 'nowhere.gguf'" in one.reason for one in found] == [True, True]


def test_a_split_model_is_a_reason(tmp_path: Path) -> None:
    config = ModelConfig(name="m", backend="llm")
    config.parameters["tensor_parallel_size"].string_value = "2"
    found = asyncio.run(measure_precisions(config, tmp_path, [Precision()], ""))
    assert "compared on one rank, and tensor_parallel_size is 2" in found[0].reason


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    pytest.importorskip("torch", reason="needs torch (the llm extra)")
    pytest.importorskip("transformers", reason="needs transformers (the llm extra)")
    from tests.server.llm_checkpoint import write_checkpoint

    return write_checkpoint(tmp_path_factory.mktemp("llm") / "plain", hidden=128)


def test_divergence_grows_as_bits_become_fewer(checkpoint: Path, tmp_path: Path) -> None:
    from naiad.analyze.precision_probe import Probe

    text = tmp_path / "text.txt"
    text.write_text("The river carries what the rain gives it, and the sea forgets. " * 60)
    precisions = [Precision(*pair) for pair in (
        ("auto", "auto"), ("int8", "auto"), ("int4", "auto"), ("fp8", "auto"), ("auto", "fp8"),
    )]  # fmt: skip
    request = ProbeRequest(
        "m", str(checkpoint), EngineSettings(device="cpu"), precisions, str(text)
    )
    outcomes = {one.precision: one for one in Probe(request).outcomes()}
    plain, int8, int4, fp8, cache = (outcomes[precision] for precision in precisions)
    assert plain.figures["divergence"] == 0.0
    assert plain.figures["agreement"] == 100.0
    assert 0.0 < int8.figures["divergence"] < int4.figures["divergence"]
    assert int4.figures["perplexity"] > 1.0
    # 2 layers of keys and values, 2 KV heads of 32 numbers, 4 bytes each
    assert plain.figures["kv_cache_per_token"] == pytest.approx(2 * 2 * 2 * 32 * 4 / 1e3)
    assert "'fp8' has no kernel on this device" in fp8.reason
    assert "compute capability 8.9" in cache.reason


def test_the_probe_is_a_process_of_its_own(checkpoint: Path) -> None:
    config = ModelConfig(name="m", backend="llm")
    config.parameters["device"].string_value = "cpu"
    config.parameters["checkpoint"].string_value = str(checkpoint)
    precisions = [Precision(), Precision("int8")]
    found = asyncio.run(measure_precisions(config, checkpoint.parent, precisions, ""))
    assert [one.precision for one in found] == precisions
    assert found[1].figures["divergence"] > 0.0
    missing = asyncio.run(
        measure_precisions(config, checkpoint.parent, precisions, str(checkpoint / "none.txt"))
    )
    assert all("is not a file" in one.reason for one in missing)


def measured(name: str, precision: Precision, rate: float) -> Measurement:
    values = {} if precision == Precision() else {"parameters.quantization": "int4"}
    figures = {"perf_throughput": rate, "perf_latency_p99": 5.0}
    figures["output_token_throughput"] = 9 * rate
    outcome = ModelOutcome("m", name, 0, "Disabled", "1:GPU", values, figures, precision)
    return Measurement(f"{name}/1", 1, 1, [outcome], {"gpu_used_memory": 70_000.0})


def test_reports_show_speed_memory_and_divergence_next_to_each_other(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    plain, int4, cache = Precision(), Precision("int4"), Precision("auto", "fp8")
    job = CheckpointJob(
        ["m"], "f1", "quick", Goal({"m": {"perf_throughput": 1.0}}), "naiad analyze", "a machine",
        "2026-01-01T00:00:00+00:00", "1.0", 4, "models",
        [
            PrecisionOutcome("m", plain, {"divergence": 0.0, "weight_memory": 16_000.0}),
            PrecisionOutcome("m", int4, {"divergence": 0.1234, "weight_memory": 5_000.0}),
            PrecisionOutcome("m", cache, reason="no such GPU"),
        ],
    )  # fmt: skip
    checkpoint = Checkpoint(tmp_path / "cp")
    checkpoint.begin(job)
    checkpoint.add(job, measured("m_config_default", plain, 10.0))
    checkpoint.add(job, measured("m_config_0", int4, 25.0))
    checkpoint.close()
    options = ReportOptions(
        checkpoint_directory=str(tmp_path / "cp"), export_path=str(tmp_path / "out")
    )
    assert run_report(options) == 0
    text = capsys.readouterr().out
    row = next(line for line in text.splitlines() if "0.1234" in line)
    assert all(part in row for part in ("int4", "m_config_0", "225.0", "70,000", "5,000"))
    assert "left out: no such GPU" in text
    page = (tmp_path / "out" / "report.html").read_text()
    assert "Speed, memory and divergence" in page
    assert "0.1234" in page
    document = json.loads((tmp_path / "out" / "results.json").read_text())
    rows = {(one["quantization"], one["kv_cache_dtype"]): one for one in document[0]["precisions"]}
    assert rows["int4", "auto"]["figures"]["divergence"] == 0.1234
    assert rows["int4", "auto"]["figures"]["output_token_throughput"] == 225.0
    assert rows["auto", "fp8"]["reason"] == "no such GPU"
    assert msgspec.json.encode(job)
