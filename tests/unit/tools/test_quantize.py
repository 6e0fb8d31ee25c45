"""`naiad quantize` on a tiny model: each format is served, a killed run ends with the same bytes,
bad input is named."""

from __future__ import annotations

import hashlib
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="needs torch (the llm extra)")
transformers = pytest.importorskip("transformers", reason="needs transformers (the llm extra)")
import tokenizers

from naiad.cli import main as cli
from naiad.errors import NaiadError
from naiad.llm.checkpoint.safetensors_source import SafetensorsSource
from naiad.llm.start.kv_precision import read_kv_scales
from naiad.tools.quantize import job as job_module
from naiad.tools.quantize.job import Outcome, QuantizeJob
from naiad.tools.quantize.options import QFORMATS, QuantizeOptions
from naiad.tools.quantize.report import HTML_NAME, JSON_NAME, measure, write_report
from tests.unit.llm.engines import request, run, small_engine

SHAPE: dict[str, Any] = {
    "vocab_size": 256, "hidden_size": 128, "intermediate_size": 256, "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2, "max_position_embeddings": 256, "eos_token_id": None,
    "pad_token_id": None, "dtype": "bfloat16",
}  # fmt: skip


SLOW_RUN = """
import time
from naiad.tools.quantize import job
save = job._save
def save_and_wait(tensors, path):
    save(tensors, path)
    time.sleep(600)  # nobody waits for it: the process is killed here
job._save = save_and_wait
from naiad.cli.main import main
main()
"""


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    torch.set_num_threads(1)
    torch.manual_seed(3)
    folder = tmp_path / "plain"
    model = transformers.LlamaForCausalLM(transformers.LlamaConfig(**SHAPE)).to(torch.bfloat16)
    for parameter in model.parameters():
        if parameter.dim() > 1:
            parameter.data.normal_(0.0, 0.08)
    model.save_pretrained(folder)
    alphabet = sorted(tokenizers.pre_tokenizers.ByteLevel.alphabet())
    tokenizer = tokenizers.Tokenizer(
        tokenizers.models.BPE({letter: index for index, letter in enumerate(alphabet)}, [])
    )
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel()
    tokenizer.save(str(folder / "tokenizer.json"))
    return folder


def options(checkpoint: Path, name: str = "out", **values: Any) -> QuantizeOptions:
    given = {
        "qformat": "int4_awq",
        "calib_size": 6,
        "calib_max_seq_length": 48,
        "device": "cpu",
        **values,
    }
    return QuantizeOptions(model_dir=checkpoint, output_dir=checkpoint.parent / name, **given)


def quantize(checkpoint: Path, name: str = "out", **values: Any) -> Outcome:
    return QuantizeJob(options(checkpoint, name, **values)).run()


@pytest.mark.parametrize("qformat", QFORMATS)
def test_the_result_is_served(qformat: str, checkpoint: Path) -> None:
    outcome = quantize(checkpoint, qformat=qformat)
    assert outcome.quality.divergence < 0.5
    assert qformat == "full_prec" or outcome.bytes_after < 0.75 * outcome.bytes_before
    done = run(
        small_engine(outcome.output_dir, dtype="auto"), [request("a", [1, 2, 3], max_tokens=4)]
    )
    assert len(done[("a", 0)].tokens) == 4
    assert not list(checkpoint.parent.glob("*.partial"))


@pytest.mark.parametrize("qformat", ["int4_gptq", "int4_awq", "int8_wo", "fp8"])
def test_the_head_too_where_it_is_asked_for(qformat: str, checkpoint: Path) -> None:
    outcome = quantize(checkpoint, qformat=qformat, quantize_lm_head=True)
    assert outcome.quality.divergence < 0.5
    names = set(
        json.loads((outcome.output_dir / "model.safetensors.index.json").read_text())["weight_map"]
    )
    assert "lm_head.weight_scale" in names
    assert (
        len(
            run(
                small_engine(outcome.output_dir, dtype="auto"),
                [request("a", [1, 2, 3], max_tokens=4)],
            )[("a", 0)].tokens
        )
        == 4
    )


