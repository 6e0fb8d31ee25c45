import ipaddress
from pathlib import Path
from typing import Any

import pytest

from naiad.errors import NaiadError
from naiad.settings import LatencyMetrics, OptionError, Settings, latency_metrics
from naiad.settings.compound import BackendSetting, CacheSetting, TraceSetting
from naiad.settings.consistency import check_creation
from naiad.settings.effect import WITHOUT_EFFECT
from naiad.settings.resolve import OPTIONS, TRITONSERVER_DEFAULTS, resolve

# For every option, a text that does not parse to the default, and the value it parses to.
EXAMPLES: dict[str, tuple[str, Any]] = {
    "api-key-file": ("keys.json", "keys.json"),
    "api-key": ("sk-1,2", ("sk-1,2",)),
    "api-key-header": ("X-Goog-Api-Key", ("x-goog-api-key",)),
    "guarded-api": ("metrics", ("metrics",)),
    "jwt-jwks": ("jwks.json", "jwks.json"),
    "jwt-issuer": ("https://login.example.com", "https://login.example.com"),
    "jwt-audience": ("naiad", ("naiad",)),
    "jwt-scope-prefix": ("ai.", "ai."),
    "jwt-default-scope": ("inference", ("inference",)),
    "jwt-leeway-secs": ("5", 5.0),
    "jwt-refresh-secs": ("60", 60.0),
    "audit-log": ("audit.jsonl", "audit.jsonl"),
    "trusted-proxy": ("10.0.0.0/8", (ipaddress.ip_network("10.0.0.0/8"),)),
    "allowed-host": ("API.example.com", ("api.example.com",)),
    "cors-allow-origin": ("https://App.example.com", ("https://app.example.com",)),
    "allow-file-override": ("false", "false"),
    "console": ("false", "false"),
    "console-max-upload-size": ("1048576", 1048576),
    "console-allow-pickle": ("true", True),
    "id": ("naiad", "naiad"),
    "node-name": ("a", "a"),
    "replica-name": ("d-1", "d-1"),
    "exit-timeout-secs": ("7", 7),
    "drain-delay-secs": ("2.5", 2.5),
    "busy-poll-us": ("50", 50),
    "frontend-processes": ("4", 4),
    "direct-calls": ("false", False),
    "ensemble-relay": ("false", False),
    "fast-paths": ("false", False),
    "log-verbose": ("2", 2),
    "log-info": ("off", False),
    "log-warning": ("0", False),
    "log-error": ("FALSE", False),
    "log-format": ("ISO8601", "ISO8601"),
    "log-file": ("/tmp/x", "/tmp/x"),
    "log-json": ("true", True),
    "model": ("smollm2", ("smollm2",)),
    "model-repository": ("/a", ("/a",)),
    "repository-cache-directory": ("/c", "/c"),
    "exit-on-error": ("false", False),
    "disable-auto-complete-config": ("true", True),
    "strict-readiness": ("false", False),
    "model-control-mode": ("explicit", "explicit"),
    "repository-poll-secs": ("3", 3),
    "model-config-name": ("h100", "h100"),
    "model-load-thread-count": ("9", 9),
    "model-load-retry-count": ("2", 2),
    "model-namespacing": ("true", True),
    "enable-peer-access": ("false", False),
    "worker-max-restarts": ("0", 0),
    "max-queue-size": ("0", 0),
    "max-queue-wait-secs": ("0.5", 0.5),
    "worker-restart-window-secs": ("10", 10.0),
    "default-execution-timeout-secs": ("1.5", 1.5),
    "model-load-timeout-secs": ("30", 30.0),
    "worker-restart-wait-secs": ("0", 0.0),
    "max-model-instances": ("9", 9),
    "worker-environment": ("MY_*", ("MY_*",)),
    "worker-user": ("nobody", "nobody"),
    "worker-memory-limit": ("1073741824", 1 << 30),
    "worker-process-limit": ("64", 64),
    "allow-http": ("false", False),
    "http-address": ("::1", "::1"),
    "http-port": ("0", 0),
    "reuse-http-port": ("true", True),
    "http-header-forward-pattern": ("x-.*", "x-.*"),
    "http-thread-count": ("3", 3),
    "http-max-input-size": ("1", 1),
    "http-max-json-size": ("2048", 2048),
    "http-max-connections": ("5", 5),
    "http-max-header-count": ("5", 5),
    "http-max-header-size": ("1024", 1024),
    "http-request-timeout-secs": ("0.5", 0.5),
    "http-keepalive-timeout-secs": ("5", 5.0),
    "http-write-timeout-secs": ("5", 5.0),
    "allow-grpc": ("false", False),
    "grpc-address": ("1.2.3.4", "1.2.3.4"),
    "grpc-port": ("9000", 9000),
    "reuse-grpc-port": ("true", True),
    "grpc-header-forward-pattern": ("x", "x"),
    "grpc-infer-thread-count": ("128", 128),
    "grpc-infer-allocation-pool-size": ("0", 0),
    "grpc-max-response-pool-size": ("4", 4),
    "grpc-max-message-size": ("4096", 4096),
    "http-use-ssl": ("true", True),
    "http-use-ssl-mutual": ("true", True),
    "http-server-cert": ("c", "c"),
    "http-server-key": ("k", "k"),
    "http-root-cert": ("r", "r"),
    "grpc-use-ssl": ("true", True),
    "grpc-use-ssl-mutual": ("true", True),
    "grpc-server-cert": ("c", "c"),
    "grpc-server-key": ("k", "k"),
    "grpc-root-cert": ("r", "r"),
    "grpc-infer-response-compression-level": ("HIGH", "high"),
    "grpc-keepalive-time": ("1", 1),
    "grpc-keepalive-timeout": ("1", 1),
    "grpc-keepalive-permit-without-calls": ("1", True),
    "grpc-http2-max-pings-without-data": ("0", 0),
    "grpc-http2-min-recv-ping-interval-without-data": ("1", 1),
    "grpc-http2-max-ping-strikes": ("0", 0),
    "grpc-max-connection-age": ("1", 1),
    "grpc-max-connection-age-grace": ("1", 1),
    "grpc-request-timeout-secs": ("0.5", 0.5),
    "grpc-idle-timeout-secs": ("0", 0.0),
    "grpc-stream-idle-timeout-secs": ("0", 0.0),
    "grpc-write-timeout-secs": ("5", 5.0),
    "grpc-max-watches": ("0", 0),
    "allow-sagemaker": ("true", True),
    "sagemaker-port": ("1", 1),
    "sagemaker-thread-count": ("1", 1),
    "allow-vertex-ai": ("true", True),
    "vertex-ai-port": ("1", 1),
    "vertex-ai-thread-count": ("1", 1),
    "vertex-ai-default-model": ("m", "m"),
    "allow-metrics": ("false", False),
    "allow-gpu-metrics": ("false", False),
    "allow-cpu-metrics": ("false", False),
    "metrics-address": ("0.0.0.0", "0.0.0.0"),
    "metrics-port": ("1", 1),
    "metrics-interval-ms": ("0.5", 0.5),
    "backend-directory": ("/b", "/b"),
    "repoagent-directory": ("/r", "/r"),
    "cache-directory": ("/c", "/c"),
    "rate-limit": ("execution_count", "execution_count"),
    "request-memory-byte-size": ("1073741824", 1 << 30),
    "pinned-memory-pool-byte-size": ("-1", -1),
    "min-supported-compute-capability": ("7.5", 7.5),
    "buffer-manager-thread-count": ("1", 1),
    "allow-client-shm": ("true", True),
}
# Options whose values are structs, which tests/unit/settings/test_compound.py tests.
COMPOUND = {
    "sagemaker-safe-port-range": "1-2",
    "load-model": "m",
    "http-restricted-api": "health:a=b",
    "grpc-restricted-protocol": "health:a=b",
    "metrics-config": "counter_latencies=false",
    "trace-config": "rate=1",
    "backend-config": "a=b",
    "cache-config": "local,size=1",
    "rate-limit-resource": "R:1",
    "cuda-memory-pool-byte-size": "0:1",
    "cuda-virtual-address-size": "0:1",
    "host-policy": "x,numa-node=1",
    "jwt-claim": "rpm=a",
    "model-load-gpu-limit": "0:0.5",
}
DEPRECATED = {
    "strict-model-config": "true",
    "response-cache-byte-size": "100",
    "trace-file": "f",
    "trace-level": "TIMESTAMPS",
    "trace-rate": "1",
    "trace-count": "1",
    "trace-log-frequency": "1",
}


