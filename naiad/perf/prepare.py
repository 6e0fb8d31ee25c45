"""Prepares a run: asks the server about the model, reads the data and builds every request once.

In:  options. Out: a LoadTarget.
Rule: all errors in options, data or model are raised here, before the first request of the load.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec

from naiad.perf.channels.address import Address, ClientTlsFiles, parse_address, tls_context
from naiad.perf.channels.call import ConnectError
from naiad.perf.channels.control import ControlError, ServerControl, read_model_facts
from naiad.perf.channels.control_grpc import GrpcControl
from naiad.perf.channels.control_http import HttpControl
from naiad.perf.channels.grpc_head import request_block
from naiad.perf.channels.grpc_infer import GrpcInferEncoder
from naiad.perf.channels.hint import model_hint, port_hint
from naiad.perf.channels.http_infer import GenerateEncoder, HttpInferEncoder
from naiad.perf.channels.infer_request import (
    ClientRequest,
    InputTensor,
    batched_requests,
    request_of,
)
from naiad.perf.data import data_file, generated_data, triton_llm
from naiad.perf.data.dataset import Dataset, check_batch_size, check_shape_names
from naiad.perf.data.model_facts import ModelFacts
from naiad.perf.data.output_check import make_check
from naiad.perf.data.prompt_choice import PromptChoice, choose_prompts
from naiad.perf.data.shared_memory import SharedRegions
from naiad.perf.load.driver import DriverOptions
from naiad.perf.load.periodic_loop import PeriodicSteps
from naiad.perf.load.traffic import SequenceTraffic, Traffic
from naiad.perf.measure.token_metrics import TokenCounting
from naiad.perf.measure.window import WindowPlan
from naiad.perf.options import PerfOptions
from naiad.perf.report.digests import make_digest_for
from naiad.settings.option import OptionError

DEFAULT_SEQUENCE_LENGTH = 20
Digest = Callable[[Any], Any]
Check = Callable[[int, Any], str | None]


class LoadTarget(msgspec.Struct):
    traffic: Traffic
    load: DriverOptions
    plan: WindowPlan
    facts: ModelFacts
    control: ServerControl | None = None
    digest: Digest | None = None
    check: Check | None = None
    inputs: list[Any] = []
    """Content of each prepared request, for exports: an ClientRequest or an OpenAI payload."""
    offsets_s: list[float] = []
    """Send times of a replay, relative to its start."""
    regions: SharedRegions | None = None

    async def close(self) -> None:
        if self.control is not None:
            if self.regions is not None:
                await self.regions.close(self.control)
            await self.control.close()


def server_address(options: PerfOptions) -> Address:
    address = parse_address(options.url, 8001 if options.is_grpc else 8000) if options.url else None
    if address is None:
        address = Address("localhost", 8001 if options.is_grpc else 8000)
    return (
        msgspec.structs.replace(address, is_tls=True)
        if options.is_grpc and options.ssl_grpc_use_ssl
        else address
    )


def tls_files(options: PerfOptions, address: Address) -> ClientTlsFiles | None:
    if not address.is_tls:
        return None
    if options.is_grpc:
        return ClientTlsFiles(
            options.ssl_grpc_root_certifications_file,
            options.ssl_grpc_certificate_chain_file,
            options.ssl_grpc_private_key_file,
        )
    return ClientTlsFiles(
        options.ssl_https_ca_certificates_file,
        options.ssl_https_client_certificate_file,
        options.ssl_https_private_key_file,
        bool(options.ssl_https_verify_peer),
        bool(options.ssl_https_verify_host),
    )


def make_control(options: PerfOptions) -> ServerControl:
    address = server_address(options)
    files = tls_files(options, address)
    if options.is_grpc:
        return GrpcControl(
            address, None if files is None else tls_context(files, ["h2"]), options.header
        )
    return HttpControl(
        address, None if files is None else tls_context(files, ["http/1.1"]), options.header
    )


def load_options(options: PerfOptions, *, has_details: bool) -> DriverOptions:
    periodic = options.periodic_concurrency_range
    return DriverOptions(
        options.num_of_sequences,
        options.serial_sequences,
        has_details or bool(options.profile_export_file),
        bool(options.request_rate_range or options.request_intervals or options.replay),
        None
        if periodic is None
        else PeriodicSteps(
            int(periodic.start), int(periodic.end), int(periodic.step), options.request_period
        ),
    )


async def prepare_triton(options: PerfOptions) -> LoadTarget:
    """Prepares a run against a Triton server. Raises OptionError, ControlError, ConnectError."""
    control = make_control(options)
    target: LoadTarget | None = None
    try:
        facts = await _read_facts(options, control)
        target = _triton_target(options, control, facts)
        if target.regions is not None:
            await target.regions.register(control)
        if options.trace_level:
            await control.set_trace(options.model, _trace_settings(options))
    except BaseException:
        await (control.close() if target is None else target.close())
        raise
    return target


async def _read_facts(options: PerfOptions, control: ServerControl) -> ModelFacts:
    """Raises ControlError or ConnectError, with what is probably wrong."""
    try:
        return await read_model_facts(
            control, options.model, options.model_version, options.bls_composing_models
        )
    except (ControlError, ConnectError) as error:
        if "unknown model" in str(error):
            hint = await model_hint(control, options.model)
        else:
            hint = await port_hint(server_address(options), is_grpc=options.is_grpc)
        if not hint:
            raise
        raise ControlError(f"{_printable(str(error))}; {hint}") from None


def _printable(message: str) -> str:
    """Bytes of another protocol say nothing to a person."""
    return message.partition(": b'")[0]


def _trace_settings(options: PerfOptions) -> dict[str, list[str]]:
    return {
        "trace_level": list(options.trace_level),
        "trace_rate": [str(options.trace_rate)],
        "trace_count": [str(options.trace_count)],
        "log_frequency": [str(options.log_frequency)],
    }


def _triton_target(options: PerfOptions, control: ServerControl, facts: ModelFacts) -> LoadTarget:
    _check_fit(options, facts)
    prompts = choose_prompts(options) if options.is_llm and not options.input_data else None
    dataset = _dataset(options, facts, prompts)
    parameters = dict(options.request_parameter)
    has_export = bool(options.profile_export_file)
    regions = SharedRegions(options.shared_memory) if options.shared_memory != "none" else None
    if facts.is_sequence:
        requests = [
            request_of([step] * options.batch_size, facts, parameters) for step in dataset.steps
        ]
    else:
        requests = batched_requests(dataset, facts, options.batch_size, parameters)
    expected = _expected(dataset, facts, options.batch_size)
    if regions is not None:
        requests = regions.place(
            requests, facts, options.batch_size, options.output_shared_memory_size
        )
    return LoadTarget(
        _traffic(options, facts, dataset, requests, should_keep_body=has_export or bool(expected)),
        load_options(options, has_details=options.is_llm),
        WindowPlan(
            options.batch_size,
            facts.is_decoupled,
            options.is_llm,
            options.percentile,
            dict(options.goodput),
            prompts.counting if prompts is not None else TokenCounting(),
            "" if prompts is not None else _data_advice(options, facts),
        ),
        facts,
        control,
        make_digest_for(options),
        make_check(expected, is_grpc=options.is_grpc, tolerance=options.validation_tolerance)
        if expected
        else None,
        list(requests),
        prompts.offsets_s if prompts is not None else [],
        regions,
    )


def _check_fit(options: PerfOptions, facts: ModelFacts) -> None:
    check_batch_size(facts, options.batch_size)
    check_shape_names(facts, dict(options.shape))
    if facts.is_decoupled and not options.streaming:
        raise OptionError(
            f"model '{facts.name}' is decoupled and can only be measured with --streaming"
        )
    if options.streaming and options.shared_memory != "none" and not options.is_grpc:
        raise OptionError("--shared-memory cannot be used with generate_stream. Use -i grpc.")
    if facts.is_sequence and options.streaming and not options.is_grpc:
        raise OptionError(
            f"model '{facts.name}' is a sequence model, which generate_stream does not support."
            " Use -i grpc."
        )
    if options.replay and facts.is_sequence:
        raise OptionError("--replay cannot be used with a sequence model")


def _dataset(options: PerfOptions, facts: ModelFacts, prompts: PromptChoice | None) -> Dataset:
    if prompts is not None:
        return triton_llm.prompt_dataset(
            facts, prompts.prompts, prompts.extra, is_streaming=options.streaming
        )
    shapes = dict(options.shape)
    sources = options.input_data or ("random",)
    if sources[0] in ("zero", "random"):
        return generated_data.generate(
            facts,
            shapes,
            is_zero=sources[0] == "zero",
            string_data=options.string_data,
            string_length=options.string_length,
        )
    paths = [Path(text) for text in sources]
    if paths[0].is_dir():
        return data_file.read_folder(paths[0], facts, shapes)
    return data_file.read_json_files(paths, facts, shapes)


def _data_advice(options: PerfOptions, facts: ModelFacts) -> str:
    """For generated strings, which few models accept."""
    is_generated = (options.input_data or ("random",))[0] in ("zero", "random")
    names = [tensor.name for tensor in facts.inputs if tensor.datatype == "BYTES"]
    if not names or not is_generated or options.string_data:
        return ""
    return (
        f"the strings of input '{names[0]}' are made up: try --string-data TEXT, "
        "--string-length 8 or --input-data FILE.json"
    )


def _expected(
    dataset: Dataset, facts: ModelFacts, batch_size: int
) -> list[tuple[InputTensor, ...]]:
    """Returns the outputs that validation_data expects for each prepared request."""
    if not dataset.expected:
        return []
    as_inputs = msgspec.structs.replace(facts, inputs=facts.outputs)
    steps = Dataset([dataset.expected_steps])
    if facts.is_sequence:
        return [request_of([step] * batch_size, as_inputs, {}).inputs for step in steps.steps]
    return [request.inputs for request in batched_requests(steps, as_inputs, batch_size, {})]


def _traffic(
    options: PerfOptions,
    facts: ModelFacts,
    dataset: Dataset,
    requests: list[ClientRequest],
    *,
    should_keep_body: bool,
) -> Traffic:
    address = server_address(options)
    tls = tls_files(options, address)
    encoding = (
        "" if options.grpc_compression_algorithm == "none" else options.grpc_compression_algorithm
    )
    if options.is_grpc:
        protocol = "stream" if options.streaming else "grpc"
        grpc = GrpcInferEncoder(
            facts.name, facts.version, encoding=encoding, is_stream=options.streaming
        )
        method = "ModelStreamInfer" if options.streaming else "ModelInfer"
        block = request_block(address, method, encoding=encoding, metadata=options.header)
        sequence = (
            _sequence(options, dataset, [grpc.message(request) for request in requests])
            if facts.is_sequence
            else None
        )
        prepared = [] if sequence is not None else [grpc.encode(request) for request in requests]
        return Traffic(
            protocol,
            address,
            tls,
            block,
            encoding,
            prepared,
            sequence,
            facts.is_decoupled,
            should_keep_body,
            grpc.head_bytes,
        )
    if options.streaming:
        generate = GenerateEncoder(address, facts.name, facts.version, options.header)
        return Traffic(
            "sse", address, tls, prepared=[generate.encode(request) for request in requests]
        )
    http = HttpInferEncoder(
        address,
        facts.name,
        facts.version,
        headers=options.header,
        is_json_input=options.input_tensor_format == "json",
        is_json_output=options.output_tensor_format == "json",
    )
    sequence = (
        _sequence(options, dataset, [http.encode_sequence(request) for request in requests])
        if facts.is_sequence
        else None
    )
    prepared = [] if sequence is not None else [http.encode(request) for request in requests]
    return Traffic(
        "http",
        address,
        tls,
        prepared=prepared,
        sequence=sequence,
        should_keep_body=should_keep_body,
    )


def _sequence(options: PerfOptions, dataset: Dataset, parts: list[Any]) -> SequenceTraffic:
    base_length = options.sequence_length or (
        0 if dataset.is_from_file else DEFAULT_SEQUENCE_LENGTH
    )
    ids = options.sequence_id_range
    lengths = [len(stream) for stream in dataset.streams]
    return SequenceTraffic(
        parts, lengths, base_length, options.sequence_length_variation, ids.start, ids.end
    )
