"""The whole of `naiad quantize`: calibrate, quantize and write one layer after the other, measure,
finish.

In:  QuantizeOptions. Out: a checkpoint in output_dir, with a report. Everything is written to
     `output_dir` + ".partial", a file per layer, each put in place whole; the folder gets its name
     when all is there. A run that was killed is taken up again: layers that are there are only
     computed through, which gives the same inputs to the others, so the result is the same.
     Activations come from the plain layers, for which reason layers do not depend on each other's
     rounding.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import tokenizers
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from naiad.errors import invalid_arg, not_found, unavailable, unsupported
from naiad.files.regular_file import read_json_object, require_regular
from naiad.llm.quantization import write
from naiad.llm.quantization.matrix import QuantizedMatrix, WeightKind
from naiad.llm.quantization.round_matrix import GROUPS, round_fp8, round_integers
from naiad.tools.quantize import awq
from naiad.tools.quantize.calibration import cut_tokens, read_text
from naiad.tools.quantize.gptq import round_gptq, round_gptq_fp8
from naiad.tools.quantize.kv_range import KvRange
from naiad.tools.quantize.layered_model import PREFIX, LayeredModel
from naiad.tools.quantize.measurement import Quality, compare
from naiad.tools.quantize.options import QuantizeOptions
from naiad.tools.quantize.samples import LayerSamples, Samples

STATE = "naiad_quantize.json"
KV_STRETCHES = 16
"""Stretches of text that the scales of the KV cache are calibrated with."""
COPIED = (
    "tokenizer*", "special_tokens_map.json", "generation_config.json", "chat_template*", "vocab*",
    "merges.txt", "added_tokens.json",
    "LICENSE*",
)  # fmt: skip
Log = Callable[[int, int, float], None]
"""Layers done, in all, and seconds that are left."""


class Outcome(msgspec.Struct, frozen=True):
    output_dir: Path
    quality: Quality
    bytes_before: int
    bytes_after: int
    seconds: float
    num_resumed: int
    """Layers that an earlier run had finished."""


class QuantizeJob:
    def __init__(self, options: QuantizeOptions, log: Log | None = None) -> None:
        options.check()
        self.options = options
        self._log = log
        self._partial = options.output_dir.with_name(options.output_dir.name + ".partial")
        if options.output_dir.exists():
            raise invalid_arg(
                f"output_dir '{options.output_dir}' is there already; expected a name that is free"
            )
        device = (
            options.device
            if options.device != "auto"
            else "cuda"
            if torch.cuda.is_available()
            else "cpu"
        )
        config = options.model_dir / "config.json"
        self.raw = read_json_object(config, f"model_dir '{options.model_dir}'")
        own = self.raw.get("dtype") or self.raw.get("torch_dtype") or "bfloat16"
        name = own if options.dtype == "auto" else options.dtype
        found = getattr(torch, name, None) if isinstance(name, str) else None
        if not isinstance(found, torch.dtype) or not found.is_floating_point:
            raise invalid_arg(f"the dtype is '{str(name)[:40]}', expected one such as bfloat16")
        self.saved_dtype: torch.dtype = found
        # On a CPU products of 16-bit numbers are slower than of wider ones, and no more exact.
        self.dtype = torch.float32 if device == "cpu" else self.saved_dtype
        self.model = LayeredModel(options.model_dir, torch.device(device), self.dtype)
        if options.qformat == "int4_awq" and self.model.config.model_type not in awq.FAMILIES:
            expected = f"expected one of {', '.join(awq.FAMILIES)}; int4_gptq works"
            raise unsupported(
                f"model_type '{self.model.config.model_type}' has no recipe for AWQ, {expected}"
            )
        self._check_room()

    def run(self) -> Outcome:
        started = time.monotonic()
        options, model = self.options, self.model
        torch.manual_seed(options.seed)
        self._begin()
        tokenizer = self._tokenizer()
        used, measured = cut_tokens(
            tokenizer.encode(read_text(options.calib_dataset)).ids,
            options.calib_size,
            options.calib_max_seq_length,
        )
        hidden, plain = model.embed(used), model.embed(measured)
        rounded = plain.clone()
        num_resumed = 0
        for index in range(model.num_layers):
            layer = model.load_layer(index)
            path = self._partial / f"layer-{index:05}.safetensors"
            is_done = path.exists()
            num_resumed += is_done
            samples = LayerSamples(has_hessian=False)
            entered = hidden
            if options.is_calibrated and (not is_done or index + 1 < model.num_layers):
                hidden, samples = self._calibrate(layer, hidden)
            plain = model.run(layer, plain, options.batch_size)
            if not is_done:
                tensors = self._quantize_layer(layer, index, samples)
                if options.kv_cache_dtype:
                    tensors |= self._kv_scales(layer, index, entered)
                _save(tensors, path)
            self._apply_written(layer, index, path)
            rounded = model.run(layer, rounded, options.batch_size)
            layer.to_empty(device="meta")
            if self._log is not None:
                done = index + 1
                self._log(
                    done,
                    model.num_layers,
                    (time.monotonic() - started) / done * (model.num_layers - done),
                )
        head = self._write_outer()
        quality = compare(
            lambda at: model.log_probs(plain[at]),
            lambda at: model.log_probs(rounded[at], head),
            measured,
        )
        self._finish()
        before, after = (
            _folder_bytes(folder) for folder in (options.model_dir, options.output_dir)
        )
        return Outcome(
            options.output_dir, quality, before, after, time.monotonic() - started, num_resumed
        )

    def _calibrate(self, layer: Any, hidden: Tensor) -> tuple[Tensor, LayerSamples]:
        samples = LayerSamples(self.options.qformat in ("int4_gptq", "fp8"))
        hooks = [
            module.register_forward_pre_hook(
                lambda _, given, name=name: samples.add(name, given[0])
            )
            for name, module in _linears(layer)
        ]
        try:
            return self.model.run(layer, hidden, self.options.batch_size), samples
        finally:
            for hook in hooks:
                hook.remove()

    def _kv_scales(self, layer: Any, index: int, hidden: Tensor) -> dict[str, Tensor]:
        """The layer is the one that was quantized: AWQ scales the values of a layer."""
        prefix = PREFIX.format(index)
        kv_range = KvRange(layer, prefix.rstrip("."), self.model.config)
        with kv_range.observed():
            self.model.run(layer, hidden[:KV_STRETCHES], self.options.batch_size)
        return {prefix + name: scale for name, scale in kv_range.scales().items()}

    @torch.inference_mode()
    def _quantize_layer(self, layer: Any, index: int, samples: LayerSamples) -> dict[str, Tensor]:
        options, prefix = self.options, PREFIX.format(index)
        if options.qformat == "int4_awq":
            for name, module in _linears(layer):
                self._group(prefix + name, module.weight.shape[1])
            group = options.awq_block_size
            awq.scale_layer(layer, samples.by_name, group)
            awq.clip_layer(layer, samples.by_name, group)
        tensors: dict[str, Tensor] = {}
        linears = {name for name, _ in _linears(layer)} if options.kind is not None else set()
        state = layer.state_dict()
        for name, tensor in state.items():
            module, _, kind = name.rpartition(".")
            if module not in linears or kind != "weight":
                tensors[prefix + name] = tensor.to(self.saved_dtype)
        for names in samples.groups() or [[name] for name in sorted(linears)]:
            if names[0] in linears:
                weights = [state[f"{name}.weight"].float() for name in names]
                sample = samples.by_name.get(names[0])
                for name, matrix in self._rounded_group(prefix, names, weights, sample):
                    tensors |= self._written(prefix + name, matrix)
        return {name: tensor.cpu().contiguous() for name, tensor in tensors.items()}

    def _rounded_group(
        self, prefix: str, names: list[str], weights: list[Tensor], sample: Samples | None
    ) -> Iterator[tuple[str, QuantizedMatrix]]:
        """Matrices with the same inputs are rounded as one, so that they share the factor of their
        inputs' sum."""
        merged = self._rounded(prefix + names[0], torch.cat(weights), sample)
        start = 0
        for name, weight in zip(names, weights, strict=True):
            rows = torch.arange(start, start + weight.shape[0], device=weight.device)
            yield name, merged.rearranged(rows)
            start += weight.shape[0]

    def _rounded(self, module: str, weight: Tensor, sample: Samples | None) -> QuantizedMatrix:
        kind = self.options.kind
        dtype = torch.float16 if self.options.layout == "awq" else self.saved_dtype
        if kind is WeightKind.FP8:
            # Of the head nothing is sampled.
            if sample is None:
                return round_fp8(weight, dtype)
            return round_gptq_fp8(module, weight, sample.hessian, dtype)
        if kind is WeightKind.INT8:
            return round_integers(weight, WeightKind.INT8, 0, True, dtype)
        group = self._group(module, weight.shape[1])
        if self.options.qformat != "int4_gptq" or sample is None:  # of the head nothing is sampled
            return round_integers(weight, WeightKind.INT4, group, False, dtype)
        return round_gptq(module, weight, sample.hessian, group, dtype)

    def _group(self, module: str, num_inputs: int) -> int:
        group = self.options.awq_block_size
        if num_inputs % group:
            fitting = [str(size) for size in GROUPS if num_inputs % size == 0]
            hint = f"--awq_block_size {fitting[0]} works" if fitting else "int8_wo and fp8 work"
            raise invalid_arg(
                f"'{module}' has {num_inputs} inputs, which groups of {group} do not divide; {hint}"
            )
        return group

    def _written(self, module: str, matrix: QuantizedMatrix) -> dict[str, Tensor]:
        if self.options.layout == "awq":
            return write.awq(module, matrix)
        return write.compressed_tensors(module, matrix, self.saved_dtype)

    def _format(self) -> Any:
        from naiad.llm.quantization.find_format import find_format

        return find_format({"quantization_config": self._config()}, self._partial)

    def _config(self) -> dict[str, Any]:
        options = self.options
        ignore = [] if options.quantize_lm_head else ["lm_head"]
        assert options.kind is not None
        if options.layout == "awq":
            return write.awq_config(options.awq_block_size, ignore)
        group = options.awq_block_size if options.kind is WeightKind.INT4 else 0
        config = write.compressed_tensors_config(
            options.kind, group, options.kind is not WeightKind.INT4, False, ignore
        )
        if options.kv_cache_dtype:
            config["kv_cache_scheme"] = write.KV_CACHE_SCHEME
        return config

    def _apply_written(self, layer: Any, index: int, path: Path) -> None:
        """What was written, read back as a server reads it: the measured quality is the file's."""
        state, prefix = load_file(path), PREFIX.format(index)
        source = _DictSource(state)
        for name, tensor in state.items():
            if name.removeprefix(prefix) in layer.state_dict():
                own = layer.get_parameter(name.removeprefix(prefix))
                if own.shape == tensor.shape and tensor.dtype != torch.float8_e4m3fn:
                    own.data.copy_(tensor)
        if self.options.kind is None:
            return
        form = self._format()
        for name, module in _linears(layer):
            matrix = form.read(source, source.names(), prefix + name)
            if matrix is not None:
                module.weight.data.copy_(matrix.dequantize().to(module.weight.dtype))

    def _write_outer(self) -> Tensor | None:
        """Everything outside of the layers; returns the head as it was rounded, if it was."""
        model, head = self.model, None
        outer: dict[str, Tensor] = {}
        for name in sorted(model.names()):
            if name.startswith("model.layers."):
                continue
            if (
                name == "lm_head.weight"
                and self.options.quantize_lm_head
                and self.options.kind is not None
            ):
                matrix = self._rounded("lm_head", model.tensor(name).float(), None)
                outer |= self._written("lm_head", matrix)
                head = matrix.dequantize()
            else:
                outer[name] = model.tensor(name).to(self.saved_dtype)
        _save(
            {name: tensor.contiguous() for name, tensor in outer.items()},
            self._partial / "outer.safetensors",
        )
        return head

    def _begin(self) -> None:
        """A folder of an earlier run is taken up only when it was for the very same."""
        fingerprint = self._fingerprint()
        state = self._partial / STATE
        if self._partial.exists():
            known = json.loads(state.read_text()).get("fingerprint") if state.exists() else None
            if known != fingerprint:
                left = (
                    f"'{self._partial}' is left from a run with other options or another checkpoint"
                )
                raise invalid_arg(f"{left}; remove it, or repeat that run")
            return
        self._partial.mkdir(parents=True)
        _replace(state, json.dumps({"fingerprint": fingerprint}))

    def _fingerprint(self) -> str:
        options = msgspec.to_builtins(self.options, enc_hook=str)
        options.pop("output_dir")
        paths = sorted(self.options.model_dir.glob("*.safetensors"))
        weights = {path.name: (path.stat().st_size, path.stat().st_mtime_ns) for path in paths}
        return hashlib.sha256(
            json.dumps([options, weights, self.raw], sort_keys=True).encode()
        ).hexdigest()

    def _finish(self) -> None:
        options = self.options
        config = dict(self.raw)
        if options.kind is not None:
            config["quantization_config"] = self._config()
        _replace(self._partial / "config.json", json.dumps(config, indent=2))
        files = sorted(self._partial.glob("*.safetensors"))
        weight_map = {name: path.name for path in files for name in _names(path)}
        total = sum(path.stat().st_size for path in files)
        index = {"metadata": {"total_size": total}, "weight_map": weight_map}
        _replace(self._partial / "model.safetensors.index.json", json.dumps(index, indent=2))
        for pattern in COPIED:
            for path in options.model_dir.glob(pattern):
                shutil.copy2(path, self._partial / path.name)
        (self._partial / STATE).unlink()
        self._partial.rename(options.output_dir)

    def _tokenizer(self) -> Any:
        path = self.options.model_dir / "tokenizer.json"
        if not path.exists():
            raise not_found(
                f"model_dir '{self.options.model_dir}' has no tokenizer.json, which calibration "
                "and measurement need"
            )
        require_regular(path, f"model_dir '{self.options.model_dir}'")
        try:
            return tokenizers.Tokenizer.from_file(str(path))
        except Exception as error:  # the library raises bare Exceptions
            raise invalid_arg(f"'{path}' cannot be read: {error}") from error

    def _check_room(self) -> None:
        needed = _folder_bytes(self.options.model_dir)
        parent = self.options.output_dir.absolute().parent
        parent.mkdir(parents=True, exist_ok=True)
        free = shutil.disk_usage(parent).free
        if free < needed:
            raise unavailable(
                f"'{parent}' has {free >> 20} MiB free, and the result may take {needed >> 20} "
                "MiB; expected more room"
            )


