"""The deploy API: uploads, what a model tells, the preview of a config, and deployments.

In:  JSON, and pieces of files as application/octet-stream. Out: JSON.
Rule: everything needs the scope `model-repository`, for the model that the path names. Work that
      may block runs in threads.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any, TypeVar
from urllib.parse import parse_qs

import msgspec

from naiad.console.deployment import Deployment, Deployments
from naiad.console.log_tail import LogTail
from naiad.core.datatype import DATATYPES
from naiad.core.installed_backends import installed_backends
from naiad.errors import Code, NaiadError, invalid_arg, not_found
from naiad.files.cluster_folder import is_in_cluster
from naiad.frontends.http.response import respond_when_done
from naiad.frontends.http.routes import Entry, Names, simple
from naiad.ipc.completion_request import Example
from naiad.keys.api_class import MODEL_REPOSITORY
from naiad.keys.local_gate import LocalGuard
from naiad.keys.secret import PAGE_HEADER
from naiad.repository.check.packages import is_installed
from naiad.repository.deploy.catalogue import CatalogueItem, catalogue
from naiad.repository.deploy.deployer import Deployer
from naiad.repository.deploy.draft import MAX_PIECE_BYTES
from naiad.repository.deploy.preview import Place, ProcessOffer
from naiad.repository.deploy.spec import NAME_RULE, Source, Spec, decode_spec
from naiad.repository.repository import Repository
from naiad.transport.http1.exchange import Exchange
from naiad.transport.http1.response_head import JSON_TYPE

MAX_BODY_BYTES = 4 << 20
MAX_THREADS = 8
_PRIVATE = JSON_TYPE + b"Cache-Control: no-store\r\n"
_OFF = (
    "deploying through the console is switched off; start the server with "
    "'--allow-file-override=true' to allow it"
)
BACKENDS = (
    ("onnxruntime", "ONNX", "onnxruntime"),
    ("pytorch", "PyTorch", "torch"),
    ("openvino", "OpenVINO", "openvino"),
    ("python", "Python", ""),
    ("llm", "Language model", ""),
)
"""(backend, title, package that it needs)."""
T = TypeVar("T")


class BackendInfo(msgspec.Struct, frozen=True):
    name: str
    title: str
    is_installed: bool


class DeployInfo(msgspec.Struct, frozen=True, kw_only=True):
    """What a form must know before it begins."""

    is_allowed: bool
    reason: str
    """Why nothing can be deployed."""
    places: list[Place]
    catalogue: list[CatalogueItem]
    backends: list[BackendInfo]
    data_types: list[str]
    gpus: list[int]
    processes: ProcessOffer
    max_upload_bytes: int
    piece_bytes: int
    allow_pickle: bool
    name_rule: str
    is_in_cluster: bool
    """This machine is part of a cluster of `naiad cluster`."""


class _NewDraft(msgspec.Struct, forbid_unknown_fields=True):
    repository: str = ""


class _Inspection(msgspec.Struct, forbid_unknown_fields=True):
    source: Source
    examples: list[Example] = []


class DeployRoutes:
    def __init__(
        self,
        repository: Repository,
        deployer: Deployer | None,
        log_tail: LogTail,
        start: Callable[[Coroutine[Any, Any, None]], None],
        local: LocalGuard | None = None,
    ) -> None:
        """`deployer` is None where deploying is switched off. `start` runs a task. `local` tells a
        form who may deploy."""
        self._local = local
        self._repository = repository
        self._deployer = deployer
        self._start = start
        self._deployments = Deployments(start, partial(self._build, log_tail))
        # Reading a large model takes long. The server's own threads must stay free for loads.
        self._threads = ThreadPoolExecutor(MAX_THREADS, "deploy")

    def entries(self) -> list[Entry]:
        api, scope = "/console/api", MODEL_REPOSITORY
        draft = f"{api}/drafts/(?P<draft>[^/]+)"
        model = f"{api}/models/(?P<model>[^/]+)"
        body = MAX_BODY_BYTES
        return [
            Entry("GET", f"{api}/deploy", scope, simple(self._info)),
            Entry("POST", f"{api}/inspect", scope, simple(self._inspect, body)),
            Entry("POST", f"{api}/drafts", scope, simple(self._create_draft, body)),
            Entry("GET", draft, scope, simple(self._show_draft), reads_files=True),
            Entry("DELETE", draft, scope, simple(self._remove_draft, body)),
            Entry("PUT", f"{draft}/file", scope, simple(self._write_file, MAX_PIECE_BYTES)),
            Entry("DELETE", f"{draft}/file", scope, simple(self._remove_file, body)),
            Entry("GET", f"{model}/form", scope, simple(self._form), reads_files=True),
            Entry("POST", f"{model}/preview", scope, simple(self._preview, body)),
            Entry("POST", f"{model}/deploy", scope, simple(self._deploy, body)),
            Entry("GET", f"{model}/deploy", scope, simple(self._show_deployment)),
            Entry("POST", f"{model}/load", scope, simple(self._load, body)),
            Entry("POST", f"{model}/unload", scope, simple(self._unload, body)),
        ]

    async def edit_config(self, name: str, text: str, base: str) -> None:
        """Replaces config.pbtxt of a model, whose text has the hash `base`, and loads the model.
        Raises NaiadError if that fails; then the old file is back, and the model serves as
        before."""
        self._require_deployer()
        spec = Spec(source=Source("repository", name), text=text, base=base)
        deployment = self._deployments.begin(name, spec, "")
        await deployment.ended.wait()
        status = deployment.status()
        if status.state != "done":
            raise invalid_arg(status.error)

    def stop(self) -> None:
        if self._deployer is not None:
            self._deployer.stop()
        self._threads.shutdown(wait=False, cancel_futures=True)

    def _build(self, log_tail: LogTail, name: str, spec: Any, address: str) -> Deployment:
        return Deployment(name, spec, self._require_deployer(), self._repository, log_tail, address)

    def _require_deployer(self) -> Deployer:
        """Raises NaiadError."""
        if self._deployer is None:
            raise NaiadError(Code.PERMISSION_DENIED, _OFF)
        return self._deployer

    # What there is.

    def _info(self, exchange: Exchange, _names: Names) -> None:
        def read() -> DeployInfo:
            deployer = self._deployer
            places = [] if deployer is None else deployer.places()
            refusal = self._local and self._local.gate(exchange.head.headers).enter(exchange.peer)
            reason = refusal.message if refusal else ""
            if deployer is None:
                reason = _OFF
            elif not any(place.is_writable for place in places):
                reason = "the server has no local model repository that it may write to"
            backends = [
                BackendInfo(name, title, not package or is_installed(package))
                for name, title, package in BACKENDS
            ]
            backends += [BackendInfo(name, name, True) for name in sorted(installed_backends())]
            return DeployInfo(
                is_allowed=not reason,
                reason=reason,
                places=places,
                catalogue=catalogue(),
                backends=backends,
                data_types=list(DATATYPES),
                gpus=[] if deployer is None else list(deployer.gpus),
                processes=ProcessOffer() if deployer is None else deployer.offer(),
                max_upload_bytes=0 if deployer is None else deployer.limits.max_bytes,
                piece_bytes=MAX_PIECE_BYTES,
                allow_pickle=deployer is not None and deployer.limits.allow_pickle,
                name_rule=NAME_RULE,
                is_in_cluster=is_in_cluster(),
            )

        self._thread(exchange, read)

    def _inspect(self, exchange: Exchange, _names: Names) -> None:
        def work() -> Any:
            body = _decode(exchange, _Inspection)
            if body.source.kind == "repository":
                raise invalid_arg("source: GET /console/api/models/NAME/form shows a model")
            return self._require_deployer().inspect(body.source, body.examples)

        self._thread(exchange, work)

    def _form(self, exchange: Exchange, names: Names) -> None:
        self._thread(exchange, lambda: self._require_deployer().read_existing(names["model"]))

    # Uploads.

    def _create_draft(self, exchange: Exchange, _names: Names) -> None:
        owner = "" if exchange.identity is None else exchange.identity.key_id

        def work() -> Any:
            location = _decode(exchange, _NewDraft).repository
            return self._require_deployer().new_drafts(location).create(owner)

        self._thread(exchange, work)

    def _show_draft(self, exchange: Exchange, names: Names) -> None:
        draft = names["draft"]
        self._thread(exchange, lambda: self._require_deployer().drafts(draft).status(draft))

    def _remove_draft(self, exchange: Exchange, names: Names) -> None:
        draft = names["draft"]

        def work() -> dict[str, str]:
            self._require_deployer().drafts(draft).remove(draft)
            return {}

        self._thread(exchange, work)

    def _write_file(self, exchange: Exchange, names: Names) -> None:
        draft, query = names["draft"], _query(exchange)

        def work() -> Any:
            drafts = self._require_deployer().drafts(draft)
            offset, size = _number(query, "offset"), _number(query, "size")
            return drafts.write(draft, query.get("path", ""), offset, size, exchange.body)

        self._thread(exchange, work)

    def _remove_file(self, exchange: Exchange, names: Names) -> None:
        draft, path = names["draft"], _query(exchange).get("path", "")
        self._thread(
            exchange, lambda: self._require_deployer().drafts(draft).remove_file(draft, path)
        )

    # Models.

    def _preview(self, exchange: Exchange, names: Names) -> None:
        def work() -> Any:
            spec = decode_spec(bytes(exchange.body))
            return self._require_deployer().preview(names["model"], spec, self._address(exchange))

        self._thread(exchange, work)

    def _deploy(self, exchange: Exchange, names: Names) -> None:
        async def work() -> Any:
            self._require_deployer()
            spec = decode_spec(bytes(exchange.body))
            return self._deployments.begin(names["model"], spec, self._address(exchange)).status()

        self._respond(exchange, work())

    def _show_deployment(self, exchange: Exchange, names: Names) -> None:
        async def work() -> Any:
            deployment = self._deployments.find(names["model"])
            if deployment is None:
                raise not_found(f"'{names['model']}' was not deployed since the server started")
            return deployment.status()

        self._respond(exchange, work())

    def _load(self, exchange: Exchange, names: Names) -> None:
        self._respond(exchange, _empty(self._repository.apply(names["model"])))

    def _unload(self, exchange: Exchange, names: Names) -> None:
        self._respond(exchange, _empty(self._repository.withdraw(names["model"])))

    # How they run.

    def _thread(self, exchange: Exchange, work: Callable[[], Any]) -> None:
        loop = asyncio.get_running_loop()

        async def run() -> Any:
            return await loop.run_in_executor(self._threads, work)

        self._respond(exchange, run())

    def _respond(self, exchange: Exchange, work: Coroutine[Any, Any, Any]) -> None:
        def respond(document: Any) -> None:
            exchange.respond(200, _PRIVATE, msgspec.json.encode(document))

        self._start(respond_when_done(exchange, work, respond))

    def _address(self, exchange: Exchange) -> str:
        """The server as the client calls it, for curl."""
        address = f"http://{exchange.header('host') or '127.0.0.1:8000'}"
        if self._local is not None:
            return f'-H "{PAGE_HEADER}: $(naiad console --token)" {address}'
        if exchange.identity is None:
            return address
        return f'-H "Authorization: Bearer $NAIAD_API_KEY" {address}'


async def _empty(work: Awaitable[None]) -> dict[str, str]:
    await work
    return {}


def _decode(exchange: Exchange, kind: type[T]) -> T:
    """Raises NaiadError, with the name of the field."""
    try:
        return msgspec.json.decode(bytes(exchange.body) or b"{}", type=kind)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise invalid_arg(f"the body is not valid: {error}") from None


def _query(exchange: Exchange) -> dict[str, str]:
    values = parse_qs(exchange.head.query.decode("latin-1"), keep_blank_values=True)
    return {name: value[-1] for name, value in values.items()}


def _number(query: dict[str, str], name: str) -> int:
    text = query.get(name, "")
    if not (text.isascii() and text.isdecimal() and len(text) < 19):
        raise invalid_arg(f"{name}: expected a number of bytes, not '{text[:40]}'")
    return int(text)
