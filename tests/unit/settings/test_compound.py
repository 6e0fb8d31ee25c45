from collections.abc import Callable

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from naiad.keys import api_class
from naiad.keys.token.claims import ClaimNames
from naiad.settings import compound
from naiad.settings.compound import (
    BackendSetting,
    CacheSetting,
    ClaimSetting,
    DeviceBytes,
    DeviceFraction,
    HostPolicy,
    MetricsSetting,
    PortRange,
    ResourceLimit,
    Restriction,
    TraceSetting,
)

restricted_api = compound.restriction("http-restricted-api", "api")
restricted_protocol = compound.restriction("grpc-restricted-protocol", "protocol")


@pytest.mark.parametrize(
    ("parse", "text", "expected"),
    [
        (
            compound.backend_config,
            "python,shm-default-byte-size=1048576",
            BackendSetting("python", "shm-default-byte-size", "1048576"),
        ),
        (
            compound.backend_config,
            "default-max-batch-size=4",
            BackendSetting("", "default-max-batch-size", "4"),
        ),
        (
            compound.backend_config,
            "tensorrt,plugins=a;b=c,d",
            BackendSetting("tensorrt", "plugins", "a;b=c,d"),
        ),
        (
            compound.metrics_config,
            "summary_quantiles=0.5:0.05,0.9:0.01",
            MetricsSetting("summary_quantiles", "0.5:0.05,0.9:0.01"),
        ),
        (compound.trace_config, "level=timestamps", TraceSetting("", "level", "TIMESTAMPS")),
        (compound.trace_config, "rate=5", TraceSetting("", "rate", "5")),
        (
            compound.trace_config,
            "triton,file=/tmp/a,b=c",
            TraceSetting("triton", "file", "/tmp/a,b=c"),
        ),
        (
            compound.trace_config,
            "opentelemetry,resource=service.name=x",
            TraceSetting("opentelemetry", "resource", "service.name=x"),
        ),
        (compound.trace_config, "mode=opentelemetry", TraceSetting("", "mode", "opentelemetry")),
        (compound.cache_config, "local,size=1048576", CacheSetting("local", "size", "1048576")),
        (compound.host_policy, "gpu_0,cpu-cores=0-3", HostPolicy("gpu_0", "cpu-cores", "0-3")),
        (compound.rate_limit_resource, "R1:10", ResourceLimit("R1", 10)),
        (compound.rate_limit_resource, "R1:10:2", ResourceLimit("R1", 10, 2)),
        (compound.device_bytes, "0:100000000000", DeviceBytes(0, 100_000_000_000)),
        (compound.model_load_gpu_limit, "1:0.75", DeviceFraction(1, 0.75)),
        (compound.port_range, "8000-9000", PortRange(8000, 9000)),
        (compound.jwt_claim, "rpm=https://a.b/?c=d", ClaimSetting("rpm", "https://a.b/?c=d")),
        (
            restricted_api,
            "health,metadata:key=a=b",
            Restriction(("health", "metadata"), "key", "a=b"),
        ),
    ],
)
def test_parses_the_parts(parse: Callable[[str], object], text: str, expected: object) -> None:
    assert parse(text) == expected


BACKEND = "--backend-config option format is '<backend name>,<setting>=<value>'. Got "
NO_BACKEND = (
    "No backend specified. --backend-config option format is"
    " <backend name>,<setting>=<value> or <setting>=<value>. Got "
)
METRICS = "--metrics-config option format is <setting>=<value>. Got "
TRACE = "--trace-config option format is '<trace mode>,<setting>=<value>'. Got "
TRACE_MODE = (
    'invalid value for trace mode option: {}. Available options are "triton" and "opentelemetry"'
)
CACHE = "--cache-config option format is '<cache name>,<setting>=<value>'. Got "
NO_CACHE = (
    "No cache specified. --cache-config option format is <cache name>,<setting>=<value>. Got "
)
POLICY = "--host-policy option format is '<policy name>,<setting>=<value>'. Got "
RESOURCE = (
    "--rate-limit-resource option format is '<resource_name>:<count>:<device>' or"
    " '<resource_name>:<count>'. Got "
)
PAIR = (
    "Cannot parse pair option due to incorrect number of inputs."
    "--<pair option> argument requires format "
)
API = "--http-restricted-api option format is '<config name>:<setting>=<value>'. Got "


