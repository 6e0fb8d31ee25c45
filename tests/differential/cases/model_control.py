"""Loading and unloading in explicit mode. Each case depends on the cases before it."""

from __future__ import annotations

import base64
import json
from typing import Any

from tritonclient.grpc import service_pb2 as pb

from tests.differential.case import Case, GrpcCase, get, health, infer, post, tensor
from tests.differential.cases.grpc_message import call, described, request

ANY = {"inputs": [tensor("ANY", "INT32", [1], [0])]}
CONFIG = {
    "name": "with_parameter",
    "backend": "python",
    "input": [{"name": "ANY", "data_type": "TYPE_INT32", "dims": [1]}],
    "output": [{"name": "WORD", "data_type": "TYPE_STRING", "dims": ["1"]}],
    "parameters": {"greeting": {"string_value": "good evening"}},
}


HELLO = {
    "json": {
        "model_name": "with_parameter",
        "model_version": "1",
        "outputs": [{"name": "WORD", "datatype": "BYTES", "shape": [1], "data": ["hello"]}],
    }
}
LASTS = (
    "a load without a config uses the repository's; "
    "the genuine server sometimes keeps the config of an earlier request"
)
WRONG: dict[str, Any] = {
    "expect": {"status": 400},
    "because": "a wrong request is the client's error, not the server's",
}
TRAVERSAL = {
    "code": "INVALID_ARGUMENT",
    "message": "invalid model name '../main/add_sub', model name must not contain path traversal "
    "characters",
}
NUL = {
    "code": "INVALID_ARGUMENT",
    "message": "invalid model name 'a\x00b', model name must not contain path traversal characters",
}
EMPTY = {
    "code": "INVALID_ARGUMENT",
    "message": "Model name cannot be empty. Please enter a valid name to deploy.",
}
NOTHING: dict[str, Any] = {}


def load(name: str, model: str, parameters: Any = None, **options: Any) -> Case:
    body = b"" if parameters is None else {"parameters": parameters}
    return post(
        f"load: {name}",
        f"/v2/repository/models/{model}/load",
        body,
        is_settled_first=True,
        **options,
    )


def unload(name: str, model: str, body: Any = b"", **options: Any) -> Case:
    return post(
        f"unload: {name}",
        f"/v2/repository/models/{model}/unload",
        body,
        is_settled_first=True,
        **options,
    )


def index(name: str, body: Any = b"") -> Case:
    return post(
        f"index: {name}",
        "/v2/repository/index",
        body,
        is_settled_first=True,
        normalise=("load reason", "any order"),
    )


def grpc_load(name: str, model: str, expect: dict[str, Any] = NOTHING, **parameters: Any) -> Case:
    because = "names are checked first since 2.73" if expect else ""
    return call(
        name,
        "RepositoryModelLoad",
        pb.RepositoryModelLoadRequest(model_name=model, parameters=parameters),
        expect=expect,
        because=because,
    )


def grpc_infer(name: str, model: str) -> GrpcCase:
    case = call(
        name, "ModelInfer", request(model, [described("ANY", "INT32", [1], int_contents=[0])])
    )
    assert isinstance(case, GrpcCase)
    return case


