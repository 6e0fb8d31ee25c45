"""From a checkpoint on disk to an engine that is ready.

In:  a Hugging Face folder or a GGUF file, and EngineSettings. Out: an Engine. Weights go straight
     to the device.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
import torch

from naiad.errors import invalid_arg, not_found, unsupported
from naiad.llm import import_ahead
from naiad.llm.accelerator import accelerator_of, choose_accelerator
from naiad.llm.checkpoint.folder import CheckpointFolder, open_folder, read_tokenizer
from naiad.llm.checkpoint.load_weights import Progress, ReaderMaker, load_weights
from naiad.llm.checkpoint.pickle_source import PickleSource
from naiad.llm.checkpoint.safetensors_source import SafetensorsSource
from naiad.llm.checkpoint.source import TensorSource
from naiad.llm.engine import Engine
from naiad.llm.engine_settings import ROUNDED, EngineSettings
from naiad.llm.models import tensorrt_llm
from naiad.llm.models.decoder_config import DecoderConfig
from naiad.llm.models.decoder_weights import DecoderWeights, random_weights
from naiad.llm.models.family import Family
from naiad.llm.models.registry import FAMILIES, find_family
from naiad.llm.parallel.shard import check_split
from naiad.llm.start.build import build_engine, build_transformers_engine
from naiad.llm.start.kernel_key import computed_meanwhile
from naiad.llm.start.kv_precision import read_kv_scales
from naiad.llm.start.quantize_load import QuantizationPlan, plan_quantization, plan_rounding
from naiad.llm.start.rounding_cache import RoundingCache, fingerprint
from naiad.llm.text.chat_template import ChatTemplate, read_chat_template

if TYPE_CHECKING:
    from naiad.llm.parallel.peers import Peers

Log = Callable[[str], None]
Loaded = tuple[DecoderWeights, QuantizationPlan | None]


def load_engine(
    path: Path,
    settings: EngineSettings | None = None,
    progress: Progress | None = None,
    cache: Path | None = None,
    log: Log | None = None,
) -> Engine:
    """`cache` is the folder for weights that are rounded at load; without it they are rounded at
    every start."""
    settings = settings or EngineSettings()
    settings.check()
    if not path.exists():
        raise not_found(f"there is no checkpoint at '{path}'")
    settings = _with_rank_files(path, settings)
    if settings.tensor_parallel_size == 1:
        return _load(path, settings, progress, cache, log, None)
    from naiad.llm.parallel.rank_group import RankGroup

    check_split(_whole_config(path), settings.tensor_parallel_size)
    group = RankGroup(path, settings, choose_device(settings), cache)
    try:
        engine = _load(path, settings, progress, cache, log, group)
    except BaseException:
        group.close()
        raise
    engine.ranks = group
    return engine


def load_rank(path: Path, settings: EngineSettings, peers: Peers, cache: Path | None) -> Engine:
    """Loads the part of one rank. The engine's runner runs the steps that rank 0 sends."""
    return _load(path, settings, None, cache, None, peers)


def _with_rank_files(path: Path, settings: EngineSettings) -> EngineSettings:
    """A checkpoint that is split over files for several ranks is served by so many. Raises
    NaiadError."""
    if path.is_file():
        return settings
    count, size = open_folder(path).num_rank_files, settings.tensor_parallel_size
    if size not in (1, count) and count > 1:
        raise invalid_arg(
            f"tensor_parallel_size is {size}, but checkpoint '{path.name}' is split over {count} "
            "ranks; leave it out"
        )
    return settings if count == 1 else msgspec.structs.replace(settings, tensor_parallel_size=count)


def _whole_config(path: Path) -> DecoderConfig:
    """Raises NaiadError if nothing knows how to split the model."""
    if path.is_file():
        from naiad.llm.checkpoint.gguf import open_gguf

        return open_gguf(path).config
    folder = open_folder(path)
    family = (
        tensorrt_llm.FAMILY if folder.is_tensorrt_llm else find_family(folder.config["model_type"])
    )
    if family is None:
        raise unsupported(
            f"tensor_parallel_size is above 1, but models of type '{folder.config['model_type']}' "
            f"cannot be split; expected one of {', '.join(FAMILIES)}"
        )
    return family.read_config(folder.config)


