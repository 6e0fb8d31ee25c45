"""Parsers for options that consist of several parts, such as `<backend>,<setting>=<value>` or
`<resource>:<count>:<device>`.

In:  the text after `--flag=`.
Out: one struct per occurrence of the flag. Invalid text raises ValueError with Triton's message.
Rule: values that may be secrets (restricted APIs, cache passwords) never appear in a repr or in an
      error message.
"""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from naiad.settings.value import BadValueError, byte_count, integer, real, trace_level

MAX_CORE = 1 << 16
RESTRICTED_CATEGORIES = (
    "health", "metadata", "inference", "shared-memory", "model-config", "model-repository",
    "statistics", "trace", "logging",
)  # fmt: skip


SCOPES = (*RESTRICTED_CATEGORIES, "keys", "metrics")
"""What a key or a token may be given. naiad.keys.api_class.SCOPES is the same, which a test
checks."""
CLAIM_FIELDS = (
    "subject", "scopes", "models", "rpm", "tpm", "max_parallel", "tokens_per_day", "priority",
    "metadata",
)  # fmt: skip


class BackendSetting(msgspec.Struct, frozen=True):
    backend: str
    """Name of the backend; empty if the setting applies to every backend."""
    setting: str
    value: str


class MetricsSetting(msgspec.Struct, frozen=True):
    setting: str
    value: str


class TraceSetting(msgspec.Struct, frozen=True):
    mode: str
    """Either triton or opentelemetry; empty for a global setting (level, rate, count, mode)."""
    setting: str
    value: str


class CacheSetting(msgspec.Struct, frozen=True):
    cache: str
    setting: str
    value: str

    def __repr__(self) -> str:
        return f"CacheSetting({self.cache!r}, {self.setting!r}, ...)"


class HostPolicy(msgspec.Struct, frozen=True):
    name: str
    setting: str
    value: str


class Restriction(msgspec.Struct, frozen=True):
    """Requests to `categories` must carry header `key` with `value`."""

    categories: tuple[str, ...]
    key: str
    value: str

    def __repr__(self) -> str:
        return f"Restriction({self.categories!r}, {self.key!r}, ...)"


class ClaimSetting(msgspec.Struct, frozen=True):
    """The claim of a token that holds a field."""

    field: str
    claim: str


class ResourceLimit(msgspec.Struct, frozen=True):
    name: str
    count: int
    device: int = -1
    """Device number; -1 if the limit applies to every device."""


class DeviceBytes(msgspec.Struct, frozen=True):
    device: int
    num_bytes: int


class DeviceFraction(msgspec.Struct, frozen=True):
    device: int
    fraction: float


class PortRange(msgspec.Struct, frozen=True):
    low: int
    high: int


def backend_config(text: str) -> BackendSetting:
    has_backend = "," in text
    backend, _, rest = text.partition(",") if has_backend else ("", "", text)
    if has_backend and not backend:
        raise ValueError(
            "No backend specified. --backend-config option format is"
            f" <backend name>,<setting>=<value> or <setting>=<value>. Got {text}"
        )
    usage = "--backend-config option format is '<backend name>,<setting>=<value>'."
    return BackendSetting(backend, *_assignment(rest, usage, text))


def metrics_config(text: str) -> MetricsSetting:
    usage = "--metrics-config option format is <setting>=<value>."
    if "," in text.partition("=")[0]:
        raise ValueError(f"{usage} Got {text}")
    return MetricsSetting(*_assignment(text, usage, text))


def trace_config(text: str) -> TraceSetting:
    mode, comma, rest = text.partition(",")
    if not comma or "=" in mode:
        mode, rest = "", text
    elif mode not in ("triton", "opentelemetry"):
        raise ValueError(_unknown_trace_mode(mode))
    setting, value = _assignment(
        rest, "--trace-config option format is '<trace mode>,<setting>=<value>'.", text
    )
    if not mode and setting == "level":
        value = trace_level(value)
    elif not mode and setting in ("rate", "count"):
        integer(value)
    elif not mode and setting == "mode" and value not in ("triton", "opentelemetry"):
        raise ValueError(_unknown_trace_mode(value))
    return TraceSetting(mode, setting, value)


def cache_config(text: str) -> CacheSetting:
    cache, comma, rest = text.partition(",")
    if not comma or not cache:
        raise ValueError(
            "No cache specified. --cache-config option format is"
            f" <cache name>,<setting>=<value>. Got {_without_value(text)}"
        )
    usage = "--cache-config option format is '<cache name>,<setting>=<value>'."
    return CacheSetting(cache, *_assignment(rest, usage, _without_value(text)))