def test_autoawqs_layout_holds_the_same_numbers(checkpoint: Path) -> None:
    ours, theirs = quantize(checkpoint, "a"), quantize(checkpoint, "b", layout="awq")
    assert (
        json.loads((theirs.output_dir / "config.json").read_text())["quantization_config"][
            "quant_method"
        ]
        == "awq"
    )
    assert abs(ours.quality.divergence - theirs.quality.divergence) < 0.01


def test_awq_and_gptq_lose_less_than_rounding(checkpoint: Path) -> None:
    """Some inputs are made large, as real models have them."""
    from safetensors.torch import load_file, save_file

    path = checkpoint / "model.safetensors"
    state = load_file(path)
    for name, tensor in state.items():
        if name.endswith("layernorm.weight"):
            tensor[::16] *= 12.0
    save_file(state, path, metadata={"format": "pt"})
    formats = ("int4_wo", "int4_awq", "int4_gptq")
    lost = {
        name: quantize(checkpoint, name, qformat=name, calib_size=32).quality.divergence
        for name in formats
    }
    assert lost["int4_awq"] < lost["int4_wo"]
    assert lost["int4_gptq"] < lost["int4_wo"]


def digest(folder: Path) -> dict[str, str]:
    return {
        path.name: hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(folder.glob("*.safetensors"))
    }


@pytest.mark.parametrize("qformat", ["int4_awq", "int4_gptq", "fp8"])
def test_kill_9_in_the_middle_changes_nothing_about_the_result(
    qformat: str, checkpoint: Path
) -> None:
    """The process is killed as soon as its first layer is on the disk."""
    whole = quantize(checkpoint, "whole", qformat=qformat)
    out = checkpoint.parent / "killed"
    flags = {
        "--model_dir": checkpoint, "--output_dir": out, "--qformat": qformat, "--calib_size": 6,
        "--calib_max_seq_length": 48, "--device": "cpu",
    }  # fmt: skip
    command = [sys.executable, "-c", SLOW_RUN, "quantize"]
    command += [str(part) for pair in flags.items() for part in pair]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
    first = out.with_name("killed.partial") / "layer-00000.safetensors"
    deadline = time.monotonic() + 120
    while not first.exists() and process.poll() is None and time.monotonic() < deadline:
        time.sleep(0.01)
    process.kill()
    assert process.wait() == -signal.SIGKILL
    assert not out.exists()
    again = quantize(checkpoint, "killed", qformat=qformat)
    assert again.num_resumed == 1
    assert digest(again.output_dir) == digest(whole.output_dir)
    assert again.quality == whole.quality