def _load(
    path: Path,
    settings: EngineSettings,
    progress: Progress | None,
    cache: Path | None,
    log: Log | None,
    peers: Peers | None,
) -> Engine:
    if path.is_file():
        return _load_gguf(path, settings, progress, cache, log, peers)
    folder = open_folder(path)
    family = (
        tensorrt_llm.FAMILY if folder.is_tensorrt_llm else find_family(folder.config["model_type"])
    )
    if family is None and settings.load_format == "dummy":
        raise invalid_arg(
            f"load_format is 'dummy', which models of type '{folder.config['model_type']}' "
            "cannot have"
        )
    engine = (
        _load_with_transformers(folder, settings, log)
        if family is None
        else _load_family(folder, family, settings, progress, cache, log, peers)
    )
    engine.open_chat_template = lambda: read_chat_template(path)
    return engine


def choose_device(settings: EngineSettings) -> torch.device:
    """The device becomes the process's current one: kernels and graphs go where that points."""
    return choose_accelerator(settings.device)[1]


def choose_dtype(
    settings: EngineSettings, checkpoint_dtype: str, device: torch.device
) -> torch.dtype:
    name = settings.dtype
    if name == "auto":
        name = "float32" if accelerator_of(device).is_host else checkpoint_dtype
    dtype: torch.dtype = getattr(torch, name)
    return dtype


def _load_family(
    folder: CheckpointFolder,
    family: Family,
    settings: EngineSettings,
    progress: Progress | None,
    cache: Path | None,
    log: Log | None,
    peers: Peers | None,
) -> Engine:
    whole = family.checked_config(folder.config, f"config.json of checkpoint '{folder.path.name}'")
    config = whole if peers is None else peers.shard.config(whole)
    device = choose_device(settings)
    dtype = choose_dtype(settings, config.dtype, device)
    kv_scales = None
    with computed_meanwhile(device):
        if settings.load_format == "dummy":
            plan = plan_quantization(folder.config, folder.path, config, settings, device, dtype)
            finish = plan.rounded.round_layer if plan and plan.rounded else None
            weights = random_weights(_drawn(whole, peers), device, dtype, finish=finish)
        else:
            source = _open_tensors(folder, device, settings, peers)
            if settings.kv_cache_dtype != "auto":
                kv_scales = read_kv_scales(source, family.layer_prefix, config.num_layers)

            def load(rounding: RoundingCache | None) -> Loaded:
                plan = plan_quantization(
                    folder.config, folder.path, config, settings, device, dtype, rounding
                )
                loading, rounded = (None, None) if plan is None else (plan.loading, plan.rounded)
                weights = load_weights(
                    whole,
                    family,
                    source,
                    device,
                    dtype,
                    progress,
                    loading,
                    rounded,
                    _reader(peers, has_rank_files=folder.num_rank_files > 1),
                )
                return weights, plan

            files = sorted(folder.path.glob("*.safetensors"))
            weights, plan = _load_rounded(load, files, settings, device, dtype, cache, log, peers)
    is_half_enough = settings.dtype == "auto" and (config.dtype != "float32" or plan is not None)
    engine = build_engine(
        config,
        weights,
        read_tokenizer(folder),
        folder.eos_token_ids,
        settings,
        is_half_enough,
        kv_scales,
        peers,
    )
    if plan is not None:
        engine.quantization = plan.describe()
    return engine


def _load_rounded(
    load: Callable[[RoundingCache | None], Loaded],
    files: list[Path],
    settings: EngineSettings,
    device: torch.device,
    dtype: torch.dtype,
    cache: Path | None,
    log: Log | None,
    peers: Peers | None,
) -> Loaded:
    """Calls `load` with the cache of rounded weights, if the settings ask for rounding. Weights in
    a cache that turns out to be damaged are rounded again."""
    if settings.quantization not in ROUNDED or cache is None or not files:
        return load(None)
    log = log or (lambda _: None)
    name = fingerprint(files, settings.quantization, dtype)
    if peers is not None:
        name += f"-{peers.shard.rank}-of-{peers.shard.size}"
    target = cache / "quantized" / name
    rounding = RoundingCache(target, device, log)
    if rounding.is_complete:
        try:
            return load(rounding)
        except (OSError, ValueError, KeyError) as error:
            log(f"the rounded weights in '{target}' are damaged ({error}): rounding again")
            rounding.is_complete = False
    try:
        loaded = load(rounding)
    except BaseException:
        rounding.discard()
        raise
    rounding.finish()
    return loaded