def test_every_option_has_an_example() -> None:
    assert EXAMPLES.keys() | COMPOUND.keys() | DEPRECATED.keys() | {"config-file"} == OPTIONS.keys()


@pytest.mark.parametrize("name", EXAMPLES)
def test_every_option_reaches_its_field(name: str) -> None:
    text, expected = EXAMPLES[name]
    assert getattr(resolve({name: [text]}, {}).settings, OPTIONS[name].field) == expected
    assert getattr(Settings(), OPTIONS[name].field) != expected


@pytest.mark.parametrize("name", EXAMPLES)
def test_every_option_is_read_from_the_environment_and_from_a_file(
    name: str, tmp_path: Path
) -> None:
    text, expected = EXAMPLES[name]
    field = OPTIONS[name].field
    assert getattr(resolve({}, {f"NAIAD_{field.upper()}": text}).settings, field) == expected
    file = tmp_path / "naiad.toml"
    file.write_text(f'{name} = "{text}"\n')
    assert getattr(resolve({"config-file": [str(file)]}, {}).settings, field) == expected


@pytest.mark.parametrize("name", [*EXAMPLES, *COMPOUND])
def test_only_options_without_effect_warn(name: str) -> None:
    text = EXAMPLES[name][0] if name in EXAMPLES else COMPOUND[name]
    texts = {name: [text]} | ({"model-control-mode": ["explicit"]} if name == "load-model" else {})
    warnings = resolve(texts, {}).warnings
    if name in WITHOUT_EFFECT:
        assert warnings == [f"--{name} is accepted but has no effect{WITHOUT_EFFECT[name]}"]
    else:
        assert warnings == []


