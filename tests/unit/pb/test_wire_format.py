"""Our messages are Triton's on the wire: the same fields, numbers and types, under another package,
in the same process."""

from __future__ import annotations

import pytest
from google.protobuf import descriptor_pb2
from google.protobuf.descriptor import FileDescriptor
from tritonclient.grpc import model_config_pb2 as triton_config
from tritonclient.grpc import service_pb2 as triton_service

from naiad.pb import grpc_service_pb2, health_pb2, model_config_pb2


def fields(
    message: descriptor_pb2.DescriptorProto, package: str, path: str = ""
) -> dict[str, tuple[object, ...]]:
    """Every field of a message and of the messages inside it: path -> number, type, label, type
    name, oneof."""
    name = f"{path}{message.name}"
    found: dict[str, tuple[object, ...]] = {}
    for field in message.field:
        oneof = (
            message.oneof_decl[field.oneof_index].name if field.HasField("oneof_index") else None
        )
        type_name = field.type_name.removeprefix(f".{package}.")
        found[f"{name}.{field.name}"] = (field.number, field.type, field.label, type_name, oneof)
    for enum in message.enum_type:
        found[f"{name}.{enum.name}"] = tuple((value.name, value.number) for value in enum.value)
    for nested in message.nested_type:
        found |= fields(nested, package, f"{name}.")
    return found


def contents(file: FileDescriptor) -> dict[str, object]:
    proto = descriptor_pb2.FileDescriptorProto()
    file.CopyToProto(proto)
    found: dict[str, object] = {}
    for message in proto.message_type:
        found[message.name] = "message"
        found |= fields(message, proto.package)
    for enum in proto.enum_type:
        found[enum.name] = tuple((value.name, value.number) for value in enum.value)
    for service in proto.service:
        for method in service.method:
            types = tuple(
                name.removeprefix(f".{proto.package}.")
                for name in (method.input_type, method.output_type)
            )
            found[f"{service.name}/{method.name}"] = (
                types,
                method.client_streaming,
                method.server_streaming,
            )
    return found


@pytest.mark.parametrize(
    ("ours", "tritons"),
    [
        (model_config_pb2.DESCRIPTOR, triton_config.DESCRIPTOR),
        (grpc_service_pb2.DESCRIPTOR, triton_service.DESCRIPTOR),
    ],
    ids=["model_config", "grpc_service"],
)
def test_same_fields_and_numbers_as_triton(ours: FileDescriptor, tritons: FileDescriptor) -> None:
    assert contents(ours) == contents(tritons)


def test_json_field_order_is_tritons() -> None:
    """Triton prints fields in declaration order; ours must be declared alike for GET .../config to
    match."""
    for name, message in model_config_pb2.DESCRIPTOR.message_types_by_name.items():
        tritons = triton_config.DESCRIPTOR.message_types_by_name[name]
        assert [field.name for field in message.fields] == [field.name for field in tritons.fields]


def test_files_have_names_of_our_own_in_the_descriptor_pool() -> None:
    for module in (model_config_pb2, grpc_service_pb2, health_pb2):
        assert module.DESCRIPTOR.name.startswith("naiad/pb/")
        assert module.DESCRIPTOR.package == "naiad"


def test_bytes_of_one_are_read_by_the_other() -> None:
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