def _load_with_transformers(
    folder: CheckpointFolder, settings: EngineSettings, log: Log | None = None
) -> Engine:
    # transformers takes seconds to import, and is never imported by two threads at once
    import_ahead.join()
    from naiad.llm.models.transformers_model import load_transformers_model

    device = choose_device(settings)
    checkpoint_dtype = folder.config.get("dtype") or folder.config.get("torch_dtype") or "float32"
    dtype = choose_dtype(settings, checkpoint_dtype, device)
    with computed_meanwhile(device):
        model, description = load_transformers_model(
            folder.path,
            folder.config["model_type"],
            device,
            dtype,
            settings.trust_remote_code,
            log or (lambda _: None),
        )
    engine = build_transformers_engine(
        model, description, read_tokenizer(folder), folder.eos_token_ids, settings
    )
    engine.code = "transformers' code"
    return engine


def _load_gguf(
    path: Path,
    settings: EngineSettings,
    progress: Progress | None,
    cache: Path | None,
    log: Log | None,
    peers: Peers | None,
) -> Engine:
    from naiad.llm.checkpoint.gguf import open_gguf

    checkpoint = open_gguf(path)
    config = checkpoint.config if peers is None else peers.shard.config(checkpoint.config)
    device = choose_device(settings)
    dtype = choose_dtype(settings, "bfloat16", device)

    def load(rounding: RoundingCache | None) -> Loaded:
        plan = (
            plan_rounding(config, settings, device, dtype, rounding)
            if settings.quantization in ROUNDED
            else None
        )
        rounded = None if plan is None else plan.rounded
        weights = load_weights(
            checkpoint.config,
            checkpoint.family,
            checkpoint.source,
            device,
            dtype,
            progress,
            None,
            rounded,
            _reader(peers),
        )
        return weights, plan

    with computed_meanwhile(device):
        weights, plan = _load_rounded(load, [path], settings, device, dtype, cache, log, peers)
    tokenizer, is_half_enough = (
        checkpoint.tokenizer,
        settings.dtype == "auto" and not checkpoint.source.is_wide,
    )
    engine = build_engine(
        config,
        weights,
        tokenizer,
        tokenizer.eos_token_ids,
        settings,
        is_half_enough,
        peers=peers,
    )
    if plan is not None:
        engine.quantization = plan.describe()
    source = checkpoint.chat_template
    if source is not None:
        engine.open_chat_template = lambda: ChatTemplate(source, checkpoint.special_tokens)
    return engine


def _reader(peers: Peers | None, has_rank_files: bool = False) -> ReaderMaker | None:
    if peers is None:
        return None
    from naiad.llm.checkpoint.shard_reader import RankFileReader, ShardReader

    return partial(RankFileReader if has_rank_files else ShardReader, shard=peers.shard)


def _drawn(whole: DecoderConfig, peers: Peers | None) -> DecoderConfig:
    """Returns the config by which random weights are drawn: with a rank's share of the tokens."""
    if peers is None:
        return whole
    shard = peers.shard
    return msgspec.structs.replace(shard.config(whole), vocab_size=shard.num_tokens(whole))


def _open_tensors(
    opened: CheckpointFolder, device: torch.device, settings: EngineSettings, peers: Peers | None
) -> TensorSource:
    folder = opened.path
    if opened.num_rank_files > 1 and peers is not None:
        return SafetensorsSource(folder, device, f"rank{peers.shard.rank}.safetensors")
    has_safetensors = any(folder.glob("*.safetensors"))
    if has_safetensors or not any(folder.glob("pytorch_model*.bin")):
        return SafetensorsSource(folder, device)
    if not settings.allow_pickle:
        raise invalid_arg(
            f"checkpoint '{folder.name}' has pickled weights only; allow_pickle loads them, "
            "expected safetensors"
        )
    return PickleSource(folder)