def test_options_without_effect_exist() -> None:
    assert WITHOUT_EFFECT.keys() <= OPTIONS.keys()


def test_an_option_at_its_default_does_not_warn() -> None:
    texts = {
        "grpc-use-ssl": ["false"],
        "rate-limit": ["off"],
        "http-thread-count": ["8"],
        "allow-client-shm": ["0"],
    }
    assert resolve(texts, {}).warnings == []


def test_command_line_overrides_environment_overrides_file(tmp_path: Path) -> None:
    file = tmp_path / "naiad.toml"
    file.write_text(
        "http-port = 1\ngrpc_port = 2\nmetrics-port = 3\n"
        'model-store = ["/a", "/b"]\nallow-metrics = false\n'
    )
    environ = {"NAIAD_HTTP_PORT": "11", "NAIAD_GRPC_PORT": "12", "NAIAD_CONFIG_FILE": str(file)}
    settings = resolve({"http-port": ["21"]}, environ).settings
    assert (settings.http_port, settings.grpc_port, settings.metrics_port) == (21, 12, 3)
    assert settings.model_repository == ("/a", "/b")
    assert not settings.allow_metrics


def test_the_last_value_wins_and_repeatable_options_keep_all_values() -> None:
    texts = {
        "http-port": ["1", "2"],
        "model-repository": ["/a", "/b"],
        "backend-config": ["x=1", "python,y=2"],
    }
    settings = resolve(texts, {}).settings
    assert settings.http_port == 2
    assert settings.model_repository == ("/a", "/b")
    assert settings.backend_config == (
        BackendSetting("", "x", "1"),
        BackendSetting("python", "y", "2"),
    )


def test_repeated_options_in_the_environment() -> None:
    assert resolve({}, {"NAIAD_MODEL_REPOSITORY": "/a;/b"}).settings.model_repository == (
        "/a",
        "/b",
    )


def test_settings_of_one_backend_override_settings_of_all() -> None:
    texts = {"backend-config": ["python,x=1", "x=2", "y=3", "other,z=4"]}
    settings = resolve(texts, {}).settings
    assert settings.backend_settings("python") == {"x": "1", "y": "3"}
    assert settings.backend_settings("onnx") == {"x": "2", "y": "3"}


def test_defaults() -> None:
    settings = resolve({}, {}).settings
    assert (settings.http_address, settings.grpc_address, settings.metrics_address) == (
        "127.0.0.1",
    ) * 3
    settings = resolve({}, {}, TRITONSERVER_DEFAULTS).settings
    assert (settings.http_address, settings.grpc_address, settings.metrics_address) == (
        "0.0.0.0",
    ) * 3
    settings = resolve(
        {"http-address": ["::1"], "metrics-address": ["1.2.3.4"]}, {}, TRITONSERVER_DEFAULTS
    ).settings
    assert (settings.http_address, settings.grpc_address, settings.metrics_address) == (
        "::1",
        "0.0.0.0",
        "1.2.3.4",
    )


