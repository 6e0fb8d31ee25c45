"""The part of a ModelConfig that framework backends read.

In:  `LoadArguments.model_config`, JSON. Out: typed structs, with the names of config.pbtxt.
     Methods convert `parameters` to numbers and flags.
"""

from __future__ import annotations

import os
from typing import Any

import msgspec

from naiad.core.datatype import BY_CONFIG_NAME
from naiad.errors import invalid_arg
from naiad.ipc.work import LoadArguments
from naiad.machine.cpus import usable_cpus

CPU_CORES = "CPU_CORES"
"""The parameter that says on how many cores each instance runs."""
VARIABLE_PREFIX = "ENV:"
"""The parameter `ENV:NAME` is the environment variable NAME of the model's processes."""


class Reshape(msgspec.Struct, frozen=True):
    shape: list[int] = []


class TensorConfig(msgspec.Struct, frozen=True):
    name: str
    data_type: str = "TYPE_INVALID"
    dims: list[int] = []
    reshape: Reshape | None = None
    optional: bool = False
    allow_ragged_batch: bool = False

    @property
    def datatype(self) -> str:
        """The wire name, such as FP32."""
        return BY_CONFIG_NAME[self.data_type].name

    @property
    def model_dims(self) -> list[int]:
        """The dims that the model itself sees, without the batch dimension."""
        return self.dims if self.reshape is None else self.reshape.shape


class BatchTensor(msgspec.Struct, frozen=True):
    """A `batch_input` or `batch_output`."""

    kind: str
    target_name: list[str] = []
    data_type: str = "TYPE_INVALID"
    source_input: list[str] = []


class ControlInput(msgspec.Struct, frozen=True):
    name: str


class StateTensor(msgspec.Struct, frozen=True):
    input_name: str
    output_name: str
    data_type: str = "TYPE_INVALID"
    dims: list[int] = []


class SequenceBatching(msgspec.Struct, frozen=True):
    control_input: list[ControlInput] = []
    state: list[StateTensor] = []


class Accelerator(msgspec.Struct, frozen=True):
    name: str
    parameters: dict[str, str] = {}


class Accelerators(msgspec.Struct, frozen=True):
    gpu_execution_accelerator: list[Accelerator] = []
    cpu_execution_accelerator: list[Accelerator] = []


class Graph(msgspec.Struct, frozen=True):
    level: int = 0


class Optimization(msgspec.Struct, frozen=True):
    graph: Graph = Graph()
    execution_accelerators: Accelerators = Accelerators()


class InstanceGroup(msgspec.Struct, frozen=True):
    kind: str = "KIND_AUTO"
    count: int = 1


class ModelOperations(msgspec.Struct, frozen=True):
    op_library_filename: list[str] = []


class Parameter(msgspec.Struct, frozen=True):
    string_value: str = ""


_TRUE = frozenset({"1", "true", "yes", "on"})
_FALSE = frozenset({"0", "false", "no", "off"})


class ServedConfig(msgspec.Struct, frozen=True):
    name: str
    platform: str = ""
    runtime: str = ""
    max_batch_size: int = 0
    input: list[TensorConfig] = []
    output: list[TensorConfig] = []
    batch_input: list[BatchTensor] = []
    batch_output: list[BatchTensor] = []
    parameters: dict[str, Parameter] = {}
    optimization: Optimization = Optimization()
    sequence_batching: SequenceBatching | None = None
    dynamic_batching: dict[str, Any] | None = None
    instance_group: list[InstanceGroup] = []
    model_operations: ModelOperations = ModelOperations()

    @property
    def is_batched(self) -> bool:
        return self.max_batch_size > 0

    @property
    def states(self) -> list[StateTensor]:
        return self.sequence_batching.state if self.sequence_batching is not None else []

    @property
    def controls(self) -> list[str]:
        """The names of the control inputs."""
        if self.sequence_batching is None:
            return []
        return [control.name for control in self.sequence_batching.control_input]

    @property
    def num_cpu_instances(self) -> int:
        counts = [max(group.count, 1) for group in self.instance_group if group.kind != "KIND_GPU"]
        return sum(counts) or 1

    @staticmethod
    def is_for_server(name: str) -> bool:
        """True for parameters that the server reads for every backend: Triton's and ours are
        written in capitals."""
        return name.isupper() or name.startswith(VARIABLE_PREFIX)

    def has(self, name: str) -> bool:
        return name in self.parameters

    def text(self, name: str, default: str = "") -> str:
        parameter = self.parameters.get(name)
        return default if parameter is None else parameter.string_value

    def integer(self, name: str, default: int) -> int:
        return read_integer(name, self.text(name), default)

    def flag(self, name: str, default: bool) -> bool:
        """Accepts true/false, yes/no, on/off and 1/0, in upper or lower case."""
        text = self.text(name).strip().lower()
        if not text:
            return default
        if text in _TRUE or text in _FALSE:
            return text in _TRUE
        raise invalid_arg(
            f"parameter '{name}' of model '{self.name}' is '{self.text(name)}', "
            "expected true or false"
        )

    def threads(self, *names: str) -> int:
        """Returns the thread count that one of these parameters sets.

        By default, it is the number of cores of the instance (`CPU_CORES`), or the CPUs that the
        process may use are divided among the model's instances. Frameworks would use every core in
        each process, and the instances would slow each other down.
        """
        for name in (*names, CPU_CORES):
            count = self.integer(name, 0)
            if count > 0:
                return count
        return max(usable_cpus() // self.num_cpu_instances, 1)

    def openmp_threads(self, *names: str) -> int:
        """Like `threads`, but without such a parameter, the variables with which users set the
        threads of PyTorch have precedence over an equal share."""
        if not any(self.integer(name, 0) > 0 for name in names):
            for variable in ("OMP_NUM_THREADS", "MKL_NUM_THREADS"):
                # OpenMP accepts a list, for nested parallel sections.
                first = os.environ.get(variable, "").partition(",")[0].strip()
                if first.isdecimal() and int(first) > 0:
                    return int(first)
        return self.threads(*names)


def read_config(arguments: LoadArguments) -> ServedConfig:
    return msgspec.json.decode(arguments.model_config, type=ServedConfig)


def read_integer(name: str, text: str, default: int) -> int:
    if not text.strip():
        return default
    try:
        return int(text)
    except ValueError:
        raise invalid_arg(f"parameter '{name}' is '{text}', expected a whole number") from None
