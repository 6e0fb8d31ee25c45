import json

from naiad.settings import Settings
from naiad.settings.resolve import resolve
from naiad.tables import (
    backend_config_text,
    backend_table,
    model_table,
    option_table,
    repository_agent_table,
)

# Triton 2.51's own output.
MODELS = """\
+---------------+---------+----------------------------------------------------------------------------+
| Model         | Version | Status                                                                     |
+---------------+---------+----------------------------------------------------------------------------+
| add_sub       | 1       | READY                                                                      |
| broken        | 1       | UNAVAILABLE: Internal: ModuleNotFoundError: No module named 'nosuchmodule' |
|               |         |                                                                            |
|               |         | At:                                                                        |
|               |         |   /models/broken/1/model.py(1): <module>                                   |
| identity_fp32 | 1       | READY                                                                      |
| nover         | -       | Not loaded: No model version was found                                     |
+---------------+---------+----------------------------------------------------------------------------+
"""
AGENTS = """\
+------------------+------+
| Repository Agent | Path |
+------------------+------+
+------------------+------+
"""
OPTIONS = [
    ["server_id", "foo"],
    ["server_version", "2.51.0"],
    ["server_extensions", "classification sequence"],
    ["model_repository_path[0]", "/a"],
    ["model_repository_path[1]", "/b"],
    ["model_control_mode", "MODE_EXPLICIT"],
    ["startup_models_0", "add_sub"],
    ["strict_model_config", "1"],
    ["model_config_name", "h100"],
    ["rate_limit", "EXEC_COUNT"],
    ["rate_limit_resource[0]", '{"name":"Q", "count":3 "device":-1}'],
    ["rate_limit_resource[1]", '{"name":"R", "count":2 "device":1}'],
    ["pinned_memory_pool_byte_size", "268435456"],
    ["cuda_memory_pool_byte_size{0}", "100"],
    ["min_supported_compute_capability", "7.5"],
    ["strict_readiness", "1"],
    ["exit_timeout", "5"],
    ["cache_enabled", "0"],
]


def rows(table: str) -> list[list[str]]:
    return [
        [cell.strip() for cell in line.strip("|").split("|")]
        for line in table.splitlines()
        if line.startswith("|")
    ][1:]


def test_model_table() -> None:
    reason = (
        "UNAVAILABLE: Internal: ModuleNotFoundError: No module named 'nosuchmodule'\n\n"
        "At:\n  /models/broken/1/model.py(1): <module>\n"
    )
    table = model_table(
        [
            ("add_sub", "1", "READY"),
            ("broken", "1", reason),
            ("identity_fp32", "1", "READY"),
            ("nover", "-", "Not loaded: No model version was found"),
        ]
    )
    assert table == MODELS


def test_empty_table() -> None:
    assert repository_agent_table() == AGENTS


def test_control_characters_do_not_reach_the_terminal() -> None:
    table = model_table([("m", "1", "UNAVAILABLE: \x1b[2J\r\x9b2J \t'x' \"y\"")])
    assert "\\u001B[2J\\r\\u009B2J \\t'x' \"y\"" in table
    assert len({len(line) for line in table.splitlines()}) == 1


def test_option_table() -> None:
    given = {
        "model-repository": ["/a", "/b"],
        "model-control-mode": ["explicit"],
        "load-model": ["add_sub"],
        "rate-limit": ["execution_count"],
        "rate-limit-resource": ["R:2:1", "Q:3"],
        "model-config-name": ["h100"],
        "disable-auto-complete-config": ["true"],
        "id": ["foo"],
        "cuda-memory-pool-byte-size": ["0:100"],
        "min-supported-compute-capability": ["7.5"],
        "exit-timeout-secs": ["5"],
    }
    assert (
        rows(option_table(resolve(given, {}).settings, "2.51.0", ["classification", "sequence"]))
        == OPTIONS
    )


def test_option_table_with_default_settings() -> None:
    shown = dict(rows(option_table(Settings(model_repository=("/a",)), "1", [])))
    assert shown["model_control_mode"] == "MODE_NONE"
    assert shown["rate_limit"] == "OFF"
    assert shown["min_supported_compute_capability"] == "6.0"
    assert shown["strict_model_config"] == "0"


def test_backend_table() -> None:
    given = {
        "backend-config": [
            "python,zeta=1",
            "alpha=2",
            "python,default-max-batch-size=9",
            "other,x=1",
        ],
        "min-supported-compute-capability": ["7.5"],
        "disable-auto-complete-config": ["true"],
        "backend-directory": ["/b"],
    }
    text = backend_config_text(resolve(given, {}).settings, "python")
    expected = {
        "cmdline": {
            "alpha": "2",
            "auto-complete-config": "false",
            "backend-directory": "/b",
            "default-max-batch-size": "9",
            "min-compute-capability": "7.500000",
            "zeta": "1",
        }
    }
    assert text == json.dumps(expected, separators=(",", ":"))
    assert rows(backend_table([("python", "/b/python", text)])) == [["python", "/b/python", text]]


def test_a_table_fits_the_terminal() -> None:
    table = model_table([("m", "1", "UNAVAILABLE: " + "a long reason " * 20)], 80)
    assert {len(line) for line in table.splitlines()} == {max(map(len, table.splitlines()))}
    assert max(map(len, table.splitlines())) <= 80
    assert " ".join(row[2] for row in rows(table)).count("a long reason") >= 19


def test_a_word_that_is_too_long_for_the_terminal_is_broken() -> None:
    table = model_table([("m", "1", "x" * 300)], 60)
    assert max(map(len, table.splitlines())) <= 60
    assert "".join(row[2] for row in rows(table)) == "x" * 300
