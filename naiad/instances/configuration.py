"""What the server does for a worker that only completes the config of its model: calls, metrics,
control and log lines, which a model may use before it is loaded."""

from __future__ import annotations

from naiad import log
from naiad.instances.calls import Calls
from naiad.instances.services import Services
from naiad.instances.worker_process import WorkerProcess
from naiad.ipc.messages import (
    CallFlow,
    CancelCall,
    Control,
    LogLine,
    Metric,
    StartCall,
    ToServer,
)


class ConfigurationListener:
    """Attach it to the process; an instance that loads the model in the same process replaces
    it."""

    def __init__(self, process: WorkerProcess, services: Services) -> None:
        self._process = process
        self._calls = Calls(process.channel, services, process.name)

    def on_worker_message(self, message: ToServer) -> None:
        match message:
            case StartCall() | CancelCall() | CallFlow() | Metric() | Control():
                self._calls.on_message(message)
            case LogLine():
                log.emit(
                    message.severity,
                    message.message,
                    message.file,
                    message.line,
                    self._process.pid,
                )

    def on_worker_end(self) -> None:
        pass
