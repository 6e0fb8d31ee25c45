"""Control over HTTP: one connection, one request at a time."""

from __future__ import annotations

import asyncio
import json
import ssl
import urllib.parse
from typing import Any

from naiad.perf.channels.address import Address
from naiad.perf.channels.call import Call, ConnectError
from naiad.perf.channels.control import ControlError
from naiad.perf.channels.http_channel import HttpChannel
from naiad.perf.channels.http_request import request_bytes

RESPONSE_LIMIT_S = 30.0
STATISTICS_LIMIT_S = 5.0
"""They are read after every window, and a measurement without them is still valid."""
LOAD_LIMIT_S = 1800.0
"""Loading a large model takes minutes, and unloading waits for requests in flight."""


class HttpControl:
    def __init__(
        self,
        address: Address,
        tls: ssl.SSLContext | None = None,
        headers: tuple[tuple[str, str], ...] = (),
    ) -> None:
        self._address = address
        self._headers = headers
        self._tls = tls
        self._channel = self._make_channel()
        self._call = Call(0, 0, 0)
        """The latest request. What ends an earlier one, given up by now, is no response to it."""
        self._lock = asyncio.Lock()
        self._response: asyncio.Future[bytes] | None = None

    def _make_channel(self) -> HttpChannel:
        return HttpChannel(self._address, self, tls=self._tls, should_keep_body=True)

    # Listener.

    def on_response(self, call: Call, payload: Any, now_ns: int) -> None:
        raise AssertionError("control responses are not streams")

    def on_end(self, call: Call, error: str | None, payload: Any, now_ns: int) -> None:
        response = self._response
        if response is None or response.done() or call is not self._call:
            return
        if error is None:
            response.set_result(payload[1])
        else:
            response.set_exception(ControlError(error))

    async def request(
        self, method: str, path: str, body: bytes = b"", *, limit_s: float = RESPONSE_LIMIT_S
    ) -> bytes:
        """Sends a request and returns the body. Raises ControlError if the status is not 200."""
        async with self._lock:
            data = request_bytes(self._address, method, path, body, headers=self._headers)
            self._response = asyncio.get_running_loop().create_future()
            self._call = Call(0, 0, 0)
            self._channel.send(data, self._call)
            try:
                async with asyncio.timeout(limit_s):
                    return await self._response
            except TimeoutError:
                self._channel.close()
                self._channel = self._make_channel()
                raise ControlError(
                    f"{self._address.authority} did not respond to {path} within {limit_s:g} s"
                ) from None

    async def get_json(self, path: str, *, limit_s: float = RESPONSE_LIMIT_S) -> Any:
        body = await self.request("GET", path, limit_s=limit_s)
        try:
            return json.loads(body)
        except ValueError:
            raise ControlError(
                f"the response of {self._address.authority}{path} is not JSON"
            ) from None

    async def close(self) -> None:
        self._channel.close()

    # Control.

    async def server_metadata(self) -> dict[str, Any]:
        return dict(await self.get_json("/v2"))

    async def model_metadata(self, model: str, version: str) -> dict[str, Any]:
        return dict(await self.get_json(model_path(model, version)))

    async def model_config(self, model: str, version: str) -> dict[str, Any]:
        return dict(await self.get_json(f"{model_path(model, version)}/config"))

    async def model_statistics(self, model: str, version: str) -> list[dict[str, Any]]:
        path = f"{model_path(model, version)}/stats"
        return list((await self.get_json(path, limit_s=STATISTICS_LIMIT_S))["model_stats"])

    async def model_names(self) -> list[str]:
        body = await self.request("POST", "/v2/repository/index", b'{"ready": true}')
        try:
            return [str(entry["name"]) for entry in json.loads(body)]
        except (ValueError, TypeError, KeyError):
            raise ControlError("the index of the repository cannot be read") from None

    async def is_model_ready(self, model: str, version: str = "") -> bool:
        try:
            await self.request("GET", f"{model_path(model, version)}/ready")
        except ControlError:
            return False
        return True

    async def load_model(self, model: str, config: str = "") -> None:
        document = {"parameters": {"config": config}} if config else {}
        await self.request(
            "POST",
            f"/v2/repository/models/{_quote(model)}/load",
            json.dumps(document).encode(),
            limit_s=LOAD_LIMIT_S,
        )

    async def unload_model(self, model: str) -> None:
        await self.request(
            "POST", f"/v2/repository/models/{_quote(model)}/unload", b"{}", limit_s=LOAD_LIMIT_S
        )

    async def set_trace(self, model: str, settings: dict[str, list[str]]) -> None:
        document = {
            name: values if name == "trace_level" else values[0]
            for name, values in settings.items()
        }
        await self.request(
            "POST", f"/v2/models/{_quote(model)}/trace/setting", json.dumps(document).encode()
        )

    async def register_memory(self, kind: str, name: str, document: dict[str, Any]) -> None:
        await self.request(
            "POST",
            f"/v2/{kind}sharedmemory/region/{_quote(name)}/register",
            json.dumps(document).encode(),
        )

    async def unregister_memory(self, kind: str) -> None:
        await self.request("POST", f"/v2/{kind}sharedmemory/unregister")


def _quote(name: str) -> str:
    return urllib.parse.quote(name, safe="")


def model_path(model: str, version: str) -> str:
    return f"/v2/models/{_quote(model)}" + (f"/versions/{version}" if version else "")


async def fetch(address: Address, path: str, tls: ssl.SSLContext | None = None) -> bytes:
    """Returns one page, e.g. of metrics. Raises ControlError."""
    control = HttpControl(address, tls)
    try:
        return await control.request("GET", path)
    except ConnectError as error:
        raise ControlError(str(error)) from None
    finally:
        await control.close()