# Each message is Triton 2.51's, except that values which may be secrets are masked.
@pytest.mark.parametrize(
    ("parse", "text", "message"),
    [
        (compound.backend_config, "foo", BACKEND + "foo"),
        (compound.backend_config, ",foo=bar", NO_BACKEND + ",foo=bar"),
        (compound.backend_config, "python,foo", BACKEND + "python,foo"),
        (compound.backend_config, "python,=foo", BACKEND + "python,=foo"),
        (compound.backend_config, "python,a=", BACKEND + "python,a="),
        (compound.metrics_config, "foo", METRICS + "foo"),
        (compound.metrics_config, "=foo", METRICS + "=foo"),
        (compound.metrics_config, "a,b=c", METRICS + "a,b=c"),
        (compound.trace_config, "foo", TRACE + "foo"),
        (compound.trace_config, "level=FOO", "invalid value for trace level option: foo"),
        (compound.trace_config, "rate=x", "Invalid option value. Got x"),
        (compound.trace_config, "mode=x", TRACE_MODE.format("x")),
        (compound.trace_config, "bogus,foo=bar", TRACE_MODE.format("bogus")),
        (compound.cache_config, "local", NO_CACHE + "local"),
        (compound.cache_config, "local,size=", CACHE + "local,size="),
        (compound.cache_config, ",password=hush", NO_CACHE + ",password=***"),
        (compound.host_policy, "gpu_0", POLICY + "gpu_0"),
        (compound.host_policy, "gpu_0,numa-node", POLICY + "gpu_0,numa-node"),
        (compound.host_policy, ",numa-node=1", POLICY + ",numa-node=1"),
        (
            compound.host_policy,
            "gpu_0,foo=x",
            "Unsupported host policy setting 'foo' is specified,"
            " supported settings are 'numa-node', 'cpu-cores'",
        ),
        (compound.rate_limit_resource, "R", RESOURCE + "R"),
        (compound.rate_limit_resource, "R:1:2:3", RESOURCE + "R:1:2:3"),
        (compound.rate_limit_resource, "R:x", "Invalid option value. Got x"),
        (compound.rate_limit_resource, "R:", "Invalid option value. Got "),
        (compound.device_bytes, "5", PAIR + "<first>:<second>. Found: 5"),
        (compound.device_bytes, "0:x", "Invalid option value. Got x"),
        (compound.model_load_gpu_limit, "0", PAIR + "<first>:<second>. Found: 0"),
        (compound.model_load_gpu_limit, "-1:0.6", "expects device ID >= 0, got -1"),
        (
            compound.model_load_gpu_limit,
            "0:1.5",
            "expects limit fraction to be in range [0.0, 1.0], got 1.500000",
        ),
        (compound.port_range, "5", PAIR + "<first>-<second>. Found: 5"),
        (compound.port_range, "a-b", "Invalid option value. Got a"),
        (restricted_api, "foo", API + "foo"),
        (restricted_api, "foo:a=b", "unknown restricted api 'foo' "),
        (restricted_api, "health:a", API + "health:a"),
        (restricted_api, "health:a=", API + "health:a="),
        (restricted_api, "health:=secret", API + "health:=***"),
        (restricted_api, ":a=secret", API + ":a=***"),
        (restricted_protocol, "foo:a=b", "unknown restricted protocol 'foo' "),
        (compound.jwt_claim, "rpm", "invalid mapping of a claim: rpm"),
        (compound.jwt_claim, "rpm=", "invalid mapping of a claim: rpm="),
        (compound.jwt_claim, "speed=a", "invalid mapping of a claim: speed=a"),
    ],
)
def test_error_messages(parse: Callable[[str], object], text: str, message: str) -> None:
    with pytest.raises(ValueError) as failure:  # noqa: PT011
        parse(text)
    assert str(failure.value) == message


@pytest.mark.parametrize(
    "entry", [restricted_api("health:key=hush"), compound.cache_config("redis,password=hush")]
)
def test_repr_does_not_contain_secrets(entry: msgspec.Struct) -> None:
    assert "hush" not in repr(entry)
    assert "hush" not in f"{entry}"


@settings(deadline=None)
@given(
    st.sampled_from(
        [
            getattr(compound, name)
            for name in (
                "backend_config",
                "metrics_config",
                "trace_config",
                "cache_config",
                "host_policy",
                "rate_limit_resource",
                "device_bytes",
                "model_load_gpu_limit",
                "port_range",
                "jwt_claim",
            )
        ]
        + [restricted_api]
    ),
    st.text(),
)
def test_any_text_parses_or_raises_value_error(parse: Callable[[str], object], text: str) -> None:
    try:
        parse(text)
    except ValueError:
        pass


def test_scopes_are_those_of_the_guard() -> None:
    """naiad.settings is below naiad.keys, so it has a list of its own."""
    assert set(compound.SCOPES) == set(api_class.SCOPES)
    assert set(compound.CLAIM_FIELDS) == set(ClaimNames.__struct_fields__)