@pytest.mark.parametrize("qformat", ["int4_awq", "int4_gptq"])
def test_a_run_that_was_killed_goes_on_to_the_same_bytes(
    qformat: str, checkpoint: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = quantize(checkpoint, "whole", qformat=qformat)
    saved: list[Any] = []
    real = job_module._save

    def save_two(tensors: Any, path: Path) -> None:
        if len(saved) == 2:
            path.with_suffix(".writing").write_bytes(b"half of a layer")
            raise KeyboardInterrupt
        saved.append(path)
        real(tensors, path)

    monkeypatch.setattr(job_module, "_save", save_two)
    with pytest.raises(KeyboardInterrupt):
        quantize(checkpoint, "cut", qformat=qformat)
    assert not (checkpoint.parent / "cut").exists()
    monkeypatch.setattr(job_module, "_save", real)
    with pytest.raises(NaiadError, match="other options"):
        quantize(checkpoint, "cut", qformat=qformat, calib_size=5)
    again = quantize(checkpoint, "cut", qformat=qformat)
    assert again.num_resumed == 2
    assert digest(again.output_dir) == digest(whole.output_dir)
    assert again.quality == whole.quality


def test_the_report_is_beside_the_checkpoint(checkpoint: Path) -> None:
    given = options(checkpoint, qformat="fp8")
    outcome = QuantizeJob(given).run()
    write_report(outcome, given)
    values = json.loads((outcome.output_dir / JSON_NAME).read_text())
    assert values["outcome"]["quality"]["perplexity_after"] > 1.0
    assert "Perplexity" in (outcome.output_dir / HTML_NAME).read_text()
    assert (outcome.output_dir / "tokenizer.json").exists()


@pytest.mark.parametrize(("values", "message"), [
    ({"qformat": "nvfp4"}, "'nvfp4' is not made here"),
    ({"qformat": "int5"}, "expected one of int4_awq"),
    ({"awq_block_size": 48}, "awq_block_size is 48"),
    ({"qformat": "fp8", "layout": "awq"}, "--form awq"),
    ({"kv_cache_dtype": "int8"}, "kv_cache_dtype is .int8., expected fp8"),
    ({"kv_cache_dtype": "fp8", "layout": "awq"}, "kv_cache_dtype goes with compressed"),
    ({"calib_size": 0}, "calib_size is 0"),
    ({"calib_dataset": Path("/nowhere")}, "not a file"),
], ids=str)  # fmt: skip
def test_bad_options_are_named(values: dict[str, Any], message: str, checkpoint: Path) -> None:
    with pytest.raises(NaiadError, match=message):
        quantize(checkpoint, **values)


def test_what_cannot_be_quantized_says_why(checkpoint: Path) -> None:
    done = quantize(checkpoint, "done", qformat="int8_wo")
    with pytest.raises(NaiadError, match="quantized already"):
        quantize(done.output_dir, "twice")
    with pytest.raises(NaiadError, match="is there already"):
        quantize(checkpoint, "done")
    config = checkpoint / "config.json"
    config.write_text(config.read_text().replace('"model_type": "llama"', '"model_type": "gpt2"'))
    with pytest.raises(NaiadError, match="model_type 'gpt2'"):
        quantize(checkpoint, "other")


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"num_attention_heads": 0}, "num_attention_heads 0, expected a number from 1"),
        ({"hidden_size": 0}, "hidden_size 0, expected a number from 1"),
        ({"intermediate_size": "wide"}, "intermediate_size wide, expected a number"),
        ({"num_hidden_layers": 1_000_000}, "num_hidden_layers 1000000, expected|1000000 layers"),
        ({"num_hidden_layers": 4}, "has 4 layers, and its files have 3"),
        ({"vocab_size": 1 << 40}, "vocab_size"),
        ({"vocab_size": 9999}, r"'model.embed_tokens.weight' of 'plain' has shape .*9999"),
        ({"rope_parameters": 7}, "cannot be used"),
        ({"dtype": "save"}, "the dtype is 'save', expected one such as bfloat16"),
        ({"model_type": 3}, "has no model_type"),
    ],
)
def test_a_config_that_cannot_be_is_refused_in_words(
    values: dict[str, Any], message: str, checkpoint: Path
) -> None:
    config = checkpoint / "config.json"
    config.write_text(json.dumps(json.loads(config.read_text()) | values))
    with pytest.raises(NaiadError, match=message):
        quantize(checkpoint)
    assert [path.name for path in checkpoint.parent.iterdir()] == ["plain"]


@pytest.mark.parametrize("name", ["config.json", "model.safetensors", "tokenizer.json"])
def test_a_pipe_in_the_place_of_a_file_is_refused(name: str, checkpoint: Path) -> None:
    (checkpoint / name).unlink()
    os.mkfifo(checkpoint / name)
    with pytest.raises(NaiadError, match=f"{name} of .* is not a file"):
        quantize(checkpoint)