FAILING = (
    "raises",
    "syntax_error",
    "no_execute",
    "no_class",
    "missing_import",
    "unknown_field",
    "another_name",
    "unknown_backend",
)
CASES: list[Case] = [
    health("ready with no model loaded", "ready"),
    index("at the start"),
    index("ready ones at the start", {"ready": True}),
    get("metadata before loading", "/v2/models/plain"),
    get("config before loading", "/v2/models/plain/config"),
    get("readiness before loading", "/v2/models/plain/ready"),
    infer("infer before loading", "plain", ANY),
    grpc_infer("before loading", "plain"),
    get("statistics before loading", "/v2/models/plain/stats"),
    load("a model", "plain"),
    get("readiness after loading", "/v2/models/plain/ready"),
    infer("infer after loading", "plain", ANY),
    grpc_infer("after loading", "plain"),
    load("the same again", "plain"),
    load("two versions", "two_versions"),
    index("after loading", {"ready": True}),
    load("an unknown model", "nowhere"),
    *(
        load(f"a model that cannot: {model}", model, normalise=("load reason",))
        for model in FAILING
    ),
    load("half of its versions", "half_good", normalise=("load reason",)),
    infer("infer of a model that failed", "raises", ANY),
    infer("infer of a model that failed in part", "half_good", ANY),
    health("server is ready although models failed", "ready", is_true=False),
    post(
        "index: after failures",
        "/v2/repository/index",
        is_settled_first=True,
        normalise=("load reason", "any order"),
    ),
    unload("a model", "plain"),
    index("after unloading"),
    infer("infer after unloading", "plain", ANY),
    get("metadata after unloading", "/v2/models/plain"),
    get("readiness after unloading", "/v2/models/plain/ready"),
    unload("the same again", "plain"),
    unload("an unknown model", "nowhere"),
    unload("a model that was never loaded", "never_loaded"),
    unload(
        "a version of two is not for the asking",
        "two_versions",
        {"parameters": {"unload_dependents": True}},
    ),
    load("a model whose finalize raises", "finalize_raises"),
    infer("infer of a model whose finalize raises", "finalize_raises", ANY),
    unload("a model whose finalize raises", "finalize_raises"),
    index("after a finalize that raised"),
    load("again after unloading", "plain"),
    infer("infer after loading again", "plain", ANY),
    # overrides
    load("a config of the request", "with_parameter", {"config": json.dumps(CONFIG)}),
    infer("infer with the config of the request", "with_parameter", ANY),
    get("config of the request", "/v2/models/with_parameter/config"),
    load("back to the config of the repository", "with_parameter"),
    infer(
        "infer with the config of the repository",
        "with_parameter",
        ANY,
        expect=HELLO,
        because=LASTS,
    ),
    load("a config that is no JSON", "with_parameter", {"config": "{"}, normalise=("load reason",)),
    load(
        "a config with an unknown field",
        "with_parameter",
        {"config": '{"colour": "blue"}'},
        normalise=("load reason",),
    ),
    load("a config that is a number", "with_parameter", {"config": 7}),
    load(
        "an unknown parameter", "with_parameter", {"speed": "fast"}, normalise=("message",), **WRONG
    ),
    load(
        "an unknown parameter that is a number",
        "with_parameter",
        {"speed": 7},
        normalise=("message",),
    ),
    load(
        "a file without a config",
        "with_parameter",
        {"file:1/model.py": base64.b64encode(b"x").decode()},
        normalise=("message",),
    ),
    load("parameters that are a list", "with_parameter", [1], normalise=("parser",)),
    post(
        "load: a body that is no JSON",
        "/v2/repository/models/with_parameter/load",
        b"{",
        normalise=("parser",),
    ),
    infer("infer after refused loads", "with_parameter", ANY, expect=HELLO, because=LASTS),
    unload("a body that is no JSON", "with_parameter", b"{", normalise=("parser",)),
    unload(
        "unload_dependents that is a string",
        "with_parameter",
        {"parameters": {"unload_dependents": "yes"}},
    ),
    # gRPC
    grpc_load("a model", "never_loaded"),
    grpc_infer("loaded by gRPC", "never_loaded"),
    grpc_load("an unknown model", "nowhere"),
    grpc_load(
        "a config of the request",
        "with_parameter",
        config=pb.ModelRepositoryParameter(string_param=json.dumps(CONFIG)),
    ),
    call(
        "a model",
        "RepositoryModelUnload",
        pb.RepositoryModelUnloadRequest(model_name="never_loaded"),
    ),
    call(
        "an unknown model",
        "RepositoryModelUnload",
        pb.RepositoryModelUnloadRequest(model_name="nowhere"),
    ),
    call(
        "unload_dependents of a wrong type",
        "RepositoryModelUnload",
        pb.RepositoryModelUnloadRequest(
            model_name="plain",
            parameters={"unload_dependents": pb.ModelRepositoryParameter(string_param="x")},
        ),
    ),
    # what leaves the index
    load("a model without versions", "no_versions"),
    # names
    load("a name with a parent folder", "..%2Fmain%2Fadd_sub", normalise=("message",), **WRONG),
    load("a name of dots", "..", normalise=("message",)),
    load("a name with a blank", "a%20b", normalise=("message",)),
    load("a name with a quote", "a'b", normalise=("message",)),
    load("a long name", "a" * 4000, normalise=("message",)),
    grpc_load("a name with a parent folder", "../main/add_sub", TRAVERSAL),
    grpc_load("an empty name", "", EMPTY),
    grpc_load("a name with a NUL", "a\x00b", NUL),
]
