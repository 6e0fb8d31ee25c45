"""The unary RPCs other than inference: health, metadata, configuration, statistics, repository."""

from __future__ import annotations

from tritonclient.grpc import service_pb2 as pb

from tests.differential.case import Case, GrpcCase
from tests.differential.cases.grpc_message import (
    call,
)

HEALTH = [
    call("plain", "ServerLive", pb.ServerLiveRequest()),
    call("plain", "ServerReady", pb.ServerReadyRequest()),
    call("known", "ModelReady", pb.ModelReadyRequest(name="add_sub")),
    call(
        "known version", "ModelReady", pb.ModelReadyRequest(name="versions_specific", version="1")
    ),
    call(
        "version outside the policy",
        "ModelReady",
        pb.ModelReadyRequest(name="versions_specific", version="2"),
    ),
    call("unknown", "ModelReady", pb.ModelReadyRequest(name="nowhere")),
    call("no name", "ModelReady", pb.ModelReadyRequest()),
    call(
        "version that is no number",
        "ModelReady",
        pb.ModelReadyRequest(name="add_sub", version="one"),
    ),
    GrpcCase("health of the server", "Check", (b"",), service="grpc.health.v1.Health"),
    GrpcCase(
        "health of a service", "Check", (b"\x0a\x07add_sub",), service="grpc.health.v1.Health"
    ),
    GrpcCase("unknown method", "Explain", (b"",), normalise=("message",)),
    GrpcCase(
        "unknown service", "Check", (b"",), service="inference.Nothing", normalise=("message",)
    ),
]
METADATA = [
    call("plain", "ServerMetadata", pb.ServerMetadataRequest(), normalise=("version",)),
    *(
        call(model, "ModelMetadata", pb.ModelMetadataRequest(name=model))
        for model in ("add_sub", "types", "image", "reshaped", "versions_latest", "auto_class")
    ),
    call("version", "ModelMetadata", pb.ModelMetadataRequest(name="versions_all", version="1")),
    call("unknown", "ModelMetadata", pb.ModelMetadataRequest(name="nowhere")),
    call("unknown version", "ModelMetadata", pb.ModelMetadataRequest(name="add_sub", version="9")),
    call(
        "version that is no number",
        "ModelMetadata",
        pb.ModelMetadataRequest(name="add_sub", version="one"),
    ),
    call(
        "version that is negative",
        "ModelMetadata",
        pb.ModelMetadataRequest(name="add_sub", version="-2"),
    ),
    call("no name", "ModelMetadata", pb.ModelMetadataRequest()),
    *(
        call(model, "ModelConfig", pb.ModelConfigRequest(name=model))
        for model in (
            "add_sub",
            "types",
            "image",
            "reshaped",
            "classifier",
            "identity_bytes",
            "versions_specific",
            "auto_static",
            "auto_class",
            "instance_info",
            "observed",
        )
    ),
    call("unknown", "ModelConfig", pb.ModelConfigRequest(name="nowhere")),
]
ELSEWHERE = [
    call(
        "version",
        "ModelStatistics",
        pb.ModelStatisticsRequest(name="versions_latest", version="3"),
        normalise=("counts",),
    ),
    call("unknown", "ModelStatistics", pb.ModelStatisticsRequest(name="nowhere")),
    call(
        "unknown version", "ModelStatistics", pb.ModelStatisticsRequest(name="add_sub", version="9")
    ),
    call(
        "version that is no number",
        "ModelStatistics",
        pb.ModelStatisticsRequest(name="add_sub", version="one"),
    ),
    call("all", "RepositoryIndex", pb.RepositoryIndexRequest(), normalise=("any order",)),
    call(
        "ready", "RepositoryIndex", pb.RepositoryIndexRequest(ready=True), normalise=("any order",)
    ),
    call("named repository", "RepositoryIndex", pb.RepositoryIndexRequest(repository_name="mine")),
    call("mode none", "RepositoryModelLoad", pb.RepositoryModelLoadRequest(model_name="add_sub")),
    call(
        "named repository",
        "RepositoryModelLoad",
        pb.RepositoryModelLoadRequest(model_name="add_sub", repository_name="mine"),
    ),
    call(
        "unrecognized parameter",
        "RepositoryModelLoad",
        pb.RepositoryModelLoadRequest(
            model_name="add_sub",
            parameters={"speed": pb.ModelRepositoryParameter(string_param="x")},
        ),
    ),
    call(
        "config of a wrong type",
        "RepositoryModelLoad",
        pb.RepositoryModelLoadRequest(
            model_name="add_sub",
            parameters={"config": pb.ModelRepositoryParameter(bool_param=True)},
        ),
    ),
    call(
        "file of a wrong type",
        "RepositoryModelLoad",
        pb.RepositoryModelLoadRequest(
            model_name="add_sub",
            parameters={"file:1/model.py": pb.ModelRepositoryParameter(string_param="x")},
        ),
    ),
    call(
        "mode none", "RepositoryModelUnload", pb.RepositoryModelUnloadRequest(model_name="add_sub")
    ),
    call(
        "named repository",
        "RepositoryModelUnload",
        pb.RepositoryModelUnloadRequest(model_name="add_sub", repository_name="mine"),
    ),
]
CASES: list[Case] = [*HEALTH, *METADATA, *ELSEWHERE]
