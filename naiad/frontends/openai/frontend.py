"""OpenAI's routes, on the same port as Triton's, for every language and embedding model: a body ->
calls of the model -> OpenAI's response.

Rule: handlers decode the body, look the model up and start a generation; none of them waits.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, TypeAlias

from naiad.core.tensor import Buffer
from naiad.errors import NaiadError, not_found
from naiad.frontends.core import Core, Generation
from naiad.frontends.http.options import HttpOptions
from naiad.frontends.http.response import respond_openai_error
from naiad.frontends.http.routes import (
    Entry,
    Names,
    RouteBuilder,
    json_route,
    simple,
)
from naiad.frontends.openai.embeddings import EmbeddingRun
from naiad.frontends.openai.generation import EventReader, LanguageEvents, OpenAiGeneration
from naiad.frontends.openai.models import (
    ModelRoutes,
    find_embedding_spec,
    find_generator,
    find_model,
    sampling_defaults,
)
from naiad.frontends.side_thread import INLINE_JSON_BYTES, SideThread, client_error
from naiad.frontends.token_estimate import estimate_call_tokens, estimate_text_tokens, is_language
from naiad.ipc.generation_call import GenerationCall, generation_request
from naiad.keys.api_class import HEALTH, INFERENCE, METADATA, UNCLASSIFIED
from naiad.keys.request_id import new_request_id, read_request_id
from naiad.protocol.compression import IDENTITY, SUPPORTED, decompress
from naiad.protocol.openai import chat as openai_chat
from naiad.protocol.openai import completion as openai_completion
from naiad.protocol.openai import embedding as openai_embedding
from naiad.protocol.openai import response_input as openai_response_input
from naiad.protocol.openai.body import (
    Body,
    ChatBody,
    CompletionBody,
    EmbeddingBody,
    GenerationBody,
    ResponsesBody,
    decode_body,
    param_names,
)
from naiad.protocol.openai.error import OpenAiError, bad_request, from_core, unknown_model
from naiad.protocol.openai.response import ResponseWriter
from naiad.protocol.openai.response_writer import GenerationWriter
from naiad.protocol.openai.text_model import TextEvents, text_request
from naiad.protocol.v2.json_split import check_size
from naiad.transport.http1.connection import Http1Connection
from naiad.transport.http1.exchange import Exchange
from naiad.transport.http1.head import Head
from naiad.transport.http1.response_head import JSON_TYPE
from naiad.transport.http1.route import Route

if TYPE_CHECKING:
    from naiad.repository.model import Model

_NOT_READY = b'{"detail":"Attached inference engine is not ready for inference requests."}'
_MODEL = r"/v1/models/(?P<model>.+)"
LeavesAtHead: TypeAlias = Callable[[Http1Connection, Head], bool]
"""(connection, head) -> True if another process serves the request."""
LeavesWith: TypeAlias = Callable[[Exchange, str], bool]
"""(exchange, model) -> True if another process serves the request, and now has its connection."""


class OpenAiRoutes:
    def __init__(
        self,
        core: Core,
        options: HttpOptions,
        side_thread: SideThread,
        leaves: LeavesAtHead | None = None,
    ) -> None:
        """`leaves` tells which inference requests other processes serve; None means that this one
        serves all."""
        self._core = core
        self._models = ModelRoutes(core, int(time.time()))
        self._inference = InferenceRoutes(core, options, side_thread, leaves)

    def entries(self) -> list[Entry]:
        """The last entries match every other path under /v1, so that those errors have OpenAI's
        shape too."""
        known = self._known_entries()

        def build(head: Head, names: Names) -> Route:
            path = head.path.decode("latin-1")
            allowed = {entry.method for entry in known if re.fullmatch(entry.pattern, path)}
            reason = "Not allowed to" if allowed else "Invalid URL:"
            error = OpenAiError(405 if allowed else 404, f"{reason} {head.method} {path}")
            headers = b"Allow: %b\r\n" % ", ".join(sorted(allowed)).encode() if allowed else b""
            return Route(lambda exchange: respond_openai_error(exchange, error, headers))

        return [
            *known,
            *(
                Entry(method, "/v1(?:/.*)?", UNCLASSIFIED, build)
                for method in ("GET", "POST", "DELETE", "PUT")
            ),
        ]

    def _known_entries(self) -> list[Entry]:
        return [
            *self._inference.entries(),
            Entry("GET", "/health/ready", HEALTH, simple(self._ready)),
            Entry("GET", "/v1/models", METADATA, simple(self._models.list)),
            Entry("GET", _MODEL, METADATA, simple(self._models.show), _no_model),
        ]

    def _ready(self, exchange: Exchange, names: Names) -> None:
        """The probe of Triton's OpenAI frontend."""
        if self._core.is_ready():
            exchange.respond(200, JSON_TYPE)
        else:
            exchange.respond(400, JSON_TYPE, _NOT_READY)


