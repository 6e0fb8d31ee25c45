"""The key API over HTTP, with LiteLLM's names and fields."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from naiad.keys import key_change
from naiad.keys.api_class import SCOPES
from naiad.keys.guard import Guard
from naiad.keys.key import utc_now
from naiad.keys.key_change import Issued, NewKey
from naiad.keys.key_file import KeyFile
from naiad.keys.key_table import KeyTable
from naiad.keys.key_watch import KeyWatch
from tests.wire.http_client import Client, Reply, on_uvloop
from tests.wire.http_rig import serving


class Api(msgspec.Struct, eq=False):
    client: Client
    admin: str
    file: KeyFile

    async def post(self, name: str, body: Any, key: str = "") -> Reply:
        headers = {"authorization": f"Bearer {key or self.admin}"}
        return await self.client.call("POST", f"/key/{name}", body, headers)

    async def get(self, path: str, key: str = "") -> Reply:
        headers = {"authorization": f"Bearer {key or self.admin}"}
        return await self.client.call("GET", path, b"", headers)

    async def generate(self, **body: Any) -> str:
        reply = await self.post("generate", body)
        assert reply.status == 200, reply.body
        return str(reply.json()["key"])


@contextlib.asynccontextmanager
async def key_api(folder: Path) -> AsyncIterator[Api]:
    file = KeyFile(folder / "keys.json")
    issued: list[Issued] = []

    def edit(document: Any) -> Any:
        issued.append(key_change.create(document, NewKey(name="admin", scopes=SCOPES), utc_now()))
        return issued[0].document

    file.change(edit)
    watch = KeyWatch(file, KeyTable())
    watch.load()
    async with serving(guard=Guard(watch.table), key_watch=watch) as server:
        client = await Client.connect(server.port)
        try:
            yield Api(client, issued[0].token, file)
        finally:
            await client.close()


@on_uvloop
async def test_a_generated_key_is_valid_at_once_and_shown_once(tmp_path: Path) -> None:
    async with key_api(tmp_path) as api:
        reply = await api.post(
            "generate",
            {"key_alias": "team", "duration": "30d", "models": ["add_*"], "rpm_limit": 7},
        )
        made = reply.json()
        assert (made["key_alias"], made["models"], made["rpm_limit"]) == ("team", ["add_*"], 7)
        assert made["expires"] is not None
        assert reply.headers["Cache-Control"] == "no-store"
        assert (await api.get("/v2/models/add_sub", made["key"])).status == 200
        assert (await api.get("/v2/models/id_fp32", made["key"])).status == 404
        secret = made["key"][18:]
        for path in ("/key/list", f"/key/info?key={made['token']}"):
            shown = await api.get(path)
            assert shown.status == 200
            assert secret not in shown.body.decode()
            assert made["token"] in shown.body.decode()
        assert secret not in api.file.path.read_text()


@on_uvloop
async def test_a_key_without_the_scope_manages_nothing(tmp_path: Path) -> None:
    async with key_api(tmp_path) as api:
        key = await api.generate(key_alias="user")
        assert (await api.get("/key/list", key)).status == 403
        assert (await api.post("generate", {"scopes": ["keys"]}, key)).status == 403
        assert len(api.file.read().keys) == 2


@on_uvloop
async def test_block_unblock_regenerate_and_delete(tmp_path: Path) -> None:
    async with key_api(tmp_path) as api:
        key = await api.generate(key_alias="user")
        assert (await api.post("block", {"key": key})).json()["blocked"] is True
        assert (await api.get("/v2", key)).status == 401
        assert (await api.post("unblock", {"key": key})).json()["state"] == "active"
        assert (await api.get("/v2", key)).status == 200
        new = (await api.post("regenerate", {"key": "user", "grace_period": "1h"})).json()["key"]
        assert [(await api.get("/v2", one)).status for one in (key, new)] == [200, 200]
        reply = await api.post("delete", {"keys": [new[9:17]]})
        assert reply.json() == {"deleted_keys": [new[9:17]]}
        assert (await api.get("/v2", new)).status == 401


@on_uvloop
async def test_update_changes_only_what_is_sent(tmp_path: Path) -> None:
    async with key_api(tmp_path) as api:
        key = await api.generate(key_alias="user", rpm_limit=5, models=["add_*"])
        reply = await api.post("update", {"key": key, "rpm_limit": None, "tpm_limit": 9})
        shown = reply.json()
        assert (shown["rpm_limit"], shown["tpm_limit"], shown["models"]) == (None, 9, ["add_*"])


@pytest.mark.parametrize(
    ("name", "body", "status", "part"),
    [
        ("generate", b"[", 400, "the body is not valid"),
        ("generate", {"max_budget": 5}, 400, "unknown field `max_budget`"),
        ("generate", {"rpm_limit": -1}, 400, "rpm_limit: -1 is out of range"),
        ("generate", {"rpm_limit": "x"}, 400, "$.rpm_limit"),
        ("generate", {"duration": "soon"}, 400, "duration: 'soon' is not a duration"),
        ("generate", {"scopes": ["all"]}, 400, "there is no scope 'all'"),
        ("generate", {"key_alias": "admin"}, 400, "has the name 'admin' already"),
        ("block", {"key": "zzzzzzzz"}, 404, "there is no key 'zzzzzzzz'"),
        ("block", {}, 400, "missing required field `key`"),
        ("delete", {}, 400, "keys: expected the ids"),
    ],
)
@on_uvloop
async def test_bad_input_names_the_field(
    tmp_path: Path, name: str, body: Any, status: int, part: str
) -> None:
    async with key_api(tmp_path) as api:
        before = api.file.path.read_bytes()
        reply = await api.post(name, body)
        assert (reply.status, part in reply.error()) == (status, True), reply.error()
        assert api.file.path.read_bytes() == before


@on_uvloop
async def test_without_a_key_file_there_is_nothing_to_manage() -> None:
    async with serving() as server:
        client = await Client.connect(server.port)
        reply = await client.call("POST", "/key/generate", {})
        assert (reply.status, "--api-key-file" in reply.error()) == (501, True)
        await client.close()


@on_uvloop
async def test_pages_of_other_sites_cannot_make_keys(tmp_path: Path) -> None:
    async with key_api(tmp_path) as api:
        headers = {"authorization": f"Bearer {api.admin}", "Origin": "http://evil.example"}
        reply = await api.client.call("POST", "/key/generate", {}, headers)
        assert reply.status == 403
        assert len(api.file.read().keys) == 1
