"""Reads `parameters` of a config.pbtxt: the checkpoint to open, the engine and its settings.

Rule: a value that still reads `${...}` was left unset by the template tool. An unknown parameter is
      rejected with its name.
"""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from typing import Any

import msgspec

from naiad.backends.llm.sampling import read_json_object, read_sampling
from naiad.backends.served_config import ServedConfig
from naiad.errors import invalid_arg
from naiad.llm.engine_settings import EngineSettings

ENGINES = ("auto", "native", "openvino")
SETTING_NAMES = frozenset(field.name for field in msgspec.structs.fields(EngineSettings))
KV_EVENT_NAMES = ("kv_events_endpoint", "kv_events_replay_endpoint")
"""The settings that `--backend-config` can set, too."""
OWN_NAMES = frozenset(
    {"checkpoint", "engine", "chat_template", "sampling_defaults", "num_threads", "adapter"}
)


class LlmOptions(msgspec.Struct, frozen=True, kw_only=True):
    checkpoint: str = ""
    """Empty for the version directory."""
    engine: str = "auto"
    chat_template: str = ""
    settings: EngineSettings = EngineSettings()
    sampling_defaults: dict[str, Any] = {}
    num_threads: int = 0
    """0 divides the cores among the model's instances."""


def set_parameters(config: ServedConfig) -> dict[str, str]:
    """Returns the parameters that have a value."""
    values = {name: parameter.string_value.strip() for name, parameter in config.parameters.items()}
    return {name: value for name, value in values.items() if value and not value.startswith("${")}


def read_options(config: ServedConfig) -> LlmOptions:
    """Raises NaiadError."""
    parameters = set_parameters(config)
    for name in parameters:
        is_known = name in OWN_NAMES or name in SETTING_NAMES
        if not is_known and not config.is_for_server(name):
            raise unknown_name(config.name, name)
    engine = parameters.get("engine", "auto")
    if engine not in ENGINES:
        raise invalid_arg(
            f"parameter 'engine' of model '{config.name}' is '{engine}', "
            f"expected one of {', '.join(ENGINES)}"
        )
    defaults = read_json_object("sampling_defaults", parameters.get("sampling_defaults", "{}"))
    read_sampling(defaults)
    return LlmOptions(
        checkpoint=parameters.get("checkpoint", ""),
        engine=engine,
        chat_template=parameters.get("chat_template", ""),
        settings=read_settings(
            config.name,
            {name: value for name, value in parameters.items() if name in SETTING_NAMES},
        ),
        sampling_defaults=defaults,
        num_threads=config.integer("num_threads", 0),
    )


def read_settings(model_name: str, values: Mapping[str, Any]) -> EngineSettings:
    """Accepts numbers and booleans as text. Raises NaiadError with the parameter's name."""
    try:
        settings = msgspec.convert(
            {name: _plain(value) for name, value in values.items()}, EngineSettings, strict=False
        )
    except msgspec.ValidationError as error:
        reason, _, path = str(error).partition(" - at `$.")
        name = path.rstrip("`")
        raise invalid_arg(
            f"parameter '{name}' of model '{model_name}' is '{values.get(name)}': "
            f"{reason[:1].lower()}{reason[1:]}"
        ) from None
    settings.check()
    return settings


def with_kv_events(
    model_name: str, options: LlmOptions, backend_config: Mapping[str, str]
) -> LlmOptions:
    """Adds the endpoints of KV events that `--backend-config` sets. Raises NaiadError if the model
    has endpoints of its own: whoever set the others would wait there for events."""
    endpoints = {name: backend_config[name] for name in KV_EVENT_NAMES if name in backend_config}
    for name, endpoint in endpoints.items():
        own = getattr(options.settings, name)
        if own and own != endpoint:
            raise invalid_arg(
                f"model '{model_name}' sets {name} to '{own}', but the server was started with "
                f"--backend-config {name}={endpoint}: remove the model's parameter. A cluster "
                "chooses the endpoints itself if a deployment has a tokenizer"
            )
    if not endpoints:
        return options
    settings = msgspec.structs.replace(options.settings, **endpoints)
    settings.check()
    return msgspec.structs.replace(options, settings=settings)


def _plain(value: Any) -> Any:
    if isinstance(value, str) and value.lower() in ("true", "false", "yes", "no", "on", "off"):
        return value.lower() in ("true", "yes", "on")
    return value


def unknown_name(model_name: str, name: str) -> Exception:
    close = difflib.get_close_matches(name, [*OWN_NAMES, *SETTING_NAMES], n=1, cutoff=0.7)
    hint = f"; did you mean '{close[0]}'?" if close else ""
    return invalid_arg(
        f"model '{model_name}' has a parameter '{name}', which the llm backend does not know{hint}"
    )
