"""What an engine may use of its machine, and how much it takes on at once. Declared here, once;
read by load, runner and scheduler."""

from __future__ import annotations

import msgspec

from naiad.errors import invalid_arg

ROUNDED = ("fp8", "int8", "int4")
METHODS = ("awq", "awq_marlin", "gptq", "gptq_marlin", "compressed-tensors", "modelopt")
"""What users of vLLM write for checkpoints that are quantized already."""

KV_CACHE_DTYPES = ("auto", "fp8", "fp8_e4m3")


class EngineSettings(msgspec.Struct, frozen=True, kw_only=True):
    device: str = "auto"
    """auto (cuda where there is one, else what torch was built for), cpu, cuda, rocm, xpu, hpu,
    npu, mps, or the name of a plugin; with a number, e.g. cuda:1 (docs/devices.md)."""
    dtype: str = "auto"
    """auto, float32, bfloat16, float16. auto: the checkpoint's on a GPU; float32 on a CPU, with
    matrices kept in float16 unless the checkpoint has them in float32."""
    activations: str = "float32"
    """float32, int8. int8 rounds the inputs of some matrices of a GGUF file to eight bits on the
    OpenVINO engine: faster at many requests, and less exact (docs/llm-backend.md)."""
    use_split_head: bool = True
    """Multiplies the head of a GGUF file as bytes on the OpenVINO engine, without a loss, where the
    processor has instructions for that (docs/llm-backend.md)."""
    load_format: str = "auto"
    """auto: the checkpoint's weights; dummy: random ones of its shape, for measurements. Then
    config.json is enough."""
    quantization: str = "auto"
    """auto: as the checkpoint's config.json says. fp8, int8 or int4 quantize a plain checkpoint's
    matrices as they are loaded, without calibration. The name of a quantized checkpoint's own
    method is accepted and changes nothing."""
    keep_wide_weights: bool | None = None
    """On a GPU, int4 matrices stay in 16 bits as well, for steps of more than 64 rows. None: where
    they take up to an eighth of the device's memory."""
    kv_cache_dtype: str = "auto"
    """auto: that of the activations. fp8 (or fp8_e4m3): keys and values take half the memory, and
    are stored by the checkpoint's scales where it has them. Needs a GPU of compute capability 8.9
    or newer."""
    tensor_parallel_size: int = 1
    """Ranks, each a process with a GPU of its own (or cores, on a CPU), that share one model."""
    collective_timeout_s: float = 60.0
    """With several ranks: a step that takes longer ends the instance, and it is started again."""
    max_num_seqs: int = 256
    """Sequences that run at the same time."""
    max_num_batched_tokens: int | None = None
    """Tokens of one step; longer prompts are computed in chunks. None: 8192 on a GPU, 1024 on a
    CPU."""
    max_token_delay_ms: float = 50.0
    """While sequences generate, a step computes only as many tokens of other prompts as take about
    this long, by the measured time per token, and at least 32. 0: no limit but
    max_num_batched_tokens."""
    max_model_len: int | None = None
    """Prompt and output together. None: what the model was made for."""
    block_size: int = 16
    """Tokens per KV block, a power of two; also the grain of prefix reuse."""
    num_kv_blocks: int | None = None
    """None: sized from memory by the next three."""
    gpu_memory_utilization: float = 0.9
    """Share of the device's memory for weights, activations and KV cache together."""
    kv_cache_free_gpu_mem_fraction: float | None = None
    """Share of what is free after the weights; when set, it replaces gpu_memory_utilization."""
    kv_cache_bytes: int | None = None
    """An absolute size; when set, it replaces both. None on a CPU: 1 GiB."""
    enable_prefix_caching: bool = True
    share_prefix_cache: bool = False
    """Lets requests of different API keys share prefixes. A client can then measure whether
    another's prompt begins like its own."""
    kv_events_endpoint: str = ""
    """Where a router learns what the prefix cache holds, e.g. tcp://*:5557: vLLM's KV events over
    ZeroMQ. Empty publishes nothing. Each instance needs an endpoint of its own."""
    kv_events_replay_endpoint: str = ""
    """Where readers fetch events that they have missed, e.g. tcp://*:5558."""
    kv_events_topic: str = ""
    """The topic of the events, e.g. kv@10.0.0.1@llama for readers that expect vLLM's."""
    trust_remote_code: bool = False
    """Lets a checkpoint without a fast path bring Python code of its own."""
    allow_pickle: bool = False
    """Lets pytorch_model.bin be read where there are no safetensors."""
    trust_request_chat_template: bool = False
    """Lets a request bring its own chat template."""
    max_prompt_bytes: int | None = None
    """A longer prompt is refused before it is tokenized. None: 16 bytes per token of
    max_model_len."""
    use_fast_tokenizer: bool = True
    """Tokenizes long prompts with tiktoken, where that is proven to agree with the checkpoint's own
    tokenizer."""
    max_request_share: float = 0.5
    """Share of max_num_seqs that the completions of one client request may run at a time; the
    others of the same request wait."""
    max_waiting_requests: int = 1024
    """A request beyond them is refused with UNAVAILABLE."""
    use_cuda_graphs: bool = True
    use_triton_interpreter: bool = False
    """The GPU's kernels on a CPU, in Triton's interpreter: for tests."""
    is_asynchronous: bool | None = None
    """Launch a step before the previous one's tokens are read. None: on a GPU."""
    seed: int | None = None
    """Fixes the seeds of requests that come without one."""

    def check(self) -> None:
        if self.dtype not in ("auto", "float32", "bfloat16", "float16"):
            raise invalid_arg(
                f"dtype is '{self.dtype}', expected auto, float32, bfloat16 or float16"
            )
        if self.activations not in ("float32", "int8"):
            raise invalid_arg(f"activations is '{self.activations}', expected float32 or int8")
        if self.quantization not in ("auto", *ROUNDED, *METHODS):
            expected = ", ".join(("auto", *ROUNDED, *METHODS))
            raise invalid_arg(f"quantization is '{self.quantization}', expected one of {expected}")
        if self.kv_cache_dtype not in KV_CACHE_DTYPES:
            raise invalid_arg(
                f"kv_cache_dtype is '{self.kv_cache_dtype}', expected one of "
                f"{', '.join(KV_CACHE_DTYPES)}"
            )
        if self.load_format not in ("auto", "dummy"):
            raise invalid_arg(f"load_format is '{self.load_format}', expected auto or dummy")
        for name in ("kv_events_endpoint", "kv_events_replay_endpoint"):
            endpoint = getattr(self, name)
            if endpoint and not endpoint.startswith(("tcp://", "ipc://")):
                raise invalid_arg(
                    f"{name} is '{endpoint}', expected tcp://HOST:PORT, tcp://*:PORT or ipc://PATH"
                )
        if self.kv_events_replay_endpoint and not self.kv_events_endpoint:
            raise invalid_arg("kv_events_replay_endpoint needs kv_events_endpoint")
        if self.kv_events_endpoint and not self.enable_prefix_caching:
            raise invalid_arg("kv_events_endpoint needs enable_prefix_caching")
        if self.block_size < 1 or self.block_size & (self.block_size - 1):
            raise invalid_arg(f"block_size is {self.block_size}, expected a power of two")
        if self.collective_timeout_s <= 0.0:
            raise invalid_arg(
                f"collective_timeout_s is {self.collective_timeout_s:g}, expected more than 0"
            )
        for name in (
            "tensor_parallel_size",
            "max_num_seqs",
            "max_num_batched_tokens",
            "max_model_len",
            "num_kv_blocks",
            "kv_cache_bytes",
            "max_waiting_requests",
            "max_prompt_bytes",
        ):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise invalid_arg(f"{name} is {value}, expected at least 1")
        if self.max_token_delay_ms < 0.0:
            raise invalid_arg(
                f"max_token_delay_ms is {self.max_token_delay_ms:g}, expected at least 0"
            )
        for name in (
            "gpu_memory_utilization",
            "kv_cache_free_gpu_mem_fraction",
            "max_request_share",
        ):
            value = getattr(self, name)
            if value is not None and not 0.0 < value <= 1.0:
                raise invalid_arg(f"{name} is {value:g}, expected more than 0 and at most 1")
