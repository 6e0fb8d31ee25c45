"""The key API over HTTP, with LiteLLM's names: /key/generate, /key/list, /key/info, /key/update,
/key/block, /key/unblock, /key/delete and /key/regenerate.

In:  JSON with LiteLLM's fields, and `scopes`, `tokens_per_day`, `priority` and `client_subjects`,
     which are ours. Out: JSON. Only `generate` and `regenerate` show a secret, once.
Rule: a field that is not known is refused, because it might be a limit that would not hold.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar
from urllib.parse import parse_qs

import msgspec

from naiad.errors import invalid_arg, unsupported
from naiad.frontends.http.response import respond_when_done
from naiad.frontends.http.routes import Entry, Names, simple
from naiad.keys import key_change
from naiad.keys.api_class import DEFAULT_SCOPES, KEYS
from naiad.keys.certificate import canonical_name
from naiad.keys.key import ApiKey, KeyDocument, parse_duration, shown_key, utc_now
from naiad.keys.key_change import Issued, NewKey
from naiad.keys.key_watch import KeyWatch
from naiad.transport.http1.exchange import Exchange
from naiad.transport.http1.response_head import JSON_TYPE

MAX_BODY_BYTES = 1 << 20
_NO_FILE = "the server has no key file; start it with '--api-key-file FILE' to manage keys"
_PRIVATE = JSON_TYPE + b"Cache-Control: no-store\r\n"


class _Body(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """The fields of /key/generate; those of /key/update are the same, and `key`."""

    key_alias: str | msgspec.UnsetType | None = msgspec.UNSET
    duration: str | msgspec.UnsetType | None = msgspec.UNSET
    models: tuple[str, ...] | msgspec.UnsetType = msgspec.UNSET
    scopes: tuple[str, ...] | msgspec.UnsetType = msgspec.UNSET
    rpm_limit: int | msgspec.UnsetType | None = msgspec.UNSET
    tpm_limit: int | msgspec.UnsetType | None = msgspec.UNSET
    max_parallel_requests: int | msgspec.UnsetType | None = msgspec.UNSET
    tokens_per_day: int | msgspec.UnsetType | None = msgspec.UNSET
    priority: int | msgspec.UnsetType = msgspec.UNSET
    metadata: dict[str, str] | msgspec.UnsetType = msgspec.UNSET
    client_subjects: tuple[str, ...] | msgspec.UnsetType = msgspec.UNSET

    def fields(self) -> dict[str, Any]:
        """What the client has set, under the names of ApiKey. Raises NaiadError."""
        sent = {
            name: value
            for name in _Body.__struct_fields__
            if (value := getattr(self, name)) is not msgspec.UNSET
        }
        alias, duration = sent.pop("key_alias", None), sent.pop("duration", msgspec.UNSET)
        if alias is not None:
            sent["name"] = alias
        if duration is not msgspec.UNSET:
            sent["expires_at"] = (
                None if duration is None else utc_now() + parse_duration(duration, "duration")
            )
        if sent.get("models") == ():
            sent["models"] = ("*",)  # LiteLLM: an empty list means all models
        if "client_subjects" in sent:
            sent["client_subjects"] = tuple(map(canonical_name, sent["client_subjects"]))
        return sent


class _Update(_Body, kw_only=True):
    key: str


class _OneKey(msgspec.Struct, forbid_unknown_fields=True):
    key: str


class _ManyKeys(msgspec.Struct, forbid_unknown_fields=True):
    keys: tuple[str, ...] = ()
    key_aliases: tuple[str, ...] = ()


class _Regeneration(msgspec.Struct, forbid_unknown_fields=True):
    key: str
    grace_period: str = "24h"


BodyT = TypeVar("BodyT", bound=msgspec.Struct)


class KeyRoutes:
    def __init__(self, watch: KeyWatch | None) -> None:
        """`watch` is None where there is no key file."""
        self._watch = watch
        self._tasks: set[asyncio.Task[None]] = set()

    def entries(self) -> list[Entry]:
        return [
            Entry("POST", "/key/generate", KEYS, simple(self._generate, MAX_BODY_BYTES)),
            Entry("POST", "/key/update", KEYS, simple(self._update, MAX_BODY_BYTES)),
            Entry("POST", "/key/regenerate", KEYS, simple(self._regenerate, MAX_BODY_BYTES)),
            Entry("POST", "/key/block", KEYS, simple(self._block, MAX_BODY_BYTES)),
            Entry("POST", "/key/unblock", KEYS, simple(self._unblock, MAX_BODY_BYTES)),
            Entry("POST", "/key/delete", KEYS, simple(self._delete, MAX_BODY_BYTES)),
            Entry("GET", "/key/list", KEYS, simple(self._list)),
            Entry("GET", "/key/info", KEYS, simple(self._info)),
        ]

    async def stop(self) -> None:
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    # Handlers.

    def _generate(self, exchange: Exchange, _names: Names) -> None:
        def edit(document: KeyDocument) -> Issued:
            fields = _read(exchange, _Body).fields()
            if "name" not in fields:
                fields["name"] = f"key {len(document.keys) + 1}"
            fields.setdefault("scopes", DEFAULT_SCOPES)
            return key_change.create(document, NewKey(**fields), utc_now())

        self._run(exchange, self._issue(edit))

    def _regenerate(self, exchange: Exchange, _names: Names) -> None:
        def edit(document: KeyDocument) -> Issued:
            body = _read(exchange, _Regeneration)
            grace = parse_duration(body.grace_period, "grace_period")
            return key_change.rotate(
                document, key_change.find(document, body.key), utc_now(), grace
            )

        self._run(exchange, self._issue(edit))

    def _update(self, exchange: Exchange, _names: Names) -> None:
        def edit(document: KeyDocument) -> tuple[KeyDocument, str]:
            body = _read(exchange, _Update)
            key = key_change.find(document, body.key)
            return key_change.update(document, key, body.fields()), key.id

        self._run(exchange, self._change_one(edit))

    def _block(self, exchange: Exchange, _names: Names) -> None:
        def edit(document: KeyDocument) -> tuple[KeyDocument, str]:
            key = key_change.find(document, _read(exchange, _OneKey).key)
            return key_change.revoke(document, key, utc_now()), key.id

        self._run(exchange, self._change_one(edit))

    def _unblock(self, exchange: Exchange, _names: Names) -> None:
        def edit(document: KeyDocument) -> tuple[KeyDocument, str]:
            key = key_change.find(document, _read(exchange, _OneKey).key)
            return key_change.update(document, key, {"revoked_at": None}), key.id

        self._run(exchange, self._change_one(edit))

    def _delete(self, exchange: Exchange, _names: Names) -> None:
        async def work() -> Any:
            deleted: list[str] = []

            def edit(document: KeyDocument) -> KeyDocument:
                body = _read(exchange, _ManyKeys)
                texts = (*body.keys, *body.key_aliases)
                if not texts:
                    raise invalid_arg("keys: expected the ids of the keys to delete")
                for text in texts:
                    key = key_change.find(document, text)
                    deleted.append(key.id)
                    document = key_change.delete(document, key)
                return document

            await self._store().change(edit)
            return {"deleted_keys": deleted}

        self._run(exchange, work())

    def _list(self, exchange: Exchange, _names: Names) -> None:
        async def work() -> Any:
            keys = (await self._store().read()).keys
            return {"keys": [_shown(key) for key in keys], "total_count": len(keys)}

        self._run(exchange, work())

    def _info(self, exchange: Exchange, _names: Names) -> None:
        async def work() -> Any:
            document = await self._store().read()
            values = parse_qs(exchange.head.query.decode("latin-1")).get("key")
            if values:
                key = key_change.find(document, values[0])
            elif exchange.identity is not None:
                key = key_change.find(document, exchange.identity.key_id)
            else:
                raise invalid_arg("key: expected the id of a key in the query")
            return {"key": key.id, "info": _shown(key)}

        self._run(exchange, work())

    # How they run.

    def _store(self) -> KeyWatch:
        if self._watch is None:
            raise unsupported(_NO_FILE)
        return self._watch

    async def _issue(self, edit: Callable[[KeyDocument], Issued]) -> Any:
        issued: list[Issued] = []

        def change(document: KeyDocument) -> KeyDocument:
            issued.append(edit(document))
            return issued[0].document

        await self._store().change(change)
        return {**_shown(issued[0].key), "key": issued[0].token}

    async def _change_one(self, edit: Callable[[KeyDocument], tuple[KeyDocument, str]]) -> Any:
        changed: list[str] = []

        def change(document: KeyDocument) -> KeyDocument:
            document, key_id = edit(document)
            changed.append(key_id)
            return document

        document = await self._store().change(change)
        return _shown(key_change.find(document, changed[0]))

    def _run(self, exchange: Exchange, work: Coroutine[Any, Any, Any]) -> None:
        def respond(document: Any) -> None:
            exchange.respond(200, _PRIVATE, msgspec.json.encode(document))

        task = asyncio.get_running_loop().create_task(respond_when_done(exchange, work, respond))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)


def _read(exchange: Exchange, kind: type[BodyT]) -> BodyT:
    """Raises NaiadError, with the name of the field."""
    try:
        return msgspec.json.decode(bytes(exchange.body) or b"{}", type=kind)
    except msgspec.DecodeError as error:
        raise invalid_arg(f"the body is not valid: {error}") from None


def _shown(key: ApiKey) -> dict[str, Any]:
    """The key under LiteLLM's names, and ours."""
    shown = shown_key(key, utc_now())
    return {
        **shown,
        "key_alias": key.name,
        "key_name": f"sk-naiad-{key.id}-...",
        "token": key.id,
        "expires": shown["expires_at"],
        "blocked": key.revoked_at is not None,
    }
