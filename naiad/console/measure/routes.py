"""The routes of the Measure page: order a measurement, watch it, cancel it, read its report, apply
the configuration that it proposes.

In:  the repository, the guard, and how this server is reached. Out: entries for the route table.
Rule: all of it needs the scope `model-repository`, and a key sees measurements of its models only.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Coroutine
from pathlib import Path
from typing import Any

import msgspec

from naiad.console.measure.job import Job, JobView
from naiad.console.measure.jobs import Jobs
from naiad.console.measure.order import (
    AnalyzeOrder,
    Order,
    Target,
    arguments,
    decode_order,
    file_arguments,
)
from naiad.console.measure.proposal import Proposal, propose, read_config_text
from naiad.errors import NaiadError, invalid_arg, not_found
from naiad.frontends.http.response import respond_error, respond_when_done
from naiad.frontends.http.routes import Entry, Names, control, simple
from naiad.frontends.token_estimate import is_language
from naiad.keys.api_class import MODEL_REPOSITORY
from naiad.keys.guard import Guard, read_bytes, unknown_model
from naiad.keys.secret import PAGE_HEADER
from naiad.keys.session import cookie_name
from naiad.repository.deploy.deployer import text_hash
from naiad.repository.entry import Entry as ModelEntry
from naiad.repository.repository import Repository
from naiad.transport.http1.exchange import Exchange
from naiad.transport.http1.response_head import JSON_TYPE

_PRIVATE = JSON_TYPE + b"Cache-Control: no-store\r\n"
_REPORT = (
    b"Content-Type: text/html; charset=utf-8\r\nCache-Control: no-store\r\n"
    b"Content-Security-Policy: default-src 'none'; sandbox\r\nX-Content-Type-Options: nosniff\r\n"
    b'Content-Disposition: attachment; filename="report.html"\r\n'
)


EditConfig = Callable[[str, str, str], Awaitable[None]]
"""(model, text of config.pbtxt, hash of the text that it replaces): writes the file and loads the
model. Raises NaiadError, and then everything is as it was."""


class Addresses(msgspec.Struct, frozen=True):
    """How a child of this server reaches it."""

    http: str = ""
    grpc: str = ""
    is_tls: bool = False


class JobList(msgspec.Struct, frozen=True):
    jobs: list[JobView]


class _Apply(msgspec.Struct, forbid_unknown_fields=True):
    tag: str
    """The digest of the proposal that was shown."""


class MeasureRoutes:
    def __init__(
        self,
        repository: Repository,
        guard: Guard | None,
        addresses: Addresses,
        edit_config: EditConfig,
        start: Callable[[Coroutine[Any, Any, None]], None],
    ) -> None:
        """`edit_config` deploys a text of config.pbtxt. `start` runs a task."""
        self._edit_config = edit_config
        self._start = start
        self._repository = repository
        self._guard = guard
        self._addresses = addresses
        self._jobs = Jobs()

    def entries(self) -> list[Entry]:
        api = "/console/api/measure"
        one = f"{api}/(?P<id>[0-9]{{1,9}})"
        scope = MODEL_REPOSITORY
        return [
            Entry("GET", api, scope, simple(self._list)),
            Entry("POST", api, scope, control(self._reporting(self._order))),
            Entry("GET", one, scope, simple(self._reporting(self._show))),
            Entry("DELETE", one, scope, control(self._reporting(self._cancel))),
            Entry("GET", f"{one}/report", scope, simple(self._reporting(self._show_report))),
            Entry(
                "GET",
                f"{one}/proposal",
                scope,
                simple(self._reporting(self._show_proposal)),
                reads_files=True,
            ),
            Entry("POST", f"{one}/apply", scope, control(self._reporting(self._apply))),
            Entry("POST", f"{one}/undo", scope, control(self._reporting(self._undo))),
        ]

    def stop(self) -> None:
        self._jobs.stop()

    def _reporting(
        self, handle: Callable[[Exchange, Names], None]
    ) -> Callable[[Exchange, Names], None]:
        def respond(exchange: Exchange, names: Names) -> None:
            try:
                handle(exchange, names)
            except NaiadError as error:
                respond_error(exchange, error)

        return respond

    # Orders.

    def _order(self, exchange: Exchange, _names: Names) -> None:
        order = decode_order(bytes(exchange.body))
        entry = self._entry(exchange, order.model)
        self._jobs.check_room()
        directory = self._directory(entry, order)
        model = entry.latest
        target = Target(
            http_url=self._addresses.http,
            grpc_url=self._addresses.grpc,
            is_tls=self._addresses.is_tls,
            is_language=model is not None and is_language(model),
            is_decoupled=model is not None and model.spec.is_decoupled,
            repository=str(directory.parent),
        )
        shown = arguments(order, target)
        id, folder = self._jobs.new_folder()
        copy = folder / "repository"
        line = arguments(order, msgspec.structs.replace(target, repository=str(copy)))
        job = Job(
            id,
            order,
            shown,
            [*line, *file_arguments(order, folder)],
            self._headers(exchange, order, target),
            folder,
            directory,
        )
        self._jobs.add(job)
        exchange.respond(200, _PRIVATE, msgspec.json.encode(job.view()))

    def _entry(self, exchange: Exchange, name: str) -> ModelEntry:
        """Raises NaiadError for a model that does not serve or that the key may not see."""
        identity = exchange.identity
        if identity is not None and not identity.may_see(name):
            raise unknown_model(name)
        for entry in self._repository.entries():
            if entry.name == name and entry.is_ready:
                return entry
        self._repository.ready_model(name)  # raises what an inference would
        raise unknown_model(name)

    def _directory(self, entry: ModelEntry, order: Order) -> Path:
        """The model's folder in the repository. Raises NaiadError where an analysis has none."""
        source = entry.source
        is_local = source is not None and source.store is not None and source.folder is None
        if source is None or (isinstance(order, AnalyzeOrder) and not is_local):
            raise invalid_arg(
                f"the model '{entry.name}' is not a folder of a repository on this machine, so "
                "there is no config.pbtxt that an analysis could change"
            )
        return source.directory

    def _headers(self, exchange: Exchange, order: Order, target: Target) -> list[tuple[str, str]]:
        """The measurement sends its requests as whoever ordered it."""
        if self._guard is None or isinstance(order, AnalyzeOrder):
            return []
        assert exchange.identity is not None
        session = self._guard.open_session(read_bytes(exchange.head.headers), exchange.identity)
        is_grpc = not target.is_language and (order.protocol == "grpc" or target.is_decoupled)
        host = b"" if is_grpc else target.http_url.partition("://")[2].encode()
        cookie = f"{cookie_name(host).decode()}={session.token}"
        return [("cookie", cookie), (PAGE_HEADER, session.secret)]

    # Jobs.

    def _list(self, exchange: Exchange, _names: Names) -> None:
        views = [job.view() for job in self._jobs.all() if self._may_see(exchange, job)]
        exchange.respond(200, _PRIVATE, msgspec.json.encode(JobList(views)))

    def _may_see(self, exchange: Exchange, job: Job) -> bool:
        return exchange.identity is None or exchange.identity.may_see(job.order.model)

    def _find(self, exchange: Exchange, names: Names) -> Job:
        job = self._jobs.find(int(names["id"]))
        if not self._may_see(exchange, job):
            raise not_found(f"there is no measurement {job.id}")
        return job

    def _show(self, exchange: Exchange, names: Names) -> None:
        view = self._find(exchange, names).view(has_lines=True)
        exchange.respond(200, _PRIVATE, msgspec.json.encode(view))

    def _cancel(self, exchange: Exchange, names: Names) -> None:
        """Cancels a measurement that waits or runs; deletes the report of one that is over."""
        job = self._find(exchange, names)
        if job.is_over:
            self._jobs.remove(job)
        else:
            self._jobs.cancel(job)
        exchange.respond(200, _PRIVATE, b"{}")

    def _show_report(self, exchange: Exchange, names: Names) -> None:
        job = self._find(exchange, names)
        report = job.report if job.is_over else None
        if report is None:
            raise not_found(f"measurement {job.id} has no report")
        exchange.respond(200, _REPORT, report.read_bytes())

    # The proposal of an analysis.

    def _analysis(self, exchange: Exchange, names: Names) -> Job:
        job = self._find(exchange, names)
        if not isinstance(job.order, AnalyzeOrder) or not job.is_over:
            raise invalid_arg(f"measurement {job.id} proposes no configuration")
        return job

    def _show_proposal(self, exchange: Exchange, names: Names) -> None:
        job = self._analysis(exchange, names)
        self._respond(exchange, propose(job.directory, job.copy))

    def _apply(self, exchange: Exchange, names: Names) -> None:
        job = self._analysis(exchange, names)
        tag = _decode(exchange).tag
        if not propose(job.directory, job.copy).diff:
            raise invalid_arg(f"measurement {job.id} proposes no change of the configuration")
        self._edit(exchange, job, read_config_text(job.copy), tag)

    def _undo(self, exchange: Exchange, names: Names) -> None:
        job = self._analysis(exchange, names)
        if job.replaced is None:
            raise invalid_arg(f"the proposal of measurement {job.id} was not applied")
        self._edit(exchange, job, job.replaced, text_hash(read_config_text(job.copy)))

    def _edit(self, exchange: Exchange, job: Job, text: str, base: str) -> None:
        """Responds when the model is loaded. What it replaces is kept for the way back."""
        replaced = read_config_text(job.directory) if job.replaced is None else None

        async def work() -> Proposal:
            await self._edit_config(job.order.model, text, base)
            job.replaced = replaced
            return propose(job.directory, job.copy)

        self._start(
            respond_when_done(exchange, work(), lambda proposal: self._respond(exchange, proposal))
        )

    def _respond(self, exchange: Exchange, proposal: Proposal) -> None:
        exchange.respond(200, _PRIVATE, msgspec.json.encode(proposal))


def _decode(exchange: Exchange) -> _Apply:
    try:
        return msgspec.json.decode(bytes(exchange.body), type=_Apply)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise invalid_arg(f"the body is not valid: {error}") from None