def host_policy(text: str) -> HostPolicy:
    usage = "--host-policy option format is '<policy name>,<setting>=<value>'."
    name, comma, rest = text.partition(",")
    if not comma or not name:
        raise ValueError(f"{usage} Got {text}")
    setting, value = _assignment(rest, usage, text)
    if setting not in ("numa-node", "cpu-cores"):
        raise ValueError(
            f"Unsupported host policy setting '{setting}' is specified,"
            " supported settings are 'numa-node', 'cpu-cores'"
        )
    if setting == "numa-node":
        if integer(value) < 0:
            raise ValueError(
                f"--host-policy: numa-node must be a node number, 0 or greater. Got {text}"
            )
    else:
        core_list(value)
    return HostPolicy(name, setting, value)


def core_list(text: str) -> list[int]:
    """Parses core ids such as `0-3` or `0,2,4-7` into a sorted list."""
    cores: set[int] = set()
    for part in text.split(","):
        first, dash, last = part.strip().partition("-")
        if (
            not (first.isdecimal() and (last.isdecimal() or not dash))
            or (dash and int(last) < int(first))
            or int(last or first) > MAX_CORE
        ):
            raise ValueError(
                "--host-policy: cpu-cores must be a list of core ids or ranges such as 0-3 or"
                f" 0,2,4-7. Got {text}"
            )
        cores.update(range(int(first), int(last or first) + 1))
    return sorted(cores)


def restriction(flag: str, noun: str) -> Callable[[str], Restriction]:
    """Returns the parser of a restriction flag.

    `noun` is what Triton's message calls a category: "api" for --http-restricted-api, "protocol"
    for --grpc-restricted-protocol.
    """

    def parse_restriction(text: str) -> Restriction:
        usage = f"--{flag} option format is '<config name>:<setting>=<value>'."
        names, colon, rest = text.partition(":")
        if not colon or not names:
            raise ValueError(f"{usage} Got {_without_value(text)}")
        key, value = _assignment(rest, usage, _without_value(text))
        categories = tuple(names.split(","))
        for category in categories:
            if category not in RESTRICTED_CATEGORIES:
                raise ValueError(f"unknown restricted {noun} '{category}' ")
        return Restriction(categories, key, value)

    return parse_restriction


def jwt_claim(text: str) -> ClaimSetting:
    field, separator, claim = text.partition("=")
    if not separator or field not in CLAIM_FIELDS or not claim:
        raise BadValueError(
            f"invalid mapping of a claim: {text}",
            f"FIELD=CLAIM, where FIELD is one of {', '.join(CLAIM_FIELDS)}",
        )
    return ClaimSetting(field, claim)


def rate_limit_resource(text: str) -> ResourceLimit:
    parts = text.split(":")
    if len(parts) not in (2, 3):
        raise ValueError(
            "--rate-limit-resource option format is '<resource_name>:<count>:<device>' or"
            f" '<resource_name>:<count>'. Got {text}"
        )
    return ResourceLimit(parts[0], *(integer(part) for part in parts[1:]))


def device_bytes(text: str) -> DeviceBytes:
    device, num_bytes = _pair(text, ":")
    return DeviceBytes(integer(device), byte_count(num_bytes))


def model_load_gpu_limit(text: str) -> DeviceFraction:
    first, second = _pair(text, ":")
    device, fraction = integer(first), real(second)
    if device < 0:
        raise ValueError(f"expects device ID >= 0, got {device}")
    if not 0 <= fraction <= 1:
        raise ValueError(f"expects limit fraction to be in range [0.0, 1.0], got {fraction:f}")
    return DeviceFraction(device, fraction)


def port_range(text: str) -> PortRange:
    low, high = _pair(text, "-")
    return PortRange(integer(low), integer(high))


def _assignment(text: str, usage: str, shown: str) -> tuple[str, str]:
    """Splits `setting=value`. `shown` is the option's text as the error message may show it."""
    setting, _, value = text.partition("=")
    if not setting or not value:
        raise ValueError(f"{usage} Got {shown}")
    return setting, value


def _pair(text: str, separator: str) -> tuple[str, str]:
    first, has_separator, second = text.partition(separator)
    if not has_separator:
        raise ValueError(
            "Cannot parse pair option due to incorrect number of inputs."
            f"--<pair option> argument requires format <first>{separator}<second>. Found: {text}"
        )
    return first, second


def _unknown_trace_mode(mode: str) -> str:
    return (
        f"invalid value for trace mode option: {mode}."
        ' Available options are "triton" and "opentelemetry"'
    )


def _without_value(text: str) -> str:
    """Returns the option's text with its value, which may be a password, masked."""
    setting, equals, value = text.partition("=")
    return f"{setting}={'***' if value else ''}" if equals else setting
