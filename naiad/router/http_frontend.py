"""The router's HTTP routes: what it passes on, what it knows itself, and what it refuses.

In:  heads and exchanges of the HTTP/1.1 transport. Out: a relay per request that is passed on.
Rule: a request that concerns one model goes to one replica that serves it. The router responds
      itself where the replicas together have the response: health, the index, the list of models.
      What changes a server (load, shared memory, logging, tracing) is refused: it concerns each
      replica by itself.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from functools import partial

import msgspec

from naiad import __version__
from naiad.core.identity import Identity
from naiad.core.memory_budget import MemoryBudget
from naiad.core.tensor import Buffer
from naiad.errors import NaiadError, unsupported
from naiad.frontends.http.response import (
    respond_empty,
    respond_error,
    respond_health,
    respond_json,
    respond_openai_error,
)
from naiad.frontends.http.routes import Entry, Names, RouteTable, simple
from naiad.frontends.token_estimate import estimate_text_tokens
from naiad.keys.api_class import (
    HEALTH,
    INFERENCE,
    LOGGING,
    METADATA,
    MODEL_CONFIG,
    MODEL_READINESS,
    MODEL_REPOSITORY,
    PAGE,
    SHARED_MEMORY,
    STATISTICS,
    TRACE,
)
from naiad.keys.guard import Guard, unknown_model
from naiad.protocol.openai.error import OpenAiError, from_core
from naiad.protocol.openai.error import unknown_model as unknown_openai_model
from naiad.protocol.v2 import lost_request
from naiad.router.core import ModelRouting, RouterCore
from naiad.router.forward_head import ForwardHead
from naiad.router.http_relay import HttpRelay
from naiad.router.lost_sequence import lose, tell_by_http
from naiad.router.request_fields import json_sequence, openai_model, owner_of
from naiad.router.sequences import SequenceStep
from naiad.router.token_usage import UsageReader, estimate_openai_tokens
from naiad.transport.http1.connection import Http1Connection
from naiad.transport.http1.endpoint import Http1Endpoint
from naiad.transport.http1.exchange import Exchange
from naiad.transport.http1.head import Head
from naiad.transport.http1.limits import Http1Limits
from naiad.transport.http1.route import Route

_MODEL = r"/v2/models/(?P<model>[^/]+)(?:/versions/(?P<version>[0-9]+))?"
_OPENAI_POSTS = (
    r"/v1/(?:[^?]*)|/v2/(?:embed|rerank)|/(?:rerank|score|classify|pooling|tokenize|detokenize)"
)
_WELCOME = b"naiad router %b\n" % __version__.encode()


class RouterKeys(msgspec.Struct, frozen=True):
    guard: Guard | None = None
    """None where the router does not check keys."""
    replica_key: str = ""
    """What replicas get in place of the clients' keys; empty passes the clients' keys on."""

    @property
    def header_names(self) -> tuple[str, ...]:
        names = ("authorization", "x-api-key")
        return names if self.guard is None else self.guard.header_names


class HttpRouter:
    def __init__(
        self,
        core: RouterCore,
        keys: RouterKeys,
        limits: Http1Limits,
        budget: MemoryBudget,
        more: Sequence[Entry] = (),
    ) -> None:
        """`more` are the routes of the admin API and of the console."""
        self._core = core
        self._keys = keys
        self._started_s = int(time.time())
        table = RouteTable([*more, *self._entries()], None, keys.guard)
        self.endpoint = Http1Endpoint(table, limits, budget=budget)

    def protocol_factory(self) -> Http1Connection:
        return self.endpoint.protocol_factory()

    def _entries(self) -> list[Entry]:
        refuse = _refuse
        memory = r"/v2/(?:system|cuda)sharedmemory(?:/.*)?"
        return [
            Entry("POST", _MODEL + "/infer", INFERENCE, self._infer),
            Entry("POST", _MODEL + "/(?:generate|generate_stream)", INFERENCE, self._generate),
            Entry("GET", "/", PAGE, simple(_welcome)),
            Entry("GET", "/v2/health/live", HEALTH, simple(_live)),
            Entry("GET", "/v2/health/ready", HEALTH, simple(self._ready)),
            Entry("GET", "/health/ready", HEALTH, simple(self._ready)),
            Entry("GET", "/health", HEALTH, simple(self._health)),
            Entry("GET", "/ping", HEALTH, simple(self._health)),
            Entry("POST", "/ping", HEALTH, simple(self._health)),
            Entry("GET", _MODEL + "/ready", MODEL_READINESS, simple(self._model_ready)),
            Entry("GET", "/v2", METADATA, self._anywhere),
            Entry("GET", "/version", METADATA, self._anywhere),
            Entry("GET", _MODEL, METADATA, self._by_path),
            Entry("GET", _MODEL + "/config", MODEL_CONFIG, self._by_path),
            Entry("GET", _MODEL + "/stats", STATISTICS, self._by_path),
            Entry("POST", "/v2/repository/index", MODEL_REPOSITORY, simple(self._index)),
            Entry("POST", "/v2/repository/.*", MODEL_REPOSITORY, refuse("model control")),
            Entry("GET", memory, SHARED_MEMORY, refuse("shared memory")),
            Entry("POST", memory, SHARED_MEMORY, refuse("shared memory")),
            Entry("GET", "/v2/logging", LOGGING, refuse("logging")),
            Entry("POST", "/v2/logging", LOGGING, refuse("logging")),
            Entry("GET", "/v2(?:/models/[^/]+)?/trace/setting", TRACE, refuse("tracing")),
            Entry("POST", "/v2(?:/models/[^/]+)?/trace/setting", TRACE, refuse("tracing")),
            Entry("GET", "/v1/models", METADATA, simple(self._models)),
            Entry("GET", r"/v1/models/(?P<model>.+)", METADATA, simple(self._show_model)),
            Entry("POST", _OPENAI_POSTS, INFERENCE, self._by_body),
        ]

    # Requests that are passed on.

    def _forward(self, head: Head, *, is_openai: bool = False) -> ForwardHead:
        return ForwardHead(
            head,
            is_openai=is_openai,
            key_headers=self._keys.header_names,
            replica_key=self._keys.replica_key,
        )

    def _infer(self, head: Head, names: Names) -> Route:
        forward = self._forward(head)
        model, version = names["model"], names["version"]
        core = self._core
        length = head.headers.get(b"inference-header-content-length", b"")
        json_bytes = int(length) if length.isdigit() and len(length) < 19 else 0

        encoding = head.headers.get(b"content-encoding", b"")

        def handle(exchange: Exchange) -> None:
            if not self._may_use_tokens(exchange, model):
                on_lost(exchange.body, exchange.identity)
                return
            owner = owner_of(exchange.identity, exchange.header)
            sequence = json_sequence(exchange.body, json_bytes, owner)
            HttpRelay(
                core, core.routing(model), model, version, sequence, exchange, forward
            ).begin()

        def on_lost(body: Buffer, identity: Identity | None) -> bool:
            if encoding:
                body = lost_request.uncompressed(body)
            found = lost_request.in_json(body[:json_bytes] if json_bytes else body, model, version)
            owner = owner_of(identity, lambda name: _read_header(head, name))
            for request in found:
                id = request.sequence_id
                step = SequenceStep(str(id), owner=owner, raw_id=id)
                lose(core, model, step, partial(tell_by_http, forward, encoding, step))
            return bool(found)

        return Route(handle, on_lost=on_lost)

    def _by_path(self, head: Head, names: Names) -> Route:
        forward = self._forward(head)
        model, version = names["model"], names["version"]
        core = self._core

        def handle(exchange: Exchange) -> None:
            HttpRelay(core, core.routing(model), model, version, None, exchange, forward).begin()

        return Route(handle)

    def _generate(self, head: Head, names: Names) -> Route:
        route = self._by_path(head, names)
        model, forward = names["model"], route.handle

        def handle(exchange: Exchange) -> None:
            if self._may_use_tokens(exchange, model):
                forward(exchange)

        return Route(handle)

    def _may_use_tokens(self, exchange: Exchange, model: str) -> bool:
        """Reserves the tokens of a request of Triton's protocol, and responds if the key has too
        few left."""
        try:
            self._core.reserve_tokens(exchange.admission, model, len(exchange.body))
        except NaiadError as error:
            respond_error(exchange, error)
            return False
        return True

    def _anywhere(self, head: Head, names: Names) -> Route:
        return self._by_path(head, {"model": "", "version": ""})

    def _by_body(self, head: Head, names: Names) -> Route:
        forward = self._forward(head, is_openai=True)
        core = self._core

        def handle(exchange: Exchange) -> None:
            try:
                model = self._named_model(exchange)
                usage = _reserve_openai(exchange)
            except OpenAiError as error:
                respond_openai_error(exchange, error)
            except NaiadError as error:
                respond_openai_error(exchange, from_core(error))
            else:
                routing: ModelRouting = core.routing(model)
                HttpRelay(core, routing, model, "", None, exchange, forward, usage).begin()

        return Route(handle)

    def _named_model(self, exchange: Exchange) -> str:
        """Raises NaiadError or OpenAiError."""
        model = openai_model(exchange.body)
        if not model:
            served = self._core.fleet.model_names()
            if len(served) != 1:
                raise OpenAiError(
                    400, "the request names no model: expected the field 'model'", param="model"
                )
            model = served[0]
        admission = exchange.admission
        if admission is not None:
            if not admission.identity.may_see(model):
                raise unknown_openai_model(model)
            admission.note_model(model)
        return model

    # What the router knows itself.

    def _ready(self, exchange: Exchange, names: Names) -> None:
        if exchange.header("x-naiad-router") == self._core.fleet.own_id:
            respond_empty(exchange, 508)
        else:
            respond_health(exchange, "ready", is_true=self._core.is_ready)

    def _health(self, exchange: Exchange, names: Names) -> None:
        respond_empty(exchange, 200 if self._core.is_ready else 503)

    def _model_ready(self, exchange: Exchange, names: Names) -> None:
        fleet = self._core.fleet
        if fleet.candidates(names["model"], names["version"]):
            respond_empty(exchange)
        elif fleet.knows(names["model"]):
            exchange.respond_error(400, "Model version not ready")
        else:
            respond_error(exchange, unknown_model(names["model"]))

    def _index(self, exchange: Exchange, names: Names) -> None:
        is_ready_only = b'"ready"' in bytes(exchange.body) and _wants_ready(bytes(exchange.body))
        rows = index_rows(self._core, exchange.identity, is_ready_only=is_ready_only)
        respond_json(exchange, msgspec.json.encode(rows))

    def _models(self, exchange: Exchange, names: Names) -> None:
        cards = [self._card(name) for name in self._openai_models(exchange.identity)]
        respond_json(exchange, msgspec.json.encode({"object": "list", "data": cards}))

    def _show_model(self, exchange: Exchange, names: Names) -> None:
        if names["model"] in self._openai_models(exchange.identity):
            respond_json(exchange, msgspec.json.encode(self._card(names["model"])))
        else:
            respond_openai_error(exchange, unknown_openai_model(names["model"]))

    def _openai_models(self, identity: Identity | None) -> list[str]:
        names = {name for replica in self._core.fleet for name in replica.openai_models}
        return sorted(
            name
            for name in names
            if (identity is None or identity.may_see(name)) and self._core.fleet.candidates(name)
        )

    def _card(self, name: str) -> dict[str, str | int]:
        return {"id": name, "object": "model", "created": self._started_s, "owned_by": "naiad"}


class IndexRow(msgspec.Struct, omit_defaults=True):
    name: str
    version: str = ""
    state: str = ""
    reason: str = ""


def index_rows(
    core: RouterCore, identity: Identity | None, *, is_ready_only: bool
) -> list[IndexRow]:
    """One row per model and version. A model is READY if one replica serves it."""
    rows: dict[tuple[str, str], IndexRow] = {}
    for replica in core.fleet:
        for name, versions in replica.models.items():
            for version in sorted(versions) or ["1"]:
                rows[name, version] = IndexRow(name, version, "READY")
    ready_names = {name for name, _ in rows}
    if not is_ready_only:
        for replica in core.fleet:
            for name, reason in replica.unserved_models.items():
                if name not in ready_names:
                    rows[name, ""] = IndexRow(name, "", "UNAVAILABLE", reason)
    return [
        row for _, row in sorted(rows.items()) if identity is None or identity.may_see(row.name)
    ]


def _read_header(head: Head, name: str) -> str:
    return head.headers.get(name.encode(), b"").decode("latin-1")


def _reserve_openai(exchange: Exchange) -> UsageReader | None:
    """Returns None for a key without limits of tokens. Raises NaiadError."""
    admission = exchange.admission
    if admission is None or not admission.needs_tokens:
        return None
    body = bytes(exchange.body)
    admission.reserve(estimate_openai_tokens(exchange.head.path.decode("latin-1"), body))
    return UsageReader(admission, estimate_text_tokens(len(body)))


def _wants_ready(body: bytes) -> bool:
    try:
        return bool(msgspec.json.decode(body).get("ready"))
    except (msgspec.DecodeError, AttributeError):
        return False


def _live(exchange: Exchange, names: Names) -> None:
    respond_health(exchange, "live", is_true=True)


def _welcome(exchange: Exchange, names: Names) -> None:
    exchange.respond(200, b"Content-Type: text/plain\r\n", _WELCOME)


def _refuse(what: str) -> Callable[[Head, Names], Route]:
    error = not_forwarded(what)
    return lambda head, names: Route(lambda exchange: respond_error(exchange, error))


def not_forwarded(what: str) -> NaiadError:
    return unsupported(
        f"the router does not pass on requests for {what}, which concern one server: send them to "
        "a replica"
    )
