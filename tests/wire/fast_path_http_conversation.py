"""Conversations of requests that repeat themselves, in binary and in JSON, held with a server whose
fast paths are on and with one whose fast paths are off."""

from __future__ import annotations

import json
import struct
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import TypeVar

from naiad.frontends.http.options import HttpOptions
from tests.fakes.core import FakeCore
from tests.wire.http_client import Client, Reply, on_uvloop
from tests.wire.http_rig import HttpServer, serving

T = TypeVar("T")

FAST, FULL = HttpOptions(fast_paths=True), HttpOptions(fast_paths=False)
LENGTH = "Inference-Header-Content-Length"
_BINARY_OUTPUT = {"parameters": {"binary_data": True}}


def floats(*values: float) -> bytes:
    return struct.pack(f"<{len(values)}f", *values)


def ask_binary(
    data: bytes,
    *,
    model: str = "id_fp32",
    id: str | None = None,
    is_binary: bool = True,
    headers: str = "",
) -> bytes:
    """The bytes of a whole request."""
    document: dict[str, object] = {} if id is None else {"id": id}
    document["inputs"] = [
        {
            "name": "IN",
            "datatype": "FP32",
            "shape": [len(data) // 4],
            "parameters": {"binary_data_size": len(data)},
        },
    ]
    document["outputs"] = [{"name": "OUT"} | (_BINARY_OUTPUT if is_binary else {})]
    text = json.dumps(document, separators=(",", ":")).encode()
    lengths = f"Content-Length: {len(text) + len(data)}\r\n{LENGTH}: {len(text)}\r\n"
    return (
        f"POST /v2/models/{model}/infer HTTP/1.1\r\nHost: t\r\n{lengths}{headers}\r\n".encode()
        + text
        + data
    )


@asynccontextmanager
async def connected(
    core: FakeCore | None = None, options: HttpOptions = FAST
) -> AsyncIterator[tuple[HttpServer, Client]]:
    async with serving(options, core) as server:
        client = await Client.connect(server.port)
        try:
            yield server, client
        finally:
            await client.close()


async def talk(client: Client, data: bytes) -> Reply:
    client.send(data)
    return await client.read()


def ask_json(
    data: str,
    *,
    model: str = "id_fp32",
    shape: str = "[2]",
    start: str = "",
    end: str = "",
    headers: str = "",
    datatype: str = "FP32",
) -> bytes:
    """The bytes of a whole request; `data` is what is written in place of the numbers."""
    tensor = f'{{"name":"IN","shape":{shape},"datatype":"{datatype}","data":{data}}}'
    body = f'{{{start}"inputs":[{tensor}]{end}}}'.encode()
    return (
        f"POST /v2/models/{model}/infer HTTP/1.1\r\nHost: t\r\n"
        f"Content-Length: {len(body)}\r\n{headers}\r\n".encode()
        + body
    )


def add_sub(left: list[float], right: list[float]) -> bytes:
    inputs = [
        {"name": name, "shape": [1, 16], "datatype": "FP32", "data": data}
        for name, data in (("INPUT0", left), ("INPUT1", right))
    ]
    body = json.dumps({"inputs": inputs}).encode()
    return b"POST /v2/models/add_sub/infer HTTP/1.1\r\nHost: t\r\nContent-Length: %d\r\n\r\n%b" % (
        len(body),
        body,
    )


def check_both_paths(
    converse: Callable[[HttpServer, Client], Awaitable[list[T]]], num_requests: int
) -> None:
    """`converse` gets the same with and without the fast path."""
    seen: list[list[T]] = []

    @on_uvloop
    async def run(options: HttpOptions) -> None:
        async with connected(options=options) as (server, client):
            seen.append(await converse(server, client))
            assert server.frontend.num_requests == num_requests
            assert options.fast_paths or server.core.num_validated == 0

    run(FAST)
    run(FULL)
    assert seen[0] == seen[1]


BINARY = {
    "the same again": [ask_binary(floats(n, 2)) for n in range(5)],
    "with ids": [
        ask_binary(floats(n, 2), id=id)
        for n, id in enumerate(["1", "2", "30", "4", "50", "51", 'a"b', "ü", "x" * 200, "6", "7"])
    ],
    "with and without": [
        ask_binary(floats(n, 2), id=id)
        for n, id in enumerate([None, "1", None, None, "2", "3", None])
    ],
    "other sizes": [ask_binary(floats(*range(n))) for n in (2, 2, 3, 3, 2, 0, 0, 2, 2)],
    "as many bytes, other text": [
        ask_binary(floats(1, 2), id=id) for id in ("ab", "cd", '"b', "ef")
    ],
    "other heads": [ask_binary(floats(n, 2), headers=f"X-N: {n % 2}\r\n") for n in range(6)],
    "answers in JSON": [ask_binary(floats(n, 2), is_binary=False) for n in range(4)],
    "compressed answers": [
        ask_binary(floats(n, 2), headers="Accept-Encoding: gzip\r\n") for n in range(4)
    ],
    "answers with parameters": [
        ask_binary(floats(n, 2), model="with_parameters") for n in range(4)
    ],
    "unknown models": [
        ask_binary(floats(1, 2)),
        ask_binary(floats(1, 2), model="no_fp32"),
        ask_binary(floats(1, 2)),
        ask_binary(floats(1, 2), model="no_fp32"),
    ],
    "a wrong head in between": [
        ask_binary(floats(1, 2)),
        ask_binary(floats(1, 2)),
        ask_binary(floats(1, 2)).replace(b'"FP32"', b'"FP64"'),
        ask_binary(floats(1, 2)),
    ],
    "larger than copies": [ask_binary(floats(*range(3000))) for _ in range(4)],
}

OUTPUTS = ',"outputs":[{"name":"OUT","parameters":{"binary_data":true}}]'
WIDE = "[" + ",".join(["1.5"] * 1000) + "]"
JSON = {
    "other numbers": [
        ask_json(data)
        for data in (
            "[1,2]",
            "[3,4]",
            "[5.25,-6]",
            "[1e3,0.1]",
            "[100000,2]",
            "[ 7 , 8 ]",
            "[-0,-0.0]",
            "[1,2]",
        )
    ],
    "two tensors": [add_sub([n / 3] * 16, [float(n**9)] * 16) for n in range(12)],
    "lists in lists": [
        ask_json(f"[[{n},{n / 7}],[3,4]]", model="id_2d", shape="[2,2]") for n in range(4)
    ],
    "of another depth": [
        ask_json(data, model="id_2d", shape="[2,2]")
        for data in ("[[1,2],[3,4]]", "[1,2,3,4]", "[[1,2],3,4]", "[[5,6],[7,8]]")
    ],
    "with ids": [
        ask_json(f"[{n},2]", start=f'"id":"{id}",')
        for n, id in enumerate(["1", "2", "30", "null", 'a\\"b', "ü", "x" * 200, "6", "7"])
    ],
    "with and without": [
        ask_json(f"[{n},2]", start=start)
        for n, start in enumerate(["", '"id":"1",', "", "", '"id":"2",', '"id":"3",', ""])
    ],
    "lengths of more digits": [
        ask_json(f"[1,2{' ' * n}]") for n in (0, 0, 8, 20, 30, 900, 910, 20, 0, 1)
    ],
    "wrong data": [
        ask_json(data)
        for data in (
            "[1,2]",
            "[1]",
            "[1,2,3]",
            "[1,2]",
            '["1",2]',
            "[1,2",
            "[1,,2]",
            "[null,1]",
            "[NaN,1]",
            "[1e999,1]",
            "[1e39,1]",
            "[]",
            "[1,2]",
        )
    ],
    "wrong text": [
        ask_json("[1,2]"),
        ask_json("[1,2]"),
        ask_json("[1,2]").replace(b'"FP32"', b'"FP64"'),
        ask_json("[1,2]"),
        ask_json("[1,2]").replace(b"IN", b"IX"),
    ],
    "integers": [
        ask_json(f"[{n},2]", model="id_int8", datatype="INT8")
        for n in (1, 2, 127, 128, -128, -129, 1.0, "1e0", "true", 3)
    ],
    "large integers": [
        ask_json(f"[{n},2]", model="id_uint64", datatype="UINT64")
        for n in (1, 2**64 - 1, 2**64, -1, 10**30, 3)
    ],
    "booleans": [
        ask_json(data, model="id_bool", datatype="BOOL")
        for data in ("[true,false]", "[false,true]", "[0,1]", '["true",true]')
    ],
    "strings": [
        ask_json(data, model="id_bytes", datatype="BYTES")
        for data in ('["a","b"]', '["c]","d"]', '["e"]', '["f","g"]')
    ],
    "other shapes": [
        ask_json("[1,2]", shape=shape) for shape in ("[2]", "[2]", "[1]", "[1,2]", "[2]")
    ],
    "other heads": [ask_json(f"[{n},2]", headers=f"X-N: {n % 2}\r\n") for n in range(6)],
    "binary answers": [ask_json(f"[{n},2]", end=OUTPUTS) for n in range(4)],
    "binary answers by a parameter": [
        ask_json(f"[{n},2]", end=',"parameters":{"binary_data_output":true}') for n in range(4)
    ],
    "compressed answers": [
        ask_json(f"[{n},2]", headers="Accept-Encoding: gzip\r\n") for n in range(4)
    ],
    "classes": [
        ask_json(
            f"[{n},2,3,4]",
            model="id_b",
            shape="[1,4]",
            end=',"outputs":[{"name":"OUT","parameters":{"classification":2}}]',
        )
        for n in range(4)
    ],
    "answers with parameters": [ask_json(f"[{n},2]", model="with_parameters") for n in range(4)],
    "many numbers": [ask_json(WIDE.replace("1.5", str(n)), shape="[1000]") for n in range(4)],
    "unknown models": [
        ask_json("[1,2]"),
        ask_json("[1,2]", model="no_fp32"),
        ask_json("[1,2]"),
        ask_json("[1,2]", model="no_fp32"),
    ],
    "lengths written in other ways": [
        ask_json("[1,2]").replace(b"Content-Length: ", text)
        for text in (
            b"Content-Length: ",
            b"content-length:",
            b"Content-Length: 0",
            b"CONTENT-LENGTH:\t",
        )
    ]
    * 2,
    "a length that is wrong": [
        ask_json("[1,2]"),
        ask_json("[1,2]"),
        ask_json("[1,2]") + b"\r\n",
        ask_json("[3,4]"),
    ],
}
