"""The models that frontend processes may serve, as the server process knows them.

In:  the repository, whenever it may have changed. Out: a `Models` message, and the copy that serves
     a request.
Rule: a frontend serves a model only while it does so exactly as the server would: while the server
      traces, only for streams that are open.
"""

from __future__ import annotations

from itertools import count
from typing import NamedTuple

from naiad.frontend_process.messages import (
    Models,
    ReceivedBundle,
    ReceivedRequest,
    RemoteModel,
)
from naiad.frontends.openai.models import openai_config
from naiad.inference import InferenceCore
from naiad.repository.model import Model
from naiad.repository.repository import LATEST
from naiad.scheduling.dynamic import DynamicScheduler


class Served(NamedTuple):
    """A copy of a model that serves."""

    model: Model
    key: str
    is_opaque: bool
    """Nothing between a frontend and a worker needs to look at the tensors of a request."""
    bundle_scheduler: DynamicScheduler | None = None
    """The scheduler of the model, if it accepts bundles (naiad.core.bundle)."""
    is_decoupled: bool = False
    config: bytes = b""
    """What OpenAI's routes read of the ModelConfig, encoded."""


class ServedModels:
    def __init__(self, core: InferenceCore) -> None:
        self._core = core
        self._numbers = count(1)
        self._copies: dict[int, Served] = {}
        self._names: dict[int, str] = {}
        """The names of all copies that frontends have been told of."""
        self._by_name: dict[tuple[str, str], int] = {}
        """(name, version) as clients write them -> the copy that serves."""
        self._doubtful: set[int] = set()
        """Copies whose workers have sent outputs that are not tensors."""
        self.message = Models(0, [])

    def refresh(self) -> bool:
        """Reads the repository again. Returns True if `message` has changed."""
        numbers = {id(served.model): number for number, served in self._copies.items()}
        before = self._copies
        copies: dict[int, Served] = {}
        models: list[RemoteModel] = []
        by_name: dict[tuple[str, str], int] = {}
        for key, version, model, is_latest in self._served():
            number = numbers.get(id(model)) or next(self._numbers)
            config = (
                before[number].config
                if number in before
                else openai_config(model).SerializeToString(deterministic=True)
            )
            copies[number] = Served(
                model,
                key,
                is_opaque(model),
                bundle_scheduler(model),
                model.spec.is_decoupled,
                config,
            )
            if number in self._doubtful:
                copies[number] = _transparent(copies[number])
            self._names[number] = key
            models.append(RemoteModel(key, version, is_latest, number, model.spec, config))
            by_name[key, str(version)] = number
            if is_latest:
                by_name[key, LATEST] = number
        self._copies, self._by_name = copies, by_name
        self._doubtful.intersection_update(copies)
        is_traced = self._core.tracing.is_on
        if models == self.message.models and is_traced == self.message.is_traced:
            return False
        self.message = Models(self.message.generation + 1, models, is_traced)
        return True

    def _served(self) -> list[tuple[str, int, Model, bool]]:
        return [
            (entry.key, version, model, model is entry.latest)
            for entry in self._core.repository.entries()
            for version, model in entry.models.items()
            if model.is_serving
        ]

    def look_into(self, model_name: str, model_version: str) -> None:
        """The server looks at the tensors of this model from now on, as it does without frontend
        processes: the next bad ones end their worker."""
        for number, served in self._copies.items():
            spec = served.model.spec
            if (spec.name, str(spec.version)) == (model_name, model_version):
                self._doubtful.add(number)
                self._copies[number] = _transparent(served)

    def is_served(self, name: str, version: str) -> bool:
        return (name, version) in self._by_name

    def current(self, request: ReceivedRequest | ReceivedBundle) -> Served | None:
        """The copy that has validated the request, if it is the one that serves now. Raises
        NaiadError for a version that is not a number."""
        served = self._copies.get(request.copy)
        if served is None:
            return None
        details = request.details
        name, version = (
            (served.key, LATEST) if details is None else (details.model_name, details.model_version)
        )
        model = self._core.repository.find_serving(name, version)
        return served if model is served.model else None

    def name_of(self, request: ReceivedRequest | ReceivedBundle) -> str:
        """The model that the request is for, also if its copy has gone."""
        if request.details is not None:
            return request.details.model_name
        return self._names.get(request.copy, "")


def _transparent(served: Served) -> Served:
    return served._replace(is_opaque=False, bundle_scheduler=None, is_decoupled=False)


def is_opaque(model: Model) -> bool:
    scheduler = model.scheduler
    return isinstance(scheduler, DynamicScheduler) and not scheduler.reads_inputs


def bundle_scheduler(model: Model) -> DynamicScheduler | None:
    scheduler = model.scheduler
    if model.spec.is_decoupled:
        return None
    if isinstance(scheduler, DynamicScheduler) and scheduler.accepts_bundles:
        return scheduler
    return None
