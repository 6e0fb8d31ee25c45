"""The RPCs of the small extensions: clients' shared memory, trace settings, log settings."""

from __future__ import annotations

from naiad import log
from naiad.core.identity import Identity
from naiad.errors import invalid_arg, unsupported
from naiad.frontends.core import Core
from naiad.frontends.grpc.unary import SlowCalls, unary
from naiad.frontends.http.settings import check_model
from naiad.pb import grpc_service_pb2 as pb
from naiad.shm.region import CUDA, SYSTEM
from naiad.shm.region_table import owner_of
from naiad.transport.grpc.method import UnaryHandler

_LOG_SWITCHES = ("log_info", "log_warning", "log_error")


class Extensions:
    def __init__(self, core: Core, slow: SlowCalls) -> None:
        self._core = core
        self._regions = core.regions
        self._tracing = core.tracing
        self._slow = slow

    def handlers(self) -> dict[str, UnaryHandler]:
        return {
            "SystemSharedMemoryStatus": unary(
                pb.SystemSharedMemoryStatusRequest, self._system_status
            ),
            "SystemSharedMemoryRegister": unary(
                pb.SystemSharedMemoryRegisterRequest, self._system_register
            ),
            "SystemSharedMemoryUnregister": unary(
                pb.SystemSharedMemoryUnregisterRequest, self._system_unregister
            ),
            "CudaSharedMemoryStatus": unary(pb.CudaSharedMemoryStatusRequest, self._cuda_status),
            "CudaSharedMemoryRegister": self._slow.unary(
                pb.CudaSharedMemoryRegisterRequest, self._cuda_register
            ),
            "CudaSharedMemoryUnregister": unary(
                pb.CudaSharedMemoryUnregisterRequest, self._cuda_unregister
            ),
            "TraceSetting": unary(pb.TraceSettingRequest, self._trace_setting, _model_name),
            "LogSettings": unary(pb.LogSettingsRequest, _log_settings),
        }

    # Shared memory.

    def _system_status(
        self, request: pb.SystemSharedMemoryStatusRequest, identity: Identity | None
    ) -> pb.SystemSharedMemoryStatusResponse:
        kind = pb.SystemSharedMemoryStatusResponse.RegionStatus
        found = self._regions.status(SYSTEM, request.name, owner_of(identity))
        return pb.SystemSharedMemoryStatusResponse(
            regions={region.name: kind(**region.describe()) for region in found}
        )

    def _system_register(
        self, request: pb.SystemSharedMemoryRegisterRequest, identity: Identity | None
    ) -> pb.SystemSharedMemoryRegisterResponse:
        self._regions.register_system(
            request.name,
            request.key,
            request.offset,
            request.byte_size,
            owner_of(identity),
        )
        return pb.SystemSharedMemoryRegisterResponse()

    def _system_unregister(
        self, request: pb.SystemSharedMemoryUnregisterRequest, identity: Identity | None
    ) -> pb.SystemSharedMemoryUnregisterResponse:
        self._regions.unregister(SYSTEM, request.name, owner_of(identity))
        return pb.SystemSharedMemoryUnregisterResponse()

    def _cuda_status(
        self, request: pb.CudaSharedMemoryStatusRequest, identity: Identity | None
    ) -> pb.CudaSharedMemoryStatusResponse:
        kind = pb.CudaSharedMemoryStatusResponse.RegionStatus
        found = self._regions.status(CUDA, request.name, owner_of(identity))
        return pb.CudaSharedMemoryStatusResponse(
            regions={region.name: kind(**region.describe()) for region in found}
        )

    async def _cuda_register(
        self, request: pb.CudaSharedMemoryRegisterRequest, identity: Identity | None
    ) -> pb.CudaSharedMemoryRegisterResponse:
        await self._regions.register_cuda(
            request.name,
            request.raw_handle,
            request.device_id,
            request.byte_size,
            owner_of(identity),
        )
        return pb.CudaSharedMemoryRegisterResponse()

    def _cuda_unregister(
        self, request: pb.CudaSharedMemoryUnregisterRequest, identity: Identity | None
    ) -> pb.CudaSharedMemoryUnregisterResponse:
        self._regions.unregister(CUDA, request.name, owner_of(identity))
        return pb.CudaSharedMemoryUnregisterResponse()

    # Trace settings.

    def _trace_setting(
        self, request: pb.TraceSettingRequest, identity: Identity | None
    ) -> pb.TraceSettingResponse:
        check_model(self._core, request.model_name)
        if request.settings:
            self._tracing.update(
                request.model_name,
                {name: list(setting.value) or None for name, setting in request.settings.items()},
            )
        kind = pb.TraceSettingResponse.SettingValue
        shown = self._tracing.shown(request.model_name)
        return pb.TraceSettingResponse(
            settings={name: kind(value=values) for name, values in shown.items()}
        )


def _model_name(request: pb.TraceSettingRequest) -> str:
    return request.model_name


# Log settings.


def _log_settings(
    request: pb.LogSettingsRequest, identity: Identity | None
) -> pb.LogSettingsResponse:
    changes: dict[str, str | bool | int] = {}
    for name, setting in request.settings.items():
        kind = setting.WhichOneof("parameter_choice")
        if name == "log_file":
            raise unsupported("log file location can not be updated through network protocol")
        if name in _LOG_SWITCHES:
            if kind != "bool_param":
                raise invalid_arg(f"expect boolean for '{name}'")
            changes[name] = setting.bool_param
        elif name == "log_verbose_level":
            if kind != "uint32_param":
                raise invalid_arg(f"expect int32 for '{name}'")
            changes[name] = setting.uint32_param
        elif name == "log_format":
            if kind != "string_param":
                raise invalid_arg(f"expect string for '{name}'")
            if setting.string_param not in log.FORMATS:
                raise invalid_arg(f"invalid argument for log_format, got: {setting.string_param}")
            changes[name] = setting.string_param
    log.update(changes)
    return pb.LogSettingsResponse(
        settings={name: _shown(value) for name, value in log.shown_settings().items()}
    )


def _shown(value: str | bool | int) -> pb.LogSettingsResponse.SettingValue:
    kind = pb.LogSettingsResponse.SettingValue
    if isinstance(value, bool):
        return kind(bool_param=value)
    return kind(uint32_param=value) if isinstance(value, int) else kind(string_param=value)
