"""Replaces Triton's deprecated options by the options that superseded them.

In:  the option values that were set.
Out: the same values with new options in place of deprecated ones, and Triton's warnings for the
     log.
Rule: no other part of the server reads a deprecated option.
"""

from __future__ import annotations

from typing import Any

from naiad.settings.compound import CacheSetting, TraceSetting
from naiad.settings.option import OptionError

_TRACE = {
    "trace-file": ("triton", "file", "triton,file=<filepath>"),
    "trace-level": ("", "level", "level=<OFF|TIMESTAMPS|TENSORS>"),
    "trace-rate": ("", "rate", "rate=<rate value>"),
    "trace-count": ("", "count", "count=<count value>"),
    "trace-log-frequency": (
        "triton",
        "log-frequency",
        "triton,log-frequency=<log frequency value>",
    ),
}


def replace_deprecated(values: dict[str, Any]) -> list[str]:
    """Updates `values`, which are keyed by option name, and returns the warnings."""
    warnings: list[str] = []
    overrides: list[str] = []
    if "strict-model-config" in values:
        strict = values.pop("strict-model-config")
        warnings.append(
            "Warning: '--strict-model-config' has been deprecated!"
            " Please use '--disable-auto-complete-config' instead."
        )
        if values.get("disable-auto-complete-config") and not strict:
            warnings.append(
                "Warning: Overriding deprecated '--strict-model-config' from False to True in favor"
                " of '--disable-auto-complete-config'!"
            )
        values.setdefault("disable-auto-complete-config", strict)
    if "response-cache-byte-size" in values:
        warnings.append(_replace_cache_size(values))
    for name, (mode, setting, replacement) in _TRACE.items():
        if name in values:
            old = values.pop(name)
            given = values.get("trace-config", ())
            is_overridden = any((one.mode, one.setting) == (mode, setting) for one in given)
            if is_overridden:
                noun = "rate value" if setting == "rate" else setting
                overrides.append(
                    f"Warning: Overriding deprecated '--{name}' in favor of provided {noun} in"
                    " --trace-config!"
                )
            if not is_overridden or setting == "level":  # levels add up
                old = old if isinstance(old, tuple) else (old,)
                settings = [TraceSetting(mode, setting, str(value)) for value in old]
                values["trace-config"] = (*given, *settings)
            # Triton's text has no second quotation mark.
            warnings.append(
                f"Warning: '--{name}' has been deprecated and will be removed in future releases."
                f" Please use '--trace-config {replacement} instead."
            )
    return warnings + overrides


def _replace_cache_size(values: dict[str, Any]) -> str:
    if "cache-config" in values:
        raise OptionError(
            "Error: Incompatible flags --response-cache-byte-size and --cache-config both provided."
            " Please provide one or the other."
        )
    size = values.pop("response-cache-byte-size")
    values["cache-config"] = (CacheSetting("local", "size", str(size)),)
    return (
        "Warning: '--response-cache-byte-size' has been deprecated! This will default to the"
        " 'local' cache implementation with the provided byte size for its config. Please use"
        " '--cache-config' instead. The equivalent --cache-config CLI args would be:"
        f" '--cache-config=local,size={size}'"
    )
