"""Requests in JSON that repeat the last one of their connection but for their numbers: the short way gives the bytes that the long way
gives, and is left for whatever is out of the ordinary."""

from __future__ import annotations

import asyncio
import gzip
import json
import re
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import pytest
import uvloop
from hypothesis import given
from hypothesis import strategies as st

from naiad.core.tensor import tensor_from_numpy
from naiad.frontends.http import HttpFrontend
from naiad.frontends.http_options import HttpOptions
from naiad.protocol import v2_json
from naiad.protocol.output_form import OutputForms
from naiad.transport.http1_exchange import Exchange
from tests.unit.transport.http1_rig import FakeTransport
from tests.wire.http_client import Client, on_uvloop
from tests.wire.http_fakes import FakeCore, respond, serving
from tests.wire.test_http_repeated import connected, talk


def ask(
    data: str, *, model: str = "id_fp32", shape: str = "[2]", start: str = "", end: str = "", headers: str = "", datatype: str = "FP32"
) -> bytes:
    """The bytes of a whole request; `data` is what is written in place of the numbers."""
    body = f'{{{start}"inputs":[{{"name":"IN","shape":{shape},"datatype":"{datatype}","data":{data}}}]{end}}}'.encode()
    return f"POST /v2/models/{model}/infer HTTP/1.1\r\nHost: t\r\nContent-Length: {len(body)}\r\n{headers}\r\n".encode() + body


def add_sub(left: list[float], right: list[float]) -> bytes:
    inputs = [{"name": name, "shape": [1, 16], "datatype": "FP32", "data": data} for name, data in (("INPUT0", left), ("INPUT1", right))]
    body = json.dumps({"inputs": inputs}).encode()
    return b"POST /v2/models/add_sub/infer HTTP/1.1\r\nHost: t\r\nContent-Length: %d\r\n\r\n%b" % (len(body), body)


@contextmanager
def long_way_only() -> Iterator[None]:
    """No request has a form, and none is expected again."""

    def none(body: object, data: object, request: object, forms: OutputForms) -> OutputForms:
        return forms

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Exchange, "expect_again", lambda self, again: None)
        patch.setattr(v2_json, "recognise", none)
        yield


async def exchange_bytes(client: Client, request: bytes) -> bytes:
    client.send(request)
    head = await client.reader.readuntil(b"\r\n\r\n")
    length = re.search(rb"Content-Length: ([0-9]+)", head)
    assert length is not None
    return head + await client.reader.readexactly(int(length[1]))


