"""Tests that parameters of configs and of model.json are honoured, ignored, or rejected with their
name."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from naiad.backends.llm.checkpoint import cache_dir, find_checkpoint
from naiad.backends.llm.open import open_model
from naiad.backends.llm.options import LlmOptions, read_options, with_kv_events
from naiad.backends.llm.service import LlmService
from naiad.backends.llm.tensorrtllm.parameters import read_parameters
from naiad.backends.llm.vllm.arguments import read_arguments
from naiad.backends.served_config import Parameter, ServedConfig
from naiad.errors import NaiadError
from naiad.ipc.work import LoadArguments
from naiad.llm.engine_settings import EngineSettings
from naiad.settings.compound import BackendSetting, backend_config


def config(**parameters: Any) -> ServedConfig:
    return ServedConfig(
        "m", parameters={name: Parameter(str(value)) for name, value in parameters.items()}
    )


def test_reads_settings_by_name() -> None:
    options = read_options(
        config(
            checkpoint="x",
            max_num_seqs="4",
            enable_prefix_caching="False",
            gpu_memory_utilization="0.5",
            seed="${seed}",
        )
    )
    assert options.checkpoint == "x"
    assert options.settings.max_num_seqs == 4
    assert options.settings.enable_prefix_caching is False
    assert options.settings.gpu_memory_utilization == 0.5
    assert options.settings.seed is None


@pytest.mark.parametrize(
    ("parameters", "message"),
    [
        (
            {"max_num_seq": 3},
            "parameter 'max_num_seq', which the llm backend does not know; "
            "did you mean 'max_num_seqs'?",
        ),
        ({"max_num_seqs": "many"}, "parameter 'max_num_seqs' of model 'm' is 'many'"),
        ({"max_num_seqs": 0}, "max_num_seqs is 0, expected at least 1"),
        ({"engine": "vllm"}, "parameter 'engine' of model 'm' is 'vllm'"),
        ({"sampling_defaults": '{"temprature": 1}'}, "unknown sampling parameter 'temprature'"),
    ],
)
def test_rejects_wrong_parameters_with_their_name(parameters: dict[str, Any], message: str) -> None:
    with pytest.raises(NaiadError) as rejection:
        read_options(config(**parameters))
    assert message in rejection.value.message


def test_reads_tensorrtllm_parameters() -> None:
    read = read_parameters(
        config(
            gpt_model_path="/ck", max_tokens_in_paged_kv_cache="160",
            kv_cache_free_gpu_mem_fraction="0.4", enable_kv_cache_reuse="false",
            max_attention_window_size="2560", exclude_input_in_output="true",
            batch_scheduler_policy="guaranteed_no_evict",
            medusa_choices="${medusa_choices}", decoding_mode="",
            gpu_device_ids="${gpu_device_ids}", FORCE_CPU_ONLY_INPUT_TENSORS="no",
        )
    )  # fmt: skip
    settings = read.options.settings
    assert (read.options.checkpoint, settings.num_kv_blocks, settings.max_model_len) == (
        "/ck",
        11,
        2560,
    )
    assert (settings.kv_cache_free_gpu_mem_fraction, settings.enable_prefix_caching) == (0.4, False)
    assert read.exclude_input_in_output
    assert read.ignored == ["batch_scheduler_policy"]


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("max_beam_width", "4"), ("decoding_mode", "medusa"), ("decoding_mode", "beam_search"),
        ("medusa_choices", "[[0]]"),
        ("eagle_choices", "[[0]]"), ("gpu_device_ids", "0,2"), ("encoder_model_path", "/x"),
        ("num_nodes", "2"), ("surprise", "1"),
        ("lookahead_window_size", "3"), ("sink_token_length", "4"),
        ("max_tokens_in_paged_kv_cache", "many"), ("gpu_device_ids", "0,1;2,3"),
        ("participant_ids", "1,2"),
    ],
)  # fmt: skip
def test_rejects_tensorrtllm_parameters_that_cannot_be_honoured(name: str, value: str) -> None:
    with pytest.raises(NaiadError, match=f"parameter '{name}'"):
        read_parameters(config(gpt_model_path="/ck", **{name: value}))


@pytest.mark.parametrize(("gpus", "size"), [("0", 1), ("2,3", 2), ("0,1,2,3", 4)])
def test_gpus_of_tensorrtllm_are_ranks(gpus: str, size: int) -> None:
    read = read_parameters(config(gpt_model_path="/ck", gpu_device_ids=gpus))
    assert read.options.settings.tensor_parallel_size == size
    given = config(gpt_model_path="/ck", gpu_device_ids=gpus, tensor_parallel_size="8")
    assert read_parameters(given).options.settings.tensor_parallel_size == 8


def write_arguments(folder: Path, **arguments: Any) -> Path:
    path = folder / "model.json"
    path.write_text(json.dumps(arguments))
    return path


def test_reads_vllm_arguments(tmp_path: Path) -> None:
    path = write_arguments(
        tmp_path,
        model="org/x",
        gpu_memory_utilization=0.5,
        dtype="half",
        enforce_eager=True,
        tensor_parallel_size=2,
        disable_log_requests=True,
    )
    options, ignored = read_arguments("m", path)
    assert (options.checkpoint, options.settings.dtype, options.settings.use_cuda_graphs) == (
        "org/x",
        "float16",
        False,
    )
    assert options.settings.tensor_parallel_size == 2
    assert ignored == ["disable_log_requests"]


@pytest.mark.parametrize(
    ("value", "setting", "ignored"),
    [("dummy", "dummy", []), ("safetensors", "auto", ["load_format"])],
)
def test_reads_the_vllm_load_format(
    tmp_path: Path, value: str, setting: str, ignored: list[str]
) -> None:
    options, unused = read_arguments(
        "m", write_arguments(tmp_path, model="org/x", load_format=value)
    )
    assert (options.settings.load_format, unused) == (setting, ignored)


@pytest.mark.parametrize(
    "arguments",
    [
        {"pipeline_parallel_size": 2},
        {"enable_lora": True},
        {"speculative_config": {}},
        {"no_such_argument": 1},
        {"tokenizer": "other"},
    ],
)
def test_rejects_vllm_arguments_that_cannot_be_honoured(
    tmp_path: Path, arguments: dict[str, Any]
) -> None:
    with pytest.raises(NaiadError, match=f"'{next(iter(arguments))}' in model.json"):
        read_arguments("m", write_arguments(tmp_path, model="x", **arguments))


def test_rejects_a_missing_or_broken_model_json(tmp_path: Path) -> None:
    with pytest.raises(NaiadError, match=r"needs a .*/model.json"):
        read_arguments("m", tmp_path / "model.json")
    (tmp_path / "model.json").write_text("{")
    with pytest.raises(NaiadError, match="is not JSON"):
        read_arguments("m", tmp_path / "model.json")


def test_finds_checkpoints(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "1"
    folder.mkdir()
    (folder / "weights.gguf").write_bytes(b"")
    assert find_checkpoint(".", [folder]) == folder / "weights.gguf"
    assert find_checkpoint("1", [folder, tmp_path]) == folder / "weights.gguf"
    (folder / "more.gguf").write_bytes(b"")
    with pytest.raises(NaiadError, match="holds 2 GGUF files"):
        find_checkpoint(".", [folder])
    monkeypatch.setenv("NAIAD_CACHE", str(tmp_path))
    assert cache_dir() == tmp_path
    with pytest.raises(NaiadError, match="naiad pull smollm2"):
        find_checkpoint("smollm2", [folder])
    with pytest.raises(NaiadError, match="no checkpoint '/nowhere'"):
        find_checkpoint("/nowhere", [folder])


@pytest.mark.parametrize(
    ("kind", "gpu", "device", "expected"),
    [
        ("GPU", 0, "auto", "auto"),
        ("GPU", 2, "auto", "cuda:2"),
        ("GPU", 2, "cpu", "cpu"),
        ("CPU", 2, "auto", "auto"),
    ],
)
def test_an_instance_runs_on_its_own_gpu(kind: str, gpu: int, device: str, expected: str) -> None:
    pytest.importorskip("tokenizers")
    from naiad.backends.llm.service import on_own_device

    arguments = LoadArguments("m", 1, "/m", "m_0_0", kind, gpu, b"{}")
    options = LlmOptions(settings=EngineSettings(device=device, seed=4))
    chosen = on_own_device(options, arguments).settings
    assert (chosen.device, chosen.seed) == (expected, 4)


EVENTS = {
    "kv_events_endpoint": "tcp://127.0.0.1:5557",
    "kv_events_replay_endpoint": "tcp://127.0.0.1:5558",
}


def test_backend_config_sets_the_endpoints_of_kv_events() -> None:
    text = "llm,kv_events_endpoint=tcp://127.0.0.1:5557"
    assert backend_config(text) == BackendSetting("llm", *text[4:].split("="))
    options = read_options(config(max_num_seqs="4"))
    settings = with_kv_events("m", options, {**EVENTS, "default-max-batch-size": "4"}).settings
    assert settings.kv_events_endpoint == EVENTS["kv_events_endpoint"]
    assert settings.kv_events_replay_endpoint == EVENTS["kv_events_replay_endpoint"]
    assert settings.max_num_seqs == 4
    assert with_kv_events("m", options, {}) is options
    own = read_options(config(**EVENTS))
    assert with_kv_events("m", own, {}) is own
    assert with_kv_events("m", own, EVENTS) == own


@pytest.mark.parametrize(
    ("parameters", "given", "message"),
    [
        (
            {"kv_events_endpoint": "tcp://*:1"},
            EVENTS,
            "model 'm' sets kv_events_endpoint to 'tcp://*:1', but the server was started with "
            "--backend-config kv_events_endpoint=tcp://127.0.0.1:5557: remove the model's",
        ),
        ({"enable_prefix_caching": "false"}, EVENTS, "needs enable_prefix_caching"),
        ({}, {"kv_events_endpoint": "udp://x"}, "kv_events_endpoint is 'udp://x', expected"),
    ],
)
def test_the_service_refuses_endpoints_that_contradict_the_model(
    parameters: dict[str, Any], given: dict[str, str], message: str, tmp_path: Path
) -> None:
    arguments = LoadArguments(
        "m", 1, str(tmp_path), "m_0", "CPU", 0, b"{}", "", backend_config=given
    )
    runtime: Any = None
    with pytest.raises(NaiadError) as rejection:
        LlmService(arguments, runtime, read_options(config(**parameters)))
    assert message in rejection.value.message


def test_openvino_does_not_publish_kv_events(tmp_path: Path) -> None:
    (tmp_path / "openvino_model.xml").write_text("")
    options = read_options(config(engine="openvino", **EVENTS))
    process: Any = None
    with pytest.raises(NaiadError, match="only the native engine publishes KV events"):
        open_model(options, [tmp_path], 1, process, lambda message: None)


def test_only_openvino_rounds_activations(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    options = read_options(config(engine="native", activations="int8"))
    process: Any = None
    with pytest.raises(NaiadError, match="activations is 'int8', which the openvino engine does"):
        open_model(options, [tmp_path], 1, process, lambda message: None)


def test_activations_have_two_values() -> None:
    with pytest.raises(NaiadError, match="activations is 'int4', expected float32 or int8"):
        read_options(config(activations="int4"))
