"""Compressed request bodies and compressed responses over HTTP."""

from __future__ import annotations

import gzip
import json
import zlib
from typing import Any

from tests.differential.case import Case, add_sub_inputs, get, infer, post, refused

BROKEN = "a broken body is the client's error"
PLAIN = json.dumps({"inputs": add_sub_inputs()}).encode()
BINARY_OUT = json.dumps(
    {"inputs": add_sub_inputs(), "parameters": {"binary_data_output": True}}
).encode()
TEXT = json.dumps({"text_input": "hello"}).encode()


def sent(name: str, encoding: str, body: bytes, **options: Any) -> Case:
    return infer(name, "add_sub", body, headers={"Content-Encoding": encoding}, **options)


def asked(name: str, accept: str, body: bytes = PLAIN) -> Case:
    return infer(name, "add_sub", body, headers={"Accept-Encoding": accept})


CASES: list[Case] = [
    sent("gzip", "gzip", gzip.compress(PLAIN)),
    sent("deflate", "deflate", zlib.compress(PLAIN)),
    sent("identity", "identity", PLAIN),
    sent("unknown encoding", "br", PLAIN),
    sent("gzip in capitals", "GZIP", gzip.compress(PLAIN)),
    sent("two encodings", "gzip, deflate", gzip.compress(PLAIN)),
    sent("gzip that is not", "gzip", PLAIN, normalise=("message",)),
    sent(
        "gzip cut off",
        "gzip",
        gzip.compress(PLAIN)[:-12],
        normalise=("message",),
        expect={"status": 400},
        because="a broken body is the client's error",
    ),
    infer(
        "unknown model with a broken body",
        "nowhere",
        b"not gzip",
        headers={"Content-Encoding": "gzip"},
    ),
    infer(
        "unknown model with an unknown encoding",
        "nowhere",
        PLAIN,
        headers={"Content-Encoding": "br"},
    ),
    sent(
        "gzip of more than the limit",
        "gzip",
        gzip.compress(bytes(1 << 27)),
        expect=refused(
            400,
            "Decompressed data size exceeds the maximum allowed value of 67108864 bytes. Use "
            "--http-max-input-size to increase the limit.",
        ),
        because="the text of 2.73",
    ),
    sent("gzip of nothing", "gzip", gzip.compress(b""), normalise=("message",)),
    asked("answer in gzip", "gzip"),
    asked("answer in deflate", "deflate"),
    asked("answer in identity", "identity"),
    asked("answer in anything", "*"),
    asked("answer in what there is not", "br"),
    asked("answer by weight", "gzip;q=0.3, deflate;q=0.8"),
    asked("answer by weight, the other way", "deflate;q=0.3, gzip;q=0.8"),
    asked("answer by weight, identity best", "identity;q=1.0, gzip;q=0.5"),
    asked("answer with equal weights", "gzip, deflate"),
    asked("answer with equal weights, the other way", "deflate, gzip"),
    asked("answer with gzip refused", "gzip;q=0"),
    asked("answer with a broken weight", "gzip;q=high"),
    asked("binary answer in gzip", "gzip", BINARY_OUT),
    asked("binary answer in deflate", "deflate", BINARY_OUT),
    infer(
        "gzip in, gzip out",
        "add_sub",
        gzip.compress(PLAIN),
        headers={"Content-Encoding": "gzip", "Accept-Encoding": "gzip"},
    ),
    infer("an error is not compressed", "nowhere", PLAIN, headers={"Accept-Encoding": "gzip"}),
    get("metadata is not compressed", "/v2/models/add_sub", headers={"Accept-Encoding": "gzip"}),
    post(
        "compressed generate",
        "/v2/models/echo_text/generate",
        gzip.compress(TEXT),
        headers={"Content-Encoding": "gzip"},
    ),
    post(
        "generate answered plainly",
        "/v2/models/echo_text/generate",
        TEXT,
        headers={"Accept-Encoding": "gzip"},
        normalise=("key order",),
    ),
]
