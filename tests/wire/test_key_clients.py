"""The stock openai client with API keys: it raises its own exceptions."""

from __future__ import annotations

import pytest
from openai import (
    AsyncOpenAI,
    AuthenticationError,
    NotFoundError,
    PermissionDeniedError,
    RateLimitError,
)

from tests.fakes.keys import KeyRing
from tests.wire.http_client import on_uvloop
from tests.wire.http_rig import language_server


@on_uvloop
async def test_openai_raises_its_own_exceptions() -> None:
    ring = KeyRing()
    good = ring.create("good", models=("embed",))
    lacking = ring.create("lacking", scopes=("metadata",))
    limited = ring.create("limited", rpm_limit=1)
    async with language_server(ring.guard()) as (_, server):

        async def embed(key: str, model: str = "embed") -> int:
            url = f"http://127.0.0.1:{server.port}/v1"
            async with AsyncOpenAI(base_url=url, api_key=key, max_retries=0) as client:
                reply = await client.embeddings.create(model=model, input="text")
                return len(reply.data)

        assert await embed(good) == 1
        with pytest.raises(AuthenticationError) as invalid:
            await embed("sk-wrong")
        assert invalid.value.code == "invalid_api_key"
        with pytest.raises(PermissionDeniedError):
            await embed(lacking)
        with pytest.raises(NotFoundError) as hidden:
            await embed(good, "chat")
        with pytest.raises(NotFoundError) as missing:
            await embed(good, "nothing")
        assert hidden.value.message.replace("chat", "nothing") == missing.value.message
        assert await embed(limited) == 1
        with pytest.raises(RateLimitError) as exhausted:
            await embed(limited)
        assert exhausted.value.response.headers["retry-after"] == "60"
        ring.revoke(good)
        with pytest.raises(AuthenticationError, match="was revoked"):
            await embed(good)


@on_uvloop
async def test_any_key_works_where_keys_are_off() -> None:
    async with language_server() as (_, server):
        url = f"http://127.0.0.1:{server.port}/v1"
        async with AsyncOpenAI(base_url=url, api_key="none", max_retries=0) as client:
            names = [model.id async for model in await client.models.list()]
            assert "embed" in names
