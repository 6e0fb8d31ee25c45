"""Requests that the server process refuses before they reach a model, as a frontend hears of it."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any, cast

import pytest

from naiad.errors import not_found
from naiad.frontend_process.messages import AskModel, RemoteResponse, Respond
from tests.unit.frontend_process.server_side import ServerSide, bad

UNKNOWN = "Request for unknown model: 'm' is not found"


class Side(ServerSide):
    """Keeps whole responses."""

    def __init__(self) -> None:
        super().__init__()
        self.received: list[RemoteResponse] = []

    def _collect(self, message: Respond, found: dict[int, int | str]) -> None:
        super()._collect(message, found)
        self.received += message.responses

    async def error(self) -> tuple[str, bool]:
        """The message of the only response, and whether it is a refusal."""
        await self.responses()
        (response,) = self.received
        assert response.error is not None
        return response.error.message, response.error.is_refusal


@pytest.fixture
async def side() -> AsyncIterator[Side]:
    one = Side()
    yield one
    one.close()


def find(side: Side, error: Exception | None) -> None:
    """The repository finds the model, or raises the error."""

    def ready_model(name: str, version: str) -> object:
        if error is not None:
            raise error
        return side.models.served

    cast(Any, side.core.repository).ready_model = ready_model


async def test_an_unknown_model_is_refused_in_the_words_of_the_repository(side: Side) -> None:
    find(side, not_found(UNKNOWN))
    side.session._on_message(AskModel(7, "m", ""))
    assert await side.error() == (UNKNOWN, True)


async def test_a_model_that_was_loaded_meanwhile_may_be_tried_again(side: Side) -> None:
    find(side, None)
    side.session._on_message(AskModel(7, "m", ""))
    assert await side.error() == ("Request for unknown model: 'm' is not at ready state", True)
    error = side.received[0].error
    assert error is not None
    assert error.retry_after_s


async def test_a_request_for_a_model_that_has_left_is_refused(side: Side) -> None:
    side.models.served = None
    find(side, not_found(UNKNOWN))
    side.send(1)
    assert await side.error() == (UNKNOWN, True)


async def test_the_error_of_a_model_is_no_refusal(side: Side) -> None:
    side.send(1)
    await side.turn()
    side.instance.respond_all(bad())
    assert await side.error() == ("bad", False)