class BodyRoutes:
    """Decodes the JSON body of a request before its handler runs."""

    def __init__(
        self, options: HttpOptions, side_thread: SideThread, leaves: LeavesWith | None = None
    ) -> None:
        """`leaves` tells which requests another process serves; None means that this one serves
        all."""
        self._options = options
        self._side_thread = side_thread
        self._leaves = leaves

    def guarded(self, kind: type[Body], handle: Callable[[Exchange, Body], None]) -> RouteBuilder:
        def run(exchange: Exchange, body: Body) -> None:
            if exchange.is_disconnected:
                return
            if self._leaves is not None and self._leaves(exchange, body.model):
                return
            try:
                handle(exchange, body)
            except (OpenAiError, NaiadError) as error:
                fail(exchange, error)

        def fail(exchange: Exchange, error: Exception) -> None:
            if not isinstance(error, OpenAiError):
                error = from_core(client_error(error, "a request could not be decoded"))
            respond_openai_error(exchange, error)

        def guarded(exchange: Exchange) -> None:
            is_small = len(exchange.body) <= INLINE_JSON_BYTES
            if is_small and b"content-encoding" not in exchange.head.headers:
                try:
                    body = self._read(exchange, kind)
                except OpenAiError as error:
                    fail(exchange, error)
                else:
                    run(exchange, body)
                return
            self._side_thread.run(
                partial(self._read, exchange, kind), partial(run, exchange), partial(fail, exchange)
            )

        def build(head: Head, names: Names) -> Route:
            return json_route(guarded, self._options)

        return build

    def _read(self, exchange: Exchange, kind: type[Body]) -> Body:
        """Raises OpenAiError or NaiadError."""
        data = self._plain_body(exchange)
        if len(data) > INLINE_JSON_BYTES:
            check_size(data, self._options.max_json_size)
        return decode_body(data, kind)

    def _plain_body(self, exchange: Exchange) -> Buffer:
        encoding = (
            exchange.head.headers.get(b"content-encoding", b"identity")
            .decode("latin-1")
            .strip()
            .lower()
        )
        if encoding == IDENTITY:
            return exchange.body
        if encoding not in SUPPORTED:
            raise bad_request(
                f"The Content-Encoding '{encoding}' is not supported, expected gzip or deflate"
            )
        max_bytes, option = min(
            (self._options.max_input_size, "--http-max-input-size"),
            (self._options.max_json_size, "--http-max-json-size"),
        )
        account = exchange.account
        decompressed = partial(decompress, exchange.body, encoding, max_bytes, option=option)
        return decompressed() if account is None else account.produce(decompressed)


