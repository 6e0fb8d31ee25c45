"""Why a server could not be used, beyond what it said: the wrong port, or a model's wrong name.

In:  the address that failed, or the model that was not found. Out: a sentence to add to the error;
     empty if there is nothing to say.
"""

from __future__ import annotations

import asyncio
import contextlib
import difflib

from naiad.perf.channels.address import Address
from naiad.perf.channels.control import ControlError, ServerControl

PROBE_LIMIT_S = 2.0
_PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\x00\x00\x00\x04\x00\x00\x00\x00\x00"
_SETTINGS_FRAME = 4
_MAX_NAMES = 10


async def port_hint(address: Address, *, is_grpc: bool) -> str:
    """Asks the port which protocol it speaks. A TLS port is not asked."""
    if address.is_tls:
        return ""
    if not is_grpc:
        start = await _ask(address, _PREFACE, 9)
        if len(start) > 3 and start[3] == _SETTINGS_FRAME and not start.startswith(b"HTTP/"):
            return "this looks like the gRPC port: add -i grpc, or use the HTTP port (8000)"
    # The HTTP port may show metrics, too. It sends JSON for /v2, also when it refuses; the metrics
    # port sends an empty page.
    metadata = await _ask(address, _get(address, "/v2"), 1 << 12)
    page = await _ask(address, _get(address, "/metrics"), 1 << 16)
    is_http = metadata.startswith(b"HTTP/1.") and b"{" in metadata
    if not is_http and b"nv_inference" in page and page.startswith(b"HTTP/1.1 200"):
        port = "the gRPC port (8001)" if is_grpc else "the HTTP port (8000)"
        return f"this looks like the metrics port: use {port}"
    if is_grpc and page.startswith(b"HTTP/1."):
        return "this looks like the HTTP port: leave out -i grpc, or use the gRPC port (8001)"
    return ""


def _get(address: Address, path: str) -> bytes:
    head = f"GET {path} HTTP/1.1\r\nHost: {address.authority}\r\nConnection: close\r\n\r\n"
    return head.encode()


async def model_hint(control: ServerControl, model: str) -> str:
    """Which models there are, and which of them was probably meant."""
    try:
        names = sorted(set(await control.model_names()))
    except ControlError:
        return ""
    if not names:
        return "the server has no models"
    near = difflib.get_close_matches(model, [name for name in names if name != model], 1, 0.6)
    shown = ", ".join(names[:_MAX_NAMES]) + (", ..." if len(names) > _MAX_NAMES else "")
    return (f"did you mean '{near[0]}'? " if near else "") + f"The server has: {shown}"


async def _ask(address: Address, data: bytes, size: int) -> bytes:
    """What the port sends, at most `size` bytes; empty if it sends nothing in time."""
    received = b""
    with contextlib.suppress(OSError, TimeoutError):
        async with asyncio.timeout(PROBE_LIMIT_S):
            reader, writer = await asyncio.open_connection(address.host, address.port)
            try:
                writer.write(data)
                while len(received) < size and (part := await reader.read(size - len(received))):
                    received += part
            finally:
                writer.close()
    return received