OUTPUTS = ',"outputs":[{"name":"OUT","parameters":{"binary_data":true}}]'
WIDE = "[" + ",".join(["1.5"] * 1000) + "]"
CONVERSATIONS = {
    "other numbers": [ask(data) for data in ("[1,2]", "[3,4]", "[5.25,-6]", "[1e3,0.1]", "[100000,2]", "[ 7 , 8 ]", "[-0,-0.0]", "[1,2]")],
    "two tensors": [add_sub([n / 3] * 16, [float(n**9)] * 16) for n in range(12)],
    "lists in lists": [ask(f"[[{n},{n / 7}],[3,4]]", model="id_2d", shape="[2,2]") for n in range(4)],
    "of another depth": [
        ask(data, model="id_2d", shape="[2,2]") for data in ("[[1,2],[3,4]]", "[1,2,3,4]", "[[1,2],3,4]", "[[5,6],[7,8]]")
    ],
    "with ids": [
        ask(f"[{n},2]", start=f'"id":"{id}",') for n, id in enumerate(["1", "2", "30", "null", 'a\\"b', "ü", "x" * 200, "6", "7"])
    ],
    "with and without": [ask(f"[{n},2]", start=start) for n, start in enumerate(["", '"id":"1",', "", "", '"id":"2",', '"id":"3",', ""])],
    "lengths of more digits": [ask(f"[1,2{' ' * n}]") for n in (0, 0, 8, 20, 30, 900, 910, 20, 0, 1)],
    "wrong data": [
        ask(data)
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
        ask("[1,2]"),
        ask("[1,2]"),
        ask("[1,2]").replace(b'"FP32"', b'"FP64"'),
        ask("[1,2]"),
        ask("[1,2]").replace(b"IN", b"IX"),
    ],
    "integers": [ask(f"[{n},2]", model="id_int8", datatype="INT8") for n in (1, 2, 127, 128, -128, -129, 1.0, "1e0", "true", 3)],
    "large integers": [ask(f"[{n},2]", model="id_uint64", datatype="UINT64") for n in (1, 2**64 - 1, 2**64, -1, 10**30, 3)],
    "booleans": [ask(data, model="id_bool", datatype="BOOL") for data in ("[true,false]", "[false,true]", "[0,1]", '["true",true]')],
    "strings": [ask(data, model="id_bytes", datatype="BYTES") for data in ('["a","b"]', '["c]","d"]', '["e"]', '["f","g"]')],
    "other shapes": [ask("[1,2]", shape=shape) for shape in ("[2]", "[2]", "[1]", "[1,2]", "[2]")],
    "other heads": [ask(f"[{n},2]", headers=f"X-N: {n % 2}\r\n") for n in range(6)],
    "binary answers": [ask(f"[{n},2]", end=OUTPUTS) for n in range(4)],
    "binary answers by a parameter": [ask(f"[{n},2]", end=',"parameters":{"binary_data_output":true}') for n in range(4)],
    "compressed answers": [ask(f"[{n},2]", headers="Accept-Encoding: gzip\r\n") for n in range(4)],
    "classes": [
        ask(f"[{n},2,3,4]", model="id_b", shape="[1,4]", end=',"outputs":[{"name":"OUT","parameters":{"classification":2}}]')
        for n in range(4)
    ],
    "answers with parameters": [ask(f"[{n},2]", model="with_parameters") for n in range(4)],
    "many numbers": [ask(WIDE.replace("1.5", str(n)), shape="[1000]") for n in range(4)],
    "unknown models": [ask("[1,2]"), ask("[1,2]", model="no_fp32"), ask("[1,2]"), ask("[1,2]", model="no_fp32")],
    "lengths written in other ways": [
        ask("[1,2]").replace(b"Content-Length: ", text)
        for text in (b"Content-Length: ", b"content-length:", b"Content-Length: 0", b"CONTENT-LENGTH:\t")
    ]
    * 2,
    "a length that is wrong": [ask("[1,2]"), ask("[1,2]"), ask("[1,2]") + b"\r\n", ask("[3,4]")],
}


@pytest.mark.parametrize("requests", CONVERSATIONS.values(), ids=CONVERSATIONS)
def test_both_ways_give_the_same_bytes(requests: list[bytes]) -> None:
    seen: list[list[bytes]] = []

    @on_uvloop
    async def run() -> None:
        async with connected() as (server, client):
            seen.append([await exchange_bytes(client, request) for request in requests])
            assert server.frontend.num_requests == len(requests)

    run()
    with long_way_only():
        run()
    assert seen[0] == seen[1]


@on_uvloop
async def test_the_short_way_is_taken() -> None:
    async with connected() as (server, client):
        for n in range(5):
            reply = await talk(client, ask(f"[{10**n},2.5]"))
            assert reply.json()["outputs"][0]["data"] == [10**n, 2.5]
        assert server.core.num_again == 4
        for n in range(3):
            await talk(client, ask(f"[[{n},1],[2,3]]", model="id_2d", shape="[2,2]"))
        assert server.core.num_again == 4 + 2
        for id in ("1", "22", "x"):
            reply = await talk(client, ask("[1,2]", start=f'"id":"{id}",'))
            assert reply.json()["id"] == id
        assert server.core.num_again == 4 + 2 + 2


@on_uvloop
async def test_a_new_connection_knows_the_form() -> None:
    async with serving() as server:
        for n in range(3):
            client = await Client.connect(server.port)
            reply = await talk(client, ask(f"[{n},2]"))
            assert reply.json()["outputs"][0]["data"] == [n, 2]
            await client.close()


@on_uvloop
async def test_what_is_too_large_is_refused() -> None:
    """Also when it repeats one that was not."""
    async with serving(HttpOptions(max_input_size=80)) as server:
        client = await Client.connect(server.port)
        for spaces in (0, 1):
            assert (await talk(client, ask(f"[1,2{' ' * spaces}]"))).status == 200
        assert server.core.num_again == 1
        reply = await talk(client, ask(f"[1,2{' ' * 20}]"))
        assert (reply.status, "exceeds the maximum allowed input size" in reply.error()) == (400, True)
        assert server.core.num_again == 1
        await client.close()


