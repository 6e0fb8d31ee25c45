"""The console's routes: pages for everybody, data only for who may see it."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Iterable, Iterator
from typing import Any, cast

import msgspec

from naiad.console.assets import POLICY
from naiad.console.console import Console, ConsoleOptions
from naiad.console.sessions import MAX_WRONG_KEYS
from naiad.keys.guard import Guard
from naiad.repository.entry import Entry
from naiad.repository.repository import Repository
from naiad.trace.tracing import Tracing
from tests.fakes.keys import KeyRing
from tests.wire.http_client import Client, Reply, on_uvloop
from tests.wire.http_rig import serving

HOST = "localhost:8000"
ORIGIN = {"Host": HOST, "Origin": f"http://{HOST}", "Content-Type": "application/json"}


class EmptyRepository:
    """Two models that were never loaded."""

    def entries(self) -> Iterator[Entry]:
        return iter(())

    def location(self, _name: str) -> str:
        return "/models"

    def known_names(self) -> Iterable[str]:
        return {"alpha", "beta"}


class Rig(msgspec.Struct, eq=False):
    console: Console
    client: Client
    port: int
    pages: list[Client] = []
    proof: dict[str, str] = {}
    """What the page that has signed in sends with every change."""

    async def get(self, path: str, cookie: str = "") -> Reply:
        headers = {"Host": HOST} | ({"Cookie": cookie} if cookie else {})
        return await self.client.call("GET", path, b"", headers)

    async def sign_in(self, key: str) -> str:
        reply = await self.client.call("POST", "/console/api/session", {"key": key}, ORIGIN)
        assert reply.status == 200, reply.body
        self.proof = {"x-naiad-console": reply.json()["secret"]}
        return reply.headers["Set-Cookie"].partition(";")[0]

    async def events(self, cookie: str = "") -> Client:
        """A page that is open: its connection, behind the head of the response."""
        client = await Client.connect(self.port)
        self.pages.append(client)
        headers = {"Host": HOST} | ({"Cookie": cookie} if cookie else {})
        client.request("GET", "/console/api/events", b"", headers)
        assert (await client.read_head()).status == 200
        return client


@contextlib.asynccontextmanager
async def console(guard: Guard | None = None) -> AsyncIterator[Rig]:
    repository = cast(Repository, EmptyRepository())
    made = Console(repository, lambda: True, lambda _name: {}, guard, ConsoleOptions(), Tracing())
    async with serving(guard=guard, more=made.entries()) as server:
        client = await Client.connect(server.port)
        rig = Rig(made, client, server.port)
        try:
            yield rig
        finally:
            made.stop()
            for page in (client, *rig.pages):
                await page.close()


def event(chunk: bytes) -> tuple[str, Any]:
    name, data = chunk.decode().strip().split("\n")
    return name.removeprefix("event: "), json.loads(data.removeprefix("data: "))


@on_uvloop
async def test_pages_have_a_strict_policy_and_nothing_inline() -> None:
    async with console() as rig:
        page = await rig.get("/console")
        assert page.status == 200
        assert page.headers["Content-Security-Policy"] == POLICY.decode()
        assert "unsafe" not in POLICY.decode()
        assert b"<style" not in page.body
        assert b"style=" not in page.body
        assert page.body.count(b"<script") == page.body.count(b'<script type="module" src=')
        names = [part.split(b'"')[0].decode() for part in page.body.split(b'"console/static/')[1:]]
        assert "app.js" in names
        for name in names:
            assert (await rig.get(f"/console/static/{name}")).status == 200, name


@on_uvloop
async def test_a_file_that_has_not_changed_is_not_sent_again() -> None:
    async with console() as rig:
        first = await rig.get("/console/static/app.js")
        again = await rig.client.call(
            "GET", "/console/static/app.js", b"", {"If-None-Match": first.headers["ETag"]}
        )
        assert (again.status, again.body) == (304, b"")


@on_uvloop
async def test_only_files_of_the_pages_are_served() -> None:
    async with console() as rig:
        for name in ("..%2Fconsole.py", "nothing.js", "%2Fetc%2Fpasswd", "__init__.py"):
            assert (await rig.get(f"/console/static/{name}")).status == 404, name


@on_uvloop
async def test_signing_in_gives_a_cookie_that_scripts_cannot_read() -> None:
    ring = KeyRing()
    key = ring.create("anna")
    async with console(ring.guard()) as rig:
        reply = await rig.client.call("POST", "/console/api/session", {"key": key}, ORIGIN)
        cookie = reply.headers["Set-Cookie"]
        assert cookie.startswith("naiad_session_8000=")
        assert {"HttpOnly", "SameSite=Strict", "Path=/"} <= set(cookie.split("; "))
        assert key not in cookie
        info = (await rig.get("/console/api/session", cookie.partition(";")[0])).json()
        assert (info["is_signed_in"], info["key_name"]) == (True, "anna")
        assert (await rig.get("/console/api/session")).json()["is_signed_in"] is False


@on_uvloop
async def test_a_wrong_key_and_a_foreign_origin_cannot_sign_in() -> None:
    ring = KeyRing()
    key = ring.create("anna")
    async with console(ring.guard()) as rig:
        wrong = await rig.client.call("POST", "/console/api/session", {"key": "sk-x"}, ORIGIN)
        assert (wrong.status, wrong.error()) == (401, "the API key is not valid")
        foreign = ORIGIN | {"Origin": "http://evil.example"}
        refused = await rig.client.call("POST", "/console/api/session", {"key": key}, foreign)
        assert refused.status == 403
        bad = await rig.client.call("POST", "/console/api/session", {"password": "x"}, ORIGIN)
        assert bad.status == 400


@on_uvloop
async def test_a_session_may_do_what_its_key_may_and_ends_with_it() -> None:
    ring = KeyRing()
    key = ring.create("anna", models=("add_*",))
    async with console(ring.guard()) as rig:
        cookie = await rig.sign_in(key)
        assert (await rig.get("/v2/models/add_sub", cookie)).status == 200
        assert (await rig.get("/v2/models/id_fp32", cookie)).status == 404
        assert (await rig.get("/console/api/log", cookie)).status == 403
        assert (await rig.get("/console/api/usage", cookie)).status == 403
        assert (await rig.get("/console/api/state")).status == 401
        ring.revoke("anna")
        assert (await rig.get("/v2/models/add_sub", cookie)).status == 401


@on_uvloop
async def test_signing_out_ends_the_session_on_open_connections() -> None:
    ring = KeyRing()
    key = ring.create("anna")
    async with console(ring.guard()) as rig:
        cookie = await rig.sign_in(key)
        assert (await rig.get("/v2/models/add_sub", cookie)).status == 200
        out = await rig.client.call(
            "DELETE", "/console/api/session", b"", {**ORIGIN, "Cookie": cookie}
        )
        assert "Max-Age=0" in out.headers["Set-Cookie"]
        assert (await rig.get("/v2/models/add_sub", cookie)).status == 401


@on_uvloop
async def test_a_foreign_page_cannot_use_the_session() -> None:
    ring = KeyRing()
    key = ring.create("anna", scopes=("model-repository",))
    async with console(ring.guard()) as rig:
        cookie = await rig.sign_in(key)
        headers = ORIGIN | {"Origin": "http://localhost:3000", "Cookie": cookie}
        reply = await rig.client.call("POST", "/v2/repository/index", {}, headers)
        assert reply.status == 403
        assert "other origins" in reply.error()


@on_uvloop
async def test_nothing_runs_before_the_first_page_and_after_the_last() -> None:
    async with console() as rig:
        live = rig.console.live
        assert not live.is_running
        first, second = await rig.events(), await rig.events()
        name, state = event(await first.read_chunk())
        assert name == "state"
        assert [row["name"] for row in state["models"]] == ["alpha", "beta"]
        assert state["is_full"] is True
        event(await second.read_chunk())
        assert (live.num_pages, live.is_running) == (2, True)
        await first.close()
        await second.close()
        while live.num_pages:
            await asyncio.sleep(0)
        assert not live.is_running


@on_uvloop
async def test_later_events_have_only_what_changed() -> None:
    async with console() as rig:
        page = await rig.events()
        event(await page.read_chunk())
        # The rates of the first reading are unknown, and those of later ones are zero.
        event(await page.read_chunk())
        _, state = event(await page.read_chunk())
        assert (state["is_full"], state["models"], state["removed"]) == (False, [], [])


@on_uvloop
async def test_an_open_page_is_refused_when_its_key_is_revoked() -> None:
    ring = KeyRing()
    key = ring.create("anna")
    async with console(ring.guard()) as rig:
        page = await rig.events(await rig.sign_in(key))
        assert event(await page.read_chunk())[0] == "state"
        ring.revoke("anna")
        name, data = event(await page.read_chunk())
        assert name == "refused"
        assert "was revoked" in data["error"]
        assert await page.read_chunk() == b""


@on_uvloop
async def test_a_key_sees_only_its_models_and_reasons_need_a_scope() -> None:
    ring = KeyRing()
    scopes = ("statistics", "model-repository")
    alpha, plain = ring.create("a", models=("alpha",), scopes=scopes), ring.create("b")
    async with console(ring.guard()) as rig:
        state = (await rig.get("/console/api/state", await rig.sign_in(alpha))).json()
        assert [row["name"] for row in state["models"]] == ["alpha"]
        state = (await rig.get("/console/api/state", await rig.sign_in(plain))).json()
        assert state["models"] == []
        reply = await rig.get("/console/api/history/beta", await rig.sign_in(alpha))
        assert reply.status == 404


@on_uvloop
async def test_a_cookie_alone_changes_nothing() -> None:
    """A server on another port of the host gets the cookie, too."""
    ring = KeyRing()
    key = ring.create("a", scopes=("trace", "inference", "keys"))
    async with console(ring.guard()) as rig:
        cookie = {**ORIGIN, "Cookie": await rig.sign_in(key)}
        changes = [
            ("POST", "/console/api/traces/ticket"),
            ("POST", "/key/generate"),
            ("POST", "/v2/models/add_sub/infer"),
        ]
        for method, path in changes:
            for headers in (cookie, {**cookie, "x-naiad-console": "x"}):
                reply = await rig.client.call(method, path, {}, headers)
                assert (reply.status, "sign in again" in reply.error()) == (401, True), path
            reply = await rig.client.call(method, path, {}, {**cookie, **rig.proof})
            assert reply.status != 401, path
        info = (await rig.get("/console/api/session", cookie["Cookie"])).json()
        assert info["is_signed_in"]
        assert "sign in again" in info["change_refusal"]


@on_uvloop
async def test_wrong_keys_are_limited() -> None:
    ring = KeyRing()
    key = ring.create("a")
    async with console(ring.guard()) as rig:
        for _ in range(MAX_WRONG_KEYS):
            wrong = await rig.client.call("POST", "/console/api/session", {"key": "x"}, ORIGIN)
            assert wrong.status == 401
        refused = await rig.client.call("POST", "/console/api/session", {"key": key}, ORIGIN)
        assert (refused.status, "too many wrong keys" in refused.error()) == (429, True)
        assert 0 < int(refused.headers["Retry-After"]) <= 60


@on_uvloop
async def test_pages_work_below_any_path() -> None:
    async with console() as rig:
        reply = await rig.get("/console/")
        assert (reply.status, reply.headers["Location"]) == (308, "../console")


@on_uvloop
async def test_stopping_ends_the_streams() -> None:
    async with console() as rig:
        page = await rig.events()
        event(await page.read_chunk())
        rig.console.stop()
        assert await page.read_chunk() == b""


@on_uvloop
async def test_bad_questions_get_clear_errors() -> None:
    async with console() as rig:
        reply = await rig.get("/console/api/log?after=x")
        assert (reply.status, reply.error()) == (
            400,
            "after: expected the number of a line, not 'x'",
        )
        reply = await rig.client.call("POST", "/console/api/session", {"key": "k"}, ORIGIN)
        assert (reply.status, reply.error()) == (400, "this server requires no API key")


@on_uvloop
async def test_traces_need_their_scope_and_a_sample_has_bounds() -> None:
    ring = KeyRing()
    reader, tracer = ring.create("a", scopes=("statistics",)), ring.create("b", scopes=("trace",))
    async with console(ring.guard()) as rig:
        cookie = await rig.sign_in(reader)
        assert (await rig.get("/console/api/traces", cookie)).status == 403
        cookie = await rig.sign_in(tracer)
        shown = (await rig.get("/console/api/traces", cookie)).json()
        assert (shown["rate"], shown["traces"]) == (0, [])
        headers = {**ORIGIN, "Cookie": cookie, **rig.proof}
        call = rig.client.call
        for body in ({"rate": -1}, {"rate": 1, "seconds": 1e9}, {"rate": "a"}, {"pace": 1}):
            assert (await call("POST", "/console/api/traces", body, headers)).status == 400
        reply = await call("POST", "/console/api/traces", {"rate": 5, "seconds": 30}, headers)
        assert reply.json()["rate"] == 5
        ticket = (await call("POST", "/console/api/traces/ticket", {}, headers)).json()
        assert ticket["header"] == "x-naiad-trace"
        assert ticket["ticket"]