def test_others_may_read_the_result_as_umask_says(checkpoint: Path) -> None:
    out = quantize(checkpoint, qformat="int8_wo", awq_block_size=32).output_dir
    modes = {path.name: path.stat().st_mode & 0o777 for path in out.iterdir()}
    assert len(modes) > 4
    assert set(modes.values()) == {modes["config.json"]}


def test_numbers_that_are_none_stop_the_calibration(checkpoint: Path) -> None:
    from safetensors.torch import load_file, save_file

    path = checkpoint / "model.safetensors"
    state = load_file(path)
    state["model.layers.1.input_layernorm.weight"][5] = float("nan")
    save_file(state, path, metadata={"format": "pt"})
    with pytest.raises(NaiadError, match="no numbers"):
        quantize(checkpoint)
    assert not (checkpoint.parent / "out").exists()


@pytest.mark.parametrize("form", ["one", "four-part"])
def test_init_llm_quantizes_into_the_repository(form: str, checkpoint: Path) -> None:
    out = checkpoint.parent / "repository"
    arguments = [
        "init",
        "llm",
        "--checkpoint",
        str(checkpoint),
        "--qformat",
        "int4_wo",
        "--form",
        form,
        str(out),
    ]
    assert cli.run(cli.naiad, "naiad", arguments) == 0
    folder = out / ("tensorrt_llm" if form == "four-part" else "plain") / "1"
    config = (folder.parent / "config.pbtxt").read_text()
    assert str(folder) in config
    assert "int4" in small_engine(folder, dtype="auto").quantization


def test_an_fp8_kv_cache_gets_scales_that_hold_every_key_and_value(checkpoint: Path) -> None:
    """The bound of keys holds at any position, because it is that of pairs before the rotation."""
    outcome = quantize(checkpoint, kv_cache_dtype="fp8")
    config = json.loads((outcome.output_dir / "config.json").read_text())
    scheme = config["quantization_config"]["kv_cache_scheme"]
    assert (scheme["num_bits"], scheme["type"], scheme["strategy"]) == (8, "float", "tensor")
    source = SafetensorsSource(outcome.output_dir, torch.device("cpu"))
    scales = read_kv_scales(source, "model.layers.{}.", 3)
    assert all(scale.key > 0 and scale.value > 0 for scale in scales)
    model = transformers.LlamaForCausalLM.from_pretrained(checkpoint, dtype=torch.float32)
    tokens = torch.arange(200)[None] % 256
    with torch.inference_mode():
        cache = model(tokens, use_cache=True).past_key_values
    for scale, layer in zip(scales, cache.layers, strict=True):
        # AWQ has scaled values down by channel, so only keys compare with the plain model.
        assert float(layer.keys.abs().amax()) / scale.key < 1.3 * 448
    done = run(
        small_engine(outcome.output_dir, dtype="auto"), [request("a", [1, 2, 3], max_tokens=4)]
    )
    assert len(done[("a", 0)].tokens) == 4


def test_compressed_tensors_reads_the_kv_scheme(checkpoint: Path) -> None:
    quantization: Any = pytest.importorskip("compressed_tensors.quantization")
    outcome = quantize(checkpoint, qformat="int8_wo", kv_cache_dtype="fp8")
    config = json.loads((outcome.output_dir / "config.json").read_text())["quantization_config"]
    parsed = quantization.QuantizationConfig.model_validate(
        {name: value for name, value in config.items() if name != "version"}
    )
    assert parsed.kv_cache_scheme.num_bits == 8


def test_the_report_says_how_fast_both_are(checkpoint: Path) -> None:
    outcome = quantize(checkpoint)
    given = options(checkpoint)
    speed = measure(given)
    assert speed.reason == ""
    assert speed.before is not None
    assert speed.after is not None
    write_report(outcome, given, speed)
    report = json.loads((outcome.output_dir / JSON_NAME).read_text())
    assert report["tokens_per_second"]["after"] == speed.after
    assert "tokens per second, one request" in (outcome.output_dir / HTML_NAME).read_text()
