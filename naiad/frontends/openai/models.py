"""GET /v1/models and /v1/models/M; and which models OpenAI's routes serve: language models, others
that turn a text into a text, and models that turn texts into embeddings."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import msgspec
from msgspec import UNSET, UnsetType

from naiad.core.identity import Identity
from naiad.errors import Code, NaiadError
from naiad.frontends.core import Core, Inference
from naiad.frontends.http.response import respond_json, respond_openai_error
from naiad.frontends.http.routes import Names
from naiad.frontends.token_estimate import is_language
from naiad.pb.model_config_pb2 import ModelConfig
from naiad.protocol.openai.embedding import EmbeddingSpec, embedding_spec
from naiad.protocol.openai.error import OpenAiError, bad_request, unknown_model
from naiad.protocol.openai.text_model import is_text_model
from naiad.repository.config.override_check import BLS_PARAMETER
from naiad.transport.http1.exchange import Exchange

if TYPE_CHECKING:
    from naiad.repository.model import Model

_TASK = "task"
_MAX_MODEL_LEN = "loaded_max_model_len"
_SAMPLING_DEFAULTS = "sampling_defaults"


class ModelCard(msgspec.Struct):
    id: str
    created: int
    object: str = "model"
    owned_by: str = "naiad"
    max_model_len: int | UnsetType = UNSET
    """vLLM's field: how many tokens the prompt and the output may have together."""


class ModelRoutes:
    def __init__(self, core: Core, started_s: int) -> None:
        self._core = core
        self._started_s = started_s

    def list(self, exchange: Exchange, names: Names) -> None:
        identity = exchange.identity
        names_shown = {
            name for name in self._served() if identity is None or identity.may_see(name)
        }
        cards = [self._card(name) for name in sorted(names_shown)]
        respond_json(exchange, msgspec.json.encode({"object": "list", "data": cards}))

    def show(self, exchange: Exchange, names: Names) -> None:
        try:
            model = find_model(self._core, names["model"])
            if not self._is_served(model):
                raise unknown_model(names["model"])
        except OpenAiError as error:
            respond_openai_error(exchange, error)
        else:
            respond_json(exchange, msgspec.json.encode(self._card(names["model"])))

    def _card(self, name: str) -> ModelCard:
        length = ""
        with contextlib.suppress(NaiadError):  # it may go away in the meantime
            inner = language_model(self._core, self._core.model(name))
            length = "" if inner is None else inner.facts.get(_MAX_MODEL_LEN, "")
        return ModelCard(
            name, self._started_s, max_model_len=int(length) if length.isdigit() else UNSET
        )

    def _served(self) -> Iterator[str]:
        for model in self._core.loaded_models():
            if model.is_serving and self._is_served(model):
                yield model.name

    def _is_served(self, model: Model) -> bool:
        return (
            language_model(self._core, model) is not None
            or is_text_model(model.spec)
            or find_embedding_spec(model) is not None
        )


def find_model(core: Inference, name: str, identity: Identity | None = None) -> Model:
    """The model of that name, if the key may see it. Raises OpenAiError."""
    if identity is not None and not identity.may_see(name):
        raise unknown_model(name)
    try:
        return core.model(name)
    except NaiadError as error:
        if error.code is Code.UNAVAILABLE:
            raise OpenAiError(
                503, error.message, param="model", retry_after_s=error.retry_after_s
            ) from None
        raise unknown_model(name) from None


def find_generator(core: Inference, name: str, identity: Identity | None = None) -> Model:
    """The model that generates for the model of that name: a language model, else a model with a
    text input and a text output. Raises OpenAiError."""
    model = find_model(core, name, identity)
    found = language_model(core, model)
    if found is None and not is_text_model(model.spec):
        raise bad_request(
            f"The model '{name}' is not a language model, and has no text input 'text_input' and "
            "text output 'text_output'",
            "model",
            "model_not_supported",
        )
    return found or model


def language_model(core: Inference, model: Model) -> Model | None:
    """The language model that generates for `model`; None when there is not exactly one.

    It is the model itself, or the language model among an ensemble's steps, or the one that a BLS
    model names, as in TensorRT-LLM's repositories. It also makes tokens and text, with the
    tokenizer and chat template of its checkpoint: the models around it are left out.
    """
    if is_language(model):
        return model
    names = {step.model_name for step in model.config.ensemble_scheduling.step}
    if BLS_PARAMETER in model.config.parameters:
        name = model.config.parameters[BLS_PARAMETER].string_value
        names.add("tensorrt_llm" if name.startswith("${") else name)
    found = []
    for name in names:
        with contextlib.suppress(NaiadError):
            inner = core.model(name)
            found += [inner] if is_language(inner) else []
    return found[0] if len(found) == 1 else None


def find_embedding_spec(model: Model) -> EmbeddingSpec | None:
    parameters = model.config.parameters
    task = parameters[_TASK].string_value if _TASK in parameters else ""
    return (
        None if is_language(model) else embedding_spec(model.spec, is_declared=task == "embedding")
    )


def openai_config(model: Model) -> ModelConfig:
    """What the functions of this file read of a model's config. Frontend processes have it."""
    config, found = model.config, ModelConfig()
    if is_language(model):
        found.backend = config.backend
    for name in (BLS_PARAMETER, _TASK, _SAMPLING_DEFAULTS):
        if name in config.parameters:
            found.parameters[name].CopyFrom(config.parameters[name])
    for step in config.ensemble_scheduling.step:
        found.ensemble_scheduling.step.add(model_name=step.model_name)
    return found


def sampling_defaults(config: ModelConfig) -> dict[str, Any]:
    """The sampling defaults in the model's config, which the backend checked when it loaded the
    model."""
    text = (
        config.parameters[_SAMPLING_DEFAULTS].string_value
        if _SAMPLING_DEFAULTS in config.parameters
        else ""
    )
    if not text.strip() or text.startswith("${"):
        return {}
    try:
        found = json.loads(text)
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}