def test_vertex_ai_variables_set_the_port() -> None:
    assert not resolve({}, {"AIP_HTTP_PORT": "9"}).settings.allow_vertex_ai
    settings = resolve({}, {"AIP_MODE": "PREDICTION", "AIP_HTTP_PORT": "9999"}).settings
    assert settings.allow_vertex_ai
    assert settings.vertex_ai_port == 9999
    assert not resolve(
        {"allow-vertex-ai": ["false"]}, {"AIP_MODE": "PREDICTION"}
    ).settings.allow_vertex_ai


def option_error(texts: dict[str, list[str]], environ: dict[str, str] | None = None) -> str:
    with pytest.raises(OptionError) as failure:
        resolve(texts, environ or {})
    return str(failure.value)


def test_errors_name_the_source(tmp_path: Path) -> None:
    assert (
        option_error({"http-port": ["x"]})
        == 'Bad option: "--http-port".\nInvalid option value. Got x\nExpected a whole number.'
    )
    # Kubernetes sets this variable in containers if there is a service called naiad-http.
    environ = {"NAIAD_HTTP_PORT": "tcp://10.0.0.1:80"}
    assert (
        option_error({}, environ) == 'Bad option: "NAIAD_HTTP_PORT".\nInvalid option value. Got '
        "tcp://10.0.0.1:80\nExpected a whole number."
    )
    file = tmp_path / "naiad.toml"
    file.write_text("http-port = -1")
    assert option_error({"config-file": [str(file)]}).startswith(
        f'Bad option: "http-port in {file}".\n'
    )


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            "http-prot = 1",
            "unrecognized option 'http-prot' in the config file '{}', did you mean '--http-port'?",
        ),
        ("http-port = ", "cannot read the config file '{}': "),
        (
            "http-port = { a = 1 }",
            "'http-port' in the config file '{}' must be a string, a number, a boolean or a list of"
            " these",
        ),
        ("[http]\nport = 1", "unrecognized option 'http' in the config file '{}'"),
        (
            'config-file = "x"',
            "'config-file' in the config file '{}': a config file cannot name another one",
        ),
    ],
)
def test_rejects_an_invalid_config_file(text: str, message: str, tmp_path: Path) -> None:
    file = tmp_path / "naiad.toml"
    file.write_text(text)
    assert option_error({"config-file": [str(file)]}).startswith(message.format(file))


def test_rejects_a_missing_config_file(tmp_path: Path) -> None:
    assert "No such file" in option_error({"config-file": [str(tmp_path / "none")]})


def test_rejects_options_that_contradict_each_other() -> None:
    assert (
        option_error({"load-model": ["m"]})
        == "Error: Use of '--load-model' requires setting '--model-control-mode=explicit' as well."
    )
    assert option_error({"cache-config": ["local,size=1"], "response-cache-byte-size": ["1"]}) == (
        "Error: Incompatible flags --response-cache-byte-size and --cache-config both provided."
        " Please provide one or the other."
    )
    twice = ["health,metadata:a=b", "health:c=d"]
    assert option_error({"http-restricted-api": twice}) == (
        'Bad option: "--http-restricted-api".\n'
        "restricted api 'health' can not be specified in multiple config groups"
    )
    assert option_error({"grpc-restricted-protocol": twice}) == (
        'Bad option: "--grpc-restricted-protocol".\n'
        "restricted protocol 'health' can not be specified in multiple config groups"
    )


def test_rejects_two_endpoints_on_the_same_port() -> None:
    message = (
        "The server cannot listen to {} requests and {} requests"
        " at the same address and port 127.0.0.1:{}"
    )
    assert option_error({"http-port": ["8001"]}) == message.format("HTTP", "GRPC", 8001)
    assert option_error({"metrics-port": ["8000"]}) == message.format("HTTP", "metrics", 8000)
    assert option_error({"metrics-port": ["8001"]}) == message.format("GRPC", "metrics", 8001)
    resolve({"http-port": ["8001"], "allow-grpc": ["false"]}, {})
    resolve({"http-port": ["8001"], "grpc-address": ["127.0.0.2"]}, {})
    resolve({"http-port": ["0"], "grpc-port": ["0"], "metrics-port": ["0"]}, {})


