"""Tests `naiad analyze` with a language model: it searches quantization and shows its cost."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.server.llm_checkpoint import parameter, write_checkpoint, write_model
from tests.server.test_analyze import BRUTE, analyze, arguments, measured

pytest.importorskip("torch", reason="needs torch (the llm extra)")
pytest.importorskip("transformers", reason="needs transformers (the llm extra)")


def test_searches_quantization_and_shows_what_it_costs(tmp_path: Path) -> None:
    checkpoint = write_checkpoint(tmp_path / "checkpoint", hidden=128)
    settings = {"checkpoint": checkpoint, "device": "cpu", "num_threads": 1}
    settings["kv_cache_bytes"] = 1 << 22
    text = "".join(parameter(name, value) for name, value in settings.items())
    write_model(tmp_path / "models", "tiny", 'backend: "llm"\n' + text)
    choices = ["--model-type", "llm", "--run-config-search-max-num-seqs", "4"]
    choices += ["--run-config-search-max-num-batched-tokens", "256", "-c", "2"]
    choices += ["--run-config-search-quantization", "auto,int8,fp8"]
    choices += ["--run-config-search-kv-cache-dtype", "auto,fp8"]
    flags = '{"output-tokens-mean": 4, "synthetic-input-tokens-mean": 8, "request-count": 4}'
    shown = analyze(
        arguments(tmp_path, *BRUTE, *choices, "--perf-analyzer-flags", flags, model="tiny")
    )
    assert "unquantized with an fp8 KV cache is left out" in shown
    assert "fp8 is left out: 'fp8' has no kernel on this device" in shown
    document = json.loads((tmp_path / "out" / "results.json").read_text())[0]
    rows = {(one["quantization"], one["kv_cache_dtype"]): one for one in document["precisions"]}
    for name in ("auto", "int8"):
        figures = rows[name, "auto"]["figures"]
        assert {"output_token_throughput", "cpu_used_ram", "divergence"} <= set(figures)
    assert rows["int8", "auto"]["figures"]["divergence"] > 0.0
    tried_values = [one["outcomes"][0]["values"] for one in measured(tmp_path)]
    searched = {values.get("parameters.quantization") for values in tried_values}
    assert searched == {None, "auto", "int8"}
    assert not any(one["error"] for one in measured(tmp_path))
    # A second run measures no precision again.
    again = analyze(
        arguments(tmp_path, *BRUTE, *choices, "--perf-analyzer-flags", flags, model="tiny")
    )
    assert "measuring unquantized" in shown
    assert "measuring unquantized" not in again
