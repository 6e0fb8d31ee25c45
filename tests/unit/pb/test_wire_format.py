"""Naiad's messages have Triton's wire format: the same fields, numbers and types, in another
package, within one process."""

from __future__ import annotations

from pathlib import Path

import pytest
from google.protobuf import descriptor_pb2
from google.protobuf.descriptor import FileDescriptor
from google.protobuf.descriptor_pool import DescriptorPool
from tritonclient.grpc import model_config_pb2 as triton_config
from tritonclient.grpc import service_pb2 as triton_service

import naiad
from naiad.pb import grpc_service_pb2, health_pb2, model_config_pb2

PROTO = Path(naiad.__file__).parent.parent / "proto"
CLIENT_PROTO = PROTO / "client"


def fields(
    message: descriptor_pb2.DescriptorProto, package: str, path: str = ""
) -> dict[str, tuple[object, ...]]:
    """Returns every field of a message and of its nested messages: path -> number, type, label,
    type name, oneof."""
    name = f"{path}{message.name}"
    result: dict[str, tuple[object, ...]] = {}
    for field in message.field:
        oneof = (
            message.oneof_decl[field.oneof_index].name if field.HasField("oneof_index") else None
        )
        type_name = field.type_name.removeprefix(f".{package}.")
        result[f"{name}.{field.name}"] = (field.number, field.type, field.label, type_name, oneof)
    for enum in message.enum_type:
        result[f"{name}.{enum.name}"] = tuple((value.name, value.number) for value in enum.value)
    for nested in message.nested_type:
        result |= fields(nested, package, f"{name}.")
    return result


def contents(file: FileDescriptor) -> dict[str, object]:
    proto = descriptor_pb2.FileDescriptorProto()
    file.CopyToProto(proto)
    result: dict[str, object] = {}
    for message in proto.message_type:
        result[message.name] = "message"
        result |= fields(message, proto.package)
    for enum in proto.enum_type:
        result[enum.name] = tuple((value.name, value.number) for value in enum.value)
    for service in proto.service:
        for method in service.method:
            types = tuple(
                name.removeprefix(f".{proto.package}.")
                for name in (method.input_type, method.output_type)
            )
            result[f"{service.name}/{method.name}"] = (
                types,
                method.client_streaming,
                method.server_streaming,
            )
    return result


@pytest.mark.parametrize(
    ("ours", "tritons"),
    [
        (model_config_pb2.DESCRIPTOR, triton_config.DESCRIPTOR),
        (grpc_service_pb2.DESCRIPTOR, triton_service.DESCRIPTOR),
    ],
    ids=["model_config", "grpc_service"],
)
def test_has_the_same_fields_and_numbers_as_triton(
    ours: FileDescriptor, tritons: FileDescriptor
) -> None:
    assert contents(ours) == contents(tritons)


def test_the_definitions_for_clients_compile_and_have_the_names_of_the_wire(
    tmp_path: Path,
) -> None:
    protoc = pytest.importorskip("grpc_tools.protoc", reason="needs grpcio-tools (the dev group)")
    out = tmp_path / "set"
    names = ["model_config.proto", "grpc_service.proto", "health.proto"]
    flags = [f"-I{CLIENT_PROTO}", f"--descriptor_set_out={out}", *names]
    assert protoc.main(["protoc", *flags]) == 0
    found = descriptor_pb2.FileDescriptorSet.FromString(out.read_bytes())
    pool = DescriptorPool()
    for file in found.file:
        pool.Add(file)
    for name, tritons in zip(names, (triton_config, triton_service), strict=False):
        assert contents(pool.FindFileByName(name)) == contents(tritons.DESCRIPTOR)
    assert pool.FindServiceByName("inference.GRPCInferenceService")
    assert pool.FindServiceByName("grpc.health.v1.Health")


@pytest.mark.parametrize("name", ["model_config", "grpc_service", "health"])
def test_the_definitions_for_clients_are_those_of_the_server(name: str) -> None:
    def lines(path: Path) -> list[str]:
        text = path.read_text().partition("\nsyntax")[2]
        return [line for line in text.splitlines() if not line.startswith(("package", "import"))]

    ours, clients = (lines(folder / f"{name}.proto") for folder in (PROTO, CLIENT_PROTO))
    assert [line.replace("naiad.", "inference.") for line in ours] == clients


def test_json_has_the_field_order_of_triton() -> None:
    """Triton prints fields in the order of declaration, so Naiad must declare them in the same
    order for GET .../config."""
    for name, message in model_config_pb2.DESCRIPTOR.message_types_by_name.items():
        tritons = triton_config.DESCRIPTOR.message_types_by_name[name]
        assert [field.name for field in message.fields] == [field.name for field in tritons.fields]


def test_files_have_their_own_names_in_the_descriptor_pool() -> None:
    for module in (model_config_pb2, grpc_service_pb2, health_pb2):
        assert module.DESCRIPTOR.name.startswith("naiad/pb/")
        assert module.DESCRIPTOR.package == "naiad"


def test_each_parses_the_bytes_of_the_other() -> None:
    theirs = triton_service.ModelInferRequest(model_name="m", raw_input_contents=[b"\0\1"])
    theirs.parameters["sequence_id"].uint64_param = 2**64 - 1
    ours = grpc_service_pb2.ModelInferRequest.FromString(theirs.SerializeToString())
    assert ours.parameters["sequence_id"].uint64_param == 2**64 - 1
    assert ours.SerializeToString(deterministic=True) == theirs.SerializeToString(
        deterministic=True
    )


def test_health_messages_follow_the_standard() -> None:
    assert (
        health_pb2.HealthCheckResponse(
            status=health_pb2.HealthCheckResponse.SERVING
        ).SerializeToString()
        == b"\x08\x01"
    )
    assert health_pb2.HealthCheckRequest(service="x").SerializeToString() == b"\x0a\x01x"