class InferenceRoutes:
    """The routes that run models. Frontend processes have them, too."""

    def __init__(
        self,
        core: Generation,
        options: HttpOptions,
        side_thread: SideThread,
        leaves_at_head: LeavesAtHead | None = None,
        leaves: LeavesWith | None = None,
    ) -> None:
        """`leaves_at_head` and `leaves` tell which requests another process serves, by the head and
        by the model; None means that this one serves all."""
        self._core = core
        self._bodies = BodyRoutes(options, side_thread, leaves)
        self._leaves_at_head = leaves_at_head

    def entries(self) -> list[Entry]:
        guarded = self._bodies.guarded
        return [
            Entry("POST", path, INFERENCE, self._build(build))
            for path, build in (
                ("/v1/chat/completions", guarded(ChatBody, self._chat)),
                ("/v1/completions", guarded(CompletionBody, self._completion)),
                ("/v1/responses", guarded(ResponsesBody, self._response)),
                ("/v1/embeddings", guarded(EmbeddingBody, self._embedding)),
            )
        ]

    def _build(self, build: RouteBuilder) -> RouteBuilder:
        leaves = self._leaves_at_head
        if leaves is None:
            return build

        def build_leaving(head: Head, names: Names) -> Route:
            route = build(head, names)
            route.leaves = lambda connection: leaves(connection, head)
            return route

        return build_leaving

    def _chat(self, exchange: Exchange, body: ChatBody) -> None:
        model = find_generator(self._core, body.model, exchange.identity)
        is_stream, has_usage, is_counted = read_stream(body)
        plan = openai_chat.read_plan(body)
        call = openai_chat.decode_call(
            body,
            plan,
            sampling_defaults(model.config),
            is_streamed=is_stream and model.spec.is_decoupled,
        )
        now_s = int(time.time())
        writer: GenerationWriter = (
            openai_chat.StreamedChat(
                body.model, now_s, plan, has_usage=has_usage, is_counted=is_counted
            )
            if is_stream
            else openai_chat.WholeChat(body.model, now_s, plan)
        )
        self._generate(exchange, model, [call], writer, body, is_stream=is_stream)

    def _completion(self, exchange: Exchange, body: CompletionBody) -> None:
        model = find_generator(self._core, body.model, exchange.identity)
        is_stream, has_usage, is_counted = read_stream(body)
        calls = openai_completion.decode_calls(
            body, sampling_defaults(model.config), is_streamed=is_stream and model.spec.is_decoupled
        )
        now_s, n, echoes = (
            int(time.time()),
            calls[0].parameters.n,
            openai_completion.echoes(body, calls),
        )
        writer: GenerationWriter = (
            openai_completion.StreamedCompletion(
                body.model, now_s, n, echoes, has_usage=has_usage, is_counted=is_counted
            )
            if is_stream
            else openai_completion.WholeCompletion(body.model, now_s, n, echoes)
        )
        self._generate(exchange, model, calls, writer, body, is_stream=is_stream)

    def _response(self, exchange: Exchange, body: ResponsesBody) -> None:
        model = find_generator(self._core, body.model, exchange.identity)
        is_stream, plan = bool(body.stream), openai_response_input.read_plan(body)
        defaults = sampling_defaults(model.config) | {"n": 1}
        call = openai_response_input.decode_call(
            body, plan, defaults, is_streamed=is_stream and model.spec.is_decoupled
        )
        writer = ResponseWriter(body, int(time.time()), plan, is_stream=is_stream)
        self._generate(exchange, model, [call], writer, body, is_stream=is_stream)

    def _generate(
        self,
        exchange: Exchange,
        model: Model,
        calls: list[GenerationCall],
        writer: GenerationWriter,
        body: Body,
        *,
        is_stream: bool,
    ) -> None:
        params = param_names(type(body))
        if exchange.admission is not None and exchange.admission.needs_tokens:
            exchange.admission.reserve(estimate_call_tokens(calls))
        request_id = read_request_id(exchange.head.headers.get(b"x-request-id"))
        if not request_id:
            request_id = exchange.request_id = new_request_id()
            if exchange.admission is not None:
                exchange.admission.note_request_id(request_id)
        reader: EventReader = LanguageEvents()
        try:
            if is_language(model):
                requests = [generation_request(model.spec, call, request_id) for call in calls]
            else:
                reader = TextEvents()
                requests = [text_request(model.spec, call, body, request_id) for call in calls]
        except NaiadError as error:
            raise from_core(error, params) from None
        OpenAiGeneration(
            self._core, exchange, writer, params, is_stream=is_stream, events=reader
        ).run(requests)

    def _embedding(self, exchange: Exchange, body: EmbeddingBody) -> None:
        model = find_model(self._core, body.model, exchange.identity)
        embedding = find_embedding_spec(model)
        if embedding is None:
            raise bad_request(
                f"The model '{body.model}' is not an embedding model",
                "model",
                "model_not_supported",
            )
        requests = openai_embedding.decode_requests(body, model.spec, embedding)
        if exchange.admission is not None and exchange.admission.needs_tokens:
            exchange.admission.reserve(estimate_text_tokens(len(exchange.body)))
        EmbeddingRun(
            self._core, exchange, embedding, is_base64=body.encoding_format == "base64"
        ).run(requests)


def _no_model(names: Names) -> NaiadError:
    return not_found(unknown_model(names["model"]).message)


def read_stream(body: GenerationBody) -> tuple[bool, bool, bool]:
    """Whether the client wants a stream, whether with usage, and whether that in every chunk.
    Raises OpenAiError."""
    is_stream, options = bool(body.stream), body.stream_options
    if options is None:
        return is_stream, False, False
    if not is_stream:
        raise bad_request(
            "The 'stream_options' parameter is only allowed when 'stream' is enabled.",
            "stream_options",
        )
    has_usage = bool(options.include_usage)
    return True, has_usage, has_usage and bool(options.continuous_usage_stats)
