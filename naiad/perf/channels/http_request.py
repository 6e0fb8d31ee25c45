"""Encodes HTTP/1.1 requests, which are encoded once and sent many times."""

from __future__ import annotations

from collections.abc import Sequence

from naiad.perf.channels.address import Address


def request_head(
    address: Address,
    method: str,
    path: str,
    body_bytes: int,
    *,
    headers: Sequence[tuple[str, str]] = (),
    tensor_header_bytes: int = 0,
) -> bytes:
    """Encodes the head of a request.

    `tensor_header_bytes` is the length of the JSON before binary tensors; 0 without such tensors.
    """
    header_names = {name.lower() for name, _ in headers}
    lines = [f"{method} {path} HTTP/1.1", f"Host: {address.authority}"]
    if "user-agent" not in header_names:
        lines.append("User-Agent: naiad-perf")
    lines += [f"{name}: {value}" for name, value in headers]
    if method != "GET":
        lines.append(f"Content-Length: {body_bytes}")
        if "content-type" not in header_names:
            kind = "octet-stream" if tensor_header_bytes else "json"
            lines.append(f"Content-Type: application/{kind}")
    if tensor_header_bytes:
        lines.append(f"Inference-Header-Content-Length: {tensor_header_bytes}")
    return ("\r\n".join(lines) + "\r\n\r\n").encode("latin-1")


def request_bytes(
    address: Address,
    method: str,
    path: str,
    body: bytes,
    *,
    headers: Sequence[tuple[str, str]] = (),
) -> bytes:
    return request_head(address, method, path, len(body), headers=headers) + body
