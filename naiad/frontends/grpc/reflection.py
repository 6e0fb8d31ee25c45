"""Server reflection (v1 and v1alpha): grpcurl and similar tools ask which services there are
and what their messages look like.

Our protos live in package `naiad`; clients know them as `inference` and `grpc.health.v1`, so the
descriptors are renamed here. The reflection messages themselves are few and flat: they are read and
written by hand.
"""

from __future__ import annotations

from google.protobuf.descriptor_pb2 import DescriptorProto, FileDescriptorProto

from naiad.errors import NaiadError
from naiad.pb import grpc_service_pb2, health_pb2, model_config_pb2
from naiad.protocol.v2.grpc_wire import delimited, read_varint, varint
from naiad.transport.grpc.call import Call
from naiad.transport.grpc.message import Buffer
from naiad.transport.grpc.status import STATUS, GrpcError, Status, retry_fields

# Fields of ServerReflectionRequest and of ServerReflectionResponse.
_FILE_BY_NAME, _FILE_WITH_SYMBOL, _LIST_SERVICES = 3, 4, 7
_ORIGINAL_REQUEST, _FILES, _SERVICES, _ERROR = 0x12, 0x22, 0x32, 0x3A


def _renamed(serialized: bytes, package: str) -> FileDescriptorProto:
    file = FileDescriptorProto.FromString(serialized)
    old = f".{file.package}."
    file.package = package
    file.name = file.name.rpartition("/")[2]
    file.dependency[:] = [name.rpartition("/")[2] for name in file.dependency]

    def rename(message: DescriptorProto) -> None:
        for field in message.field:
            if field.type_name.startswith(old):
                field.type_name = f".{package}.{field.type_name.removeprefix(old)}"
        for nested in message.nested_type:
            rename(nested)

    for message in file.message_type:
        rename(message)
    for service in file.service:
        for method in service.method:
            method.input_type = f".{package}.{method.input_type.removeprefix(old)}"
            method.output_type = f".{package}.{method.output_type.removeprefix(old)}"
    return file


class Descriptors:
    def __init__(self) -> None:
        files = [
            _renamed(grpc_service_pb2.DESCRIPTOR.serialized_pb, "inference"),
            _renamed(model_config_pb2.DESCRIPTOR.serialized_pb, "inference"),
            _renamed(health_pb2.DESCRIPTOR.serialized_pb, "grpc.health.v1"),
        ]
        self._by_name = {file.name: file for file in files}
        self._by_symbol = {symbol: file.name for file in files for symbol in _symbols(file)}
        self.services = [
            f"{file.package}.{service.name}" for file in files for service in file.service
        ]

    def file_by_name(self, name: str) -> list[bytes] | None:
        """The file, followed by every file that it depends on; None when there is no such file."""
        if name not in self._by_name:
            return None
        names = [name]
        for found in names:
            names += (other for other in self._by_name[found].dependency if other not in names)
        return [self._by_name[found].SerializeToString() for found in names]

    def file_with_symbol(self, symbol: str) -> list[bytes] | None:
        return self.file_by_name(self._by_symbol.get(symbol, ""))


def _symbols(file: FileDescriptorProto) -> list[str]:
    symbols: list[str] = []

    def add(prefix: str, message: DescriptorProto) -> None:
        name = f"{prefix}.{message.name}"
        symbols.append(name)
        symbols.extend(f"{name}.{enum.name}" for enum in message.enum_type)
        for nested in message.nested_type:
            add(name, nested)

    for message in file.message_type:
        add(file.package, message)
    symbols.extend(f"{file.package}.{enum.name}" for enum in file.enum_type)
    for service in file.service:
        symbols.append(f"{file.package}.{service.name}")
        symbols.extend(f"{file.package}.{service.name}.{method.name}" for method in service.method)
    return symbols


class Reflection:
    def __init__(self) -> None:
        self._descriptors = Descriptors()

    def open(self, call: Call) -> ReflectionStream:
        return ReflectionStream(self._descriptors, call)


class ReflectionStream:
    def __init__(self, descriptors: Descriptors, call: Call) -> None:
        self._descriptors = descriptors
        self._call = call

    def on_message(self, message: Buffer) -> None:
        request = bytes(message)
        response = delimited(_ORIGINAL_REQUEST, request) + self._respond(*_read_request(request))
        self._call.send([response], len(response))

    def on_refusal(self, message: Buffer, error: NaiadError) -> None:
        self._call.abort(STATUS[error.code], error.message, retry_fields(error))

    def on_half_close(self) -> None:
        self._call.finish(Status.OK)

    def on_cancel(self) -> None:
        pass

    def on_stop(self) -> None:
        self._call.finish(Status.UNAVAILABLE, "the server is shutting down")

    @property
    def is_idle(self) -> bool:
        return True

    def _respond(self, field: int, text: str) -> bytes:
        if field == _LIST_SERVICES:
            services = b"".join(
                delimited(0x0A, delimited(0x0A, name.encode()))
                for name in self._descriptors.services
            )
            return delimited(_SERVICES, services)
        files = None
        if field == _FILE_BY_NAME:
            files = self._descriptors.file_by_name(text)
        elif field == _FILE_WITH_SYMBOL:
            files = self._descriptors.file_with_symbol(text)
        if files is None:
            reason = f"not found: {text}".encode()
            return delimited(_ERROR, b"\x08" + varint(Status.NOT_FOUND) + delimited(0x12, reason))
        return delimited(_FILES, b"".join(delimited(0x0A, file) for file in files))


def _read_request(request: bytes) -> tuple[int, str]:
    """The number and text of the one field that is set, apart from the host, which is ignored."""
    at, field, text = 0, 0, b""
    try:
        while at < len(request):
            tag, at = read_varint(request, at)
            size, at = read_varint(request, at)
            if tag & 7 != 2 or at + size > len(request):
                raise ValueError("not a string field")
            if tag >> 3 != 1:
                field, text = tag >> 3, request[at : at + size]
            at += size
        return field, text.decode()
    except (ValueError, IndexError):
        raise GrpcError(Status.INTERNAL, "Unable to parse request") from None