@on_uvloop
async def test_pipelined_and_in_pieces() -> None:
    async with connected() as (_, client):
        await talk(client, ask("[0,0]"))
        client.send(b"".join(ask(f"[{n},1]") for n in range(4)))
        assert [(await client.read()).json()["outputs"][0]["data"] for _ in range(4)] == [[n, 1] for n in range(4)]
        whole = ask("[8,9]")
        for at in (10, 60, len(whole) - 3):
            client.send(whole[:at])
            await asyncio.sleep(0)
            client.send(whole[at:])
            assert (await client.read()).json()["outputs"][0]["data"] == [8, 9]


@on_uvloop
async def test_forwarded_headers_and_traces_are_not_lost() -> None:
    async with serving(HttpOptions(header_forward_pattern="x-.*")) as server:
        client = await Client.connect(server.port)
        for n in range(3):
            client.send(ask(f"[{n},2]", model="held", headers="x-a: b\r\n"))
            held = await server.core.next_held()
            assert held.request.parameters == {"x-a": "b"}
            respond(held.request, held.stream, [tensor_from_numpy("OUT", np.array([1, 2], np.float32))])
            await client.read()
        assert server.core.num_again == 0
        await client.close()


@on_uvloop
async def test_a_compressed_request_is_no_pattern_for_one_that_is_not() -> None:
    async with connected() as (server, client):
        packed = gzip.compress(ask("[1,2]").partition(b"\r\n\r\n")[2])
        head = b"POST /v2/models/id_fp32/infer HTTP/1.1\r\nContent-Encoding: gzip\r\nContent-Length: %d\r\n\r\n"
        for _ in range(2):
            assert (await talk(client, head % len(packed) + packed)).status == 200
        plain = ask("[3,4]").partition(b"\r\n\r\n")[2]
        assert len(str(len(plain))) == len(str(len(packed)))
        assert (await talk(client, head % len(plain) + plain)).status == 400
        assert server.core.num_again == 0


# Any bytes at all.


async def written(requests: list[bytes]) -> tuple[list[bytes], bool, int]:
    """What a server without sockets writes after each read."""
    frontend = HttpFrontend(FakeCore(), HttpOptions())  # type: ignore[arg-type]
    connection, transport = frontend.protocol_factory(), FakeTransport()
    connection.connection_made(transport)
    answers: list[bytes] = []
    for request in requests:
        if transport.is_closed or transport.has_eof:
            break
        buffer = connection.get_buffer(-1)
        size = min(len(buffer), len(request))
        buffer[:size] = request[:size]
        connection.buffer_updated(size)
        await asyncio.sleep(0)
        answers.append(transport.take())
    is_closed, num_requests = transport.is_closed, frontend.num_requests
    connection.connection_lost(None)
    return answers, is_closed, num_requests


@st.composite
def conversations(draw: st.DrawFn) -> list[bytes]:
    requests: list[bytes] = []
    for _ in range(draw(st.integers(2, 6))):
        numbers = draw(st.lists(st.sampled_from(["1", "-2", "0.5", "1e3", "1e40", "12345678", "x"]), min_size=2, max_size=2))
        if draw(st.booleans()):
            numbers = ["1", "2"]
        start = draw(st.sampled_from(["", "", '"id":"7",', '"id":"89",']))
        request = ask(f"[{','.join(numbers)}]", start=start)
        if draw(st.integers(0, 2)) == 0:
            at, width = draw(st.integers(0, len(request))), draw(st.integers(0, 3))
            request = (
                request[:at] + draw(st.sampled_from([b"", b"1", b"]", b"}", b" ", b"\r\n", b'"', b"\0", b"G"])) + request[at + width :]
            )
        requests.append(request)
    return requests


@given(conversations())
def test_any_conversation_goes_the_same_way(requests: list[bytes]) -> None:
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        short = runner.run(written(requests))
        with long_way_only():
            assert runner.run(written(requests)) == short