class _DictSource:
    """`TensorSource` of checkpoint/source.py."""

    def __init__(self, tensors: dict[str, Tensor]) -> None:
        self._tensors = tensors

    def names(self) -> set[str]:
        return set(self._tensors)

    def get(self, name: str) -> Tensor:
        return self._tensors[name]


def _linears(layer: Any) -> list[tuple[str, Any]]:
    return [
        (name, module)
        for name, module in layer.named_modules()
        if isinstance(module, torch.nn.Linear)
    ]


def _save(tensors: dict[str, Tensor], path: Path) -> None:
    """Under its name only when it is whole and on the disk."""
    draft = path.with_suffix(".writing")
    # The library makes its files for their owner alone; those of a new file are others' as umask
    # allows.
    draft.touch()
    mode = draft.stat().st_mode
    save_file(tensors, draft, metadata={"format": "pt"})
    draft.chmod(mode)
    with draft.open("rb") as file:
        os.fsync(file.fileno())
    draft.replace(path)


def _replace(path: Path, text: str) -> None:
    draft = path.with_name(path.name + ".writing")
    draft.write_text(text)
    draft.replace(path)


def _names(path: Path) -> list[str]:
    from safetensors import safe_open

    with safe_open(str(path), framework="pt") as file:
        return list(file.keys())


def _folder_bytes(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.glob("*.safetensors"))
