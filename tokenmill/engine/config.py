"""Settings of one engine. `auto` values (None) are resolved at load, against the model and the machine."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from tokenmill.core.config import FrozenConfig
from tokenmill.core.scheduling import SchedulerLimits
from tokenmill.engine.speculative.config import SpeculativeConfig

Dtype = Literal["auto", "float32", "bfloat16"]


class EngineConfig(FrozenConfig):
    """
    dtype                   weights and activations; auto: bfloat16, or float32 when deterministic
    kernels                 auto: the C kernels where they can be built and serve the model, else torch
    quantization            of weights, made on load: int8 per column, int4 in groups of 32 inputs, nvfp4, mxfp4;
                            fp8 and fp8_block have no C kernels: packed in memory, expanded for each product
    kv_cache_dtype          of KV rows; auto: the model's choice. A model refuses what it does not support
    index_cache_dtype       of an indexer's keys (models with one)
    max_model_len           None: the model's own limit
    max_num_seqs            most sequences in one step
    max_num_batched_tokens  token budget of one step: a decode waits no longer than that many prompt tokens take
    block_size              source tokens per logical block; None: the model's choice (Llama 16, V4 128)
    kv_cache_memory_bytes   None: 40 % of free memory, at most 4 GiB, at most what max_num_seqs full contexts need
    enable_prefix_caching   reuse KV blocks of equal prefixes
    enable_inflight_sharing  requests with a common prefix wait while the first of them computes it
    window_retention        what the prefix cache keeps of window groups (models with such groups only): "all" block
                            boundaries, "periodic" (every window_retention_interval-th block), or nothing, and
                            "recompute" the tokens that rebuild the window before a hit
    enable_chunked_prefill  off: a prompt is computed in one step or waits
    chat_encoding           how messages are written; None: the model's own, or its Jinja template
    tool_call_parser, reasoning_parser
                            what calls and reasoning in the output are read with; None: by the chat template and the
                            model's name; "none": not at all
    grammar_backend         what structured output is enforced with
    grammar_deadline_s      a grammar that takes longer to compile is refused
    speculative_config      what drafts tokens for the model to verify, e.g. {"method": "ngram"}; None: nothing
    deterministic           reference kernels: same seed, same text, whatever else is in the batch
    overlap                 tell the tokens of a step while the next one runs, in one more thread (engine/overlap)
    plan_log                file to write every step plan and its result to (engine/plan_log.py)
    num_threads             None: cores of the machine divided by workers
    """

    dtype: Dtype = "auto"
    kernels: Literal["auto", "native", "cpu"] = "auto"
    quantization: Literal["none", "int8", "int4", "nvfp4", "mxfp4", "fp8", "fp8_block"] = "none"
    kv_cache_dtype: Literal["auto", "fp32", "bf16", "fp8_e4m3", "int8"] = "auto"
    index_cache_dtype: Literal["auto", "fp32", "bf16", "fp8_e4m3", "fp4"] = "auto"
    max_model_len: int | None = Field(default=None, ge=2)
    max_num_seqs: int = Field(default=64, ge=1)
    max_num_batched_tokens: int = Field(default=256, ge=1)
    block_size: int | None = Field(default=None, ge=1)
    kv_cache_memory_bytes: int | None = Field(default=None, ge=1)
    enable_prefix_caching: bool = True
    enable_inflight_sharing: bool = True
    window_retention: Literal["all", "periodic", "recompute"] = "all"
    window_retention_interval: int = Field(default=8, ge=1)
    enable_chunked_prefill: bool = True
    chat_encoding: str | None = None
    tool_call_parser: str | None = None
    reasoning_parser: str | None = None
    grammar_backend: str = "llguidance"
    grammar_deadline_s: float = Field(default=5.0, gt=0)
    speculative_config: SpeculativeConfig | None = None
    deterministic: bool = False
    hash_algorithm: Literal["xxh3", "sha256"] = "xxh3"
    overlap: bool = False
    plan_log: str | None = None
    num_threads: int | None = Field(default=None, ge=1)

    @property
    def model_extras(self) -> dict[str, str]:
        """Settings that only some models know, where they are not auto."""
        extras = {"kv_cache_dtype": self.kv_cache_dtype, "index_cache_dtype": self.index_cache_dtype}
        return {name: value for name, value in extras.items() if value != "auto"}

    @property
    def scheduler_limits(self) -> SchedulerLimits:
        return SchedulerLimits(
            self.max_num_seqs, self.max_num_batched_tokens, self.enable_chunked_prefill, self.enable_inflight_sharing
        )

    @property
    def retention_interval(self) -> int | None:
        """Blocks between kept window states; None: none are kept (recompute)."""
        intervals = {"all": 1, "periodic": self.window_retention_interval, "recompute": None}
        return intervals[self.window_retention]

    @property
    def retained_share(self) -> float:
        """Window blocks kept for prefix hits, per block of history."""
        if not self.enable_prefix_caching or self.retention_interval is None:
            return 0.0
        return 1 / self.retention_interval
