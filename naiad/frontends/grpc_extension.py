"""The RPCs of extensions that this server does not have: shared memory, trace and log settings.

What asks for nothing succeeds: perf_analyzer unregisters all regions before and after every run.
"""

from __future__ import annotations

from google.protobuf.message import Message

from naiad.errors import not_found, unsupported
from naiad.frontends.grpc_unary import unary
from naiad.pb import grpc_service_pb2 as pb
from naiad.transport.grpc_method import UnaryHandler

_NO_SHARED_MEMORY = "Client shared memory is disabled. Start the server with '--allow-client-shm=true' to enable."


def handlers() -> dict[str, UnaryHandler]:
    return {
        "SystemSharedMemoryStatus": unary(pb.SystemSharedMemoryStatusRequest, _system_status),
        "SystemSharedMemoryRegister": unary(pb.SystemSharedMemoryRegisterRequest, _register),
        "SystemSharedMemoryUnregister": unary(pb.SystemSharedMemoryUnregisterRequest, _system_unregister),
        "CudaSharedMemoryStatus": unary(pb.CudaSharedMemoryStatusRequest, _cuda_status),
        "CudaSharedMemoryRegister": unary(pb.CudaSharedMemoryRegisterRequest, _register),
        "CudaSharedMemoryUnregister": unary(pb.CudaSharedMemoryUnregisterRequest, _cuda_unregister),
        "TraceSetting": unary(pb.TraceSettingRequest, _trace_setting),
        "LogSettings": unary(pb.LogSettingsRequest, _log_settings),
    }


def _register(request: Message) -> Message:
    raise unsupported(_NO_SHARED_MEMORY)


def _system_status(request: pb.SystemSharedMemoryStatusRequest) -> pb.SystemSharedMemoryStatusResponse:
    if request.name:
        raise not_found(f"Unable to find system shared memory region: '{request.name}'")
    return pb.SystemSharedMemoryStatusResponse()


def _cuda_status(request: pb.CudaSharedMemoryStatusRequest) -> pb.CudaSharedMemoryStatusResponse:
    if request.name:
        raise not_found(f"Unable to find cuda shared memory region: '{request.name}'")
    return pb.CudaSharedMemoryStatusResponse()


def _system_unregister(request: pb.SystemSharedMemoryUnregisterRequest) -> pb.SystemSharedMemoryUnregisterResponse:
    return pb.SystemSharedMemoryUnregisterResponse()


def _cuda_unregister(request: pb.CudaSharedMemoryUnregisterRequest) -> pb.CudaSharedMemoryUnregisterResponse:
    return pb.CudaSharedMemoryUnregisterResponse()


def _trace_setting(request: pb.TraceSettingRequest) -> pb.TraceSettingResponse:
    raise unsupported("this server does not support tracing")


def _log_settings(request: pb.LogSettingsRequest) -> pb.LogSettingsResponse:
    raise unsupported("this server does not support changing log settings over gRPC")