def test_deprecated_flags_set_the_options_that_replace_them() -> None:
    resolved = resolve({name: [text] for name, text in DEPRECATED.items()}, {})
    settings = resolved.settings
    assert settings.disable_auto_complete_config
    assert settings.cache_config == (CacheSetting("local", "size", "100"),)
    assert settings.trace_config == (
        TraceSetting("triton", "file", "f"),
        TraceSetting("", "level", "TIMESTAMPS"),
        TraceSetting("", "rate", "1"),
        TraceSetting("", "count", "1"),
        TraceSetting("triton", "log-frequency", "1"),
    )
    assert resolved.warnings[0] == (
        "Warning: '--strict-model-config' has been deprecated!"
        " Please use '--disable-auto-complete-config' instead."
    )
    assert resolved.warnings[1].endswith(
        "The equivalent --cache-config CLI args would be: '--cache-config=local,size=100'"
    )
    assert resolved.warnings[2] == (
        "Warning: '--trace-file' has been deprecated and will be removed in future releases."
        " Please use '--trace-config triton,file=<filepath> instead."
    )
    assert sum("has been deprecated" in warning for warning in resolved.warnings) == len(DEPRECATED)


def test_new_flags_override_deprecated_ones() -> None:
    resolved = resolve(
        {
            "strict-model-config": ["false"],
            "disable-auto-complete-config": ["true"],
            "trace-file": ["old"],
            "trace-rate": ["1"],
            "trace-level": ["TENSORS"],
            "trace-config": ["triton,file=new", "rate=2", "level=TIMESTAMPS"],
        },
        {},
    )
    assert resolved.settings.disable_auto_complete_config
    assert resolved.settings.trace_config == (
        TraceSetting("triton", "file", "new"),
        TraceSetting("", "rate", "2"),
        TraceSetting("", "level", "TIMESTAMPS"),
        TraceSetting("", "level", "TENSORS"),
    )
    assert [warning for warning in resolved.warnings if "Overriding" in warning] == [
        "Warning: Overriding deprecated '--strict-model-config' from False to True in favor of"
        " '--disable-auto-complete-config'!",
        "Warning: Overriding deprecated '--trace-file' in favor of provided file in"
        " --trace-config!",
        "Warning: Overriding deprecated '--trace-level' in favor of provided level in"
        " --trace-config!",
        "Warning: Overriding deprecated '--trace-rate' in favor of provided rate value in"
        " --trace-config!",
    ]


def test_strict_model_config_false_changes_nothing() -> None:
    assert not resolve({"strict-model-config": ["false"]}, {}).settings.disable_auto_complete_config


def test_creation_errors_are_those_of_triton() -> None:
    def creation_error(**fields: Any) -> str:
        with pytest.raises(NaiadError) as failure:
            check_creation(Settings(**fields))
        return f"{failure.value.code} - {failure.value.message}"

    repository = ("/a",)
    assert creation_error() == "Invalid argument - --model-repository must be specified"
    assert creation_error(model_repository=repository, load_model=("*", "a")) == (
        "Invalid argument - Wildcard model name '*' must be the ONLY startup model if specified at"
        " all."
    )
    caches = (CacheSetting("local", "size", "1"), CacheSetting("redis", "host", "h"))
    assert creation_error(model_repository=repository, cache_config=caches) == (
        "Invalid argument - found multiple cache configurations, but only a single cache is"
        " currently supported"
    )
    assert creation_error(model_repository=repository, audit_log="a") == (
        "Invalid argument - --audit-log requires --api-key-file, --api-key or --jwt-jwks"
    )
    assert creation_error(model_repository=repository, jwt_jwks="a", jwt_issuer="b") == (
        "Invalid argument - --jwt-jwks requires --jwt-audience, which every token must name"
    )
    assert creation_error(model_repository=repository, jwt_issuer="b") == (
        "Invalid argument - --jwt-issuer requires --jwt-jwks FILE|URL, the keys of the issuer"
    )
    check_creation(
        Settings(model_repository=repository, load_model=("*",), cache_config=caches[:1])
    )


def test_latency_metrics() -> None:
    def latency(*entries: str) -> LatencyMetrics:
        return latency_metrics(
            resolve({"metrics-config": list(entries)}, {}).settings.metrics_config
        )

    assert latency() == LatencyMetrics()
    assert latency(
        "counter_latencies=false", "histogram_latencies=true", "summary_latencies=true", "other=1"
    ) == LatencyMetrics(False, True, True)
    assert latency("summary_quantiles=0.5:0.1,1:0").quantiles == ((0.5, 0.1), (1.0, 0.0))


@pytest.mark.parametrize(
    "entry",
    [
        "summary_latencies=maybe",
        "summary_quantiles=0.5",
        "summary_quantiles=2:0.1",
        "summary_quantiles=x:y",
    ],
)
def test_rejects_invalid_latency_metrics(entry: str) -> None:
    assert option_error({"metrics-config": [entry]}).startswith('Bad option: "--metrics-config".\n')
