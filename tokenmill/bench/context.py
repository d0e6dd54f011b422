"""`bench context`: what a long context costs DeepSeek V4, in bytes held and in seconds per token beside the roofline.

Not responsible for: filling caches and stepping (long_sequence), the machine's peaks (machine_peaks), printing (cli).
"""

from __future__ import annotations

import resource
import statistics
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from tokenmill.bench.environment import describe_environment
from tokenmill.bench.long_sequence import LongSequence, blocks_needed
from tokenmill.bench.machine_peaks import Peaks, measure_peaks
from tokenmill.core.errors import ConfigError
from tokenmill.core.units import format_bytes
from tokenmill.infra.memory import available_bytes
from tokenmill.kernels.select import select_kernels
from tokenmill.models.deepseek_v4 import builder, groups
from tokenmill.models.deepseek_v4.model import V4Base
from tokenmill.models.deepseek_v4.retention import retention_costs
from tokenmill.models.deepseek_v4.synthetic import SyntheticCheckpoint
from tokenmill.models.registry import DTYPES, LoadOptions, load_model
from tokenmill.models.store import resolve_model

CONTEXTS = (4096, 65536, 262144, 1048576)
_NUM_WARM_UP = 2


@dataclass(frozen=True, slots=True)
class ContextBench:
    """
    model      path or alias of a DeepSeek V4 checkpoint; None: a synthetic one, built in memory
    contexts   tokens of the sequence after the last measured step; (): 4k, 64k, 256k and 1M as far as they fit
    num_steps  decode steps that count at each context; their median is reported
    """

    model: str | None = None
    contexts: tuple[int, ...] = ()
    num_steps: int = 7
    dtype: str = "bfloat16"
    kv_cache_dtype: str = "auto"
    index_cache_dtype: str = "auto"
    block_size: int = groups.DEFAULT_BLOCK_SIZE
    seed: int = 0

    def check(self) -> None:
        if self.num_steps < 5:
            raise ConfigError(f"num_steps={self.num_steps} is too few for a median: give 5 or more")
        least = self.num_steps + _NUM_WARM_UP + 1
        for context in self.contexts:
            if context < least:
                raise ConfigError(f"a context of {context} tokens has no room for the steps: give {least} or more")
        if self.dtype not in DTYPES:
            raise ConfigError(f"dtype {self.dtype!r} is not possible: choose {' or '.join(DTYPES)}")


def run_context_bench(bench: ContextBench, tell: Callable[[str], None]) -> dict[str, Any]:
    """Measure; `tell` gets a line per stage. The result is JSON-able."""
    bench.check()
    tell(f"{'loading' if bench.model else 'drawing'} {bench.model or 'a synthetic DeepSeek V4'}")
    model, kernels = _model(bench)
    contexts = _contexts(bench, model)
    num_steps = bench.num_steps + _NUM_WARM_UP
    _check_memory(model, contexts, num_steps, bench.block_size)
    tell("measuring this machine")
    peaks = measure_peaks(DTYPES[bench.dtype])
    tell(f"filling the caches of {max(contexts)} tokens")
    sequence = LongSequence(model, contexts, num_steps, bench.block_size, bench.seed)
    step_s = {}
    for context in contexts:
        step_s[context] = sequence.decode(context)[_NUM_WARM_UP:]
        tell(f"{context} tokens: {statistics.median(step_s[context]) * 1e3:.1f} ms per token")
    peaks = peaks.best(measure_peaks(DTYPES[bench.dtype]))
    points = [_point(model, sequence, context, step_s[context], peaks) for context in contexts]
    return {
        "bench": "context",
        "settings": asdict(bench),
        "environment": describe_environment(),
        "model": _describe(model, kernels),
        "peaks": peaks.to_dict(),
        "contexts": points,
        "fit": fit_line([p["roofline_s"] for p in points], [p["step_s_p50"] for p in points]),
        "retention": _retention(model, contexts, bench.block_size),
        "peak_memory_bytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
    }


def _model(bench: ContextBench) -> tuple[V4Base, str]:
    extra = {"kv_cache_dtype": bench.kv_cache_dtype, "index_cache_dtype": bench.index_cache_dtype, "mtp": "auto"}
    if bench.model is None:
        dtype = DTYPES[bench.dtype]
        options = LoadOptions(dtype, select_kernels(deterministic=False, dtype=dtype), extra)
        built = builder.build(SyntheticCheckpoint(seed=bench.seed), options)
        model, choices = built.model, built.kernels or options.kernels.choices
    else:
        from tokenmill.models.registry import architecture_of
        from tokenmill.models.weights import open_checkpoint

        path = resolve_model(bench.model)
        architecture = architecture_of(open_checkpoint(path))
        if architecture != "DeepseekV4ForCausalLM":
            raise ConfigError(f"bench context measures DeepSeek V4, and {bench.model} is {architecture}: choose a V4")
        loaded = load_model(path, dtype=bench.dtype, extra=extra)
        model, choices = loaded.model, loaded.kernels
    assert isinstance(model, V4Base), type(model)
    return model, choices["linear"].name


def _contexts(bench: ContextBench, model: V4Base) -> tuple[int, ...]:
    """Those asked for, refused when one is too long; by default those that fit."""
    limit = model.max_model_len
    too_long = [context for context in bench.contexts if context > limit]
    if too_long:
        raise ConfigError(f"contexts {too_long} exceed the model's max_position_embeddings: at most {limit}")
    if bench.contexts:
        return tuple(sorted(set(bench.contexts)))
    return tuple(context for context in CONTEXTS if context <= limit) or (limit,)


def _check_memory(model: V4Base, contexts: Sequence[int], num_steps: int, block_size: int) -> None:
    declared = model.cache_groups(block_size)
    num_blocks = blocks_needed(declared, contexts, num_steps, block_size)
    wanted, free = sum(g.bytes_per_block * num_blocks[g.name] for g in declared), available_bytes()
    if wanted > free:
        raise ConfigError(
            f"caches of {max(contexts)} tokens need {format_bytes(wanted)}, {format_bytes(free)} are free: shorter "
            "--contexts, or --kv-cache-dtype fp8_e4m3 --index-cache-dtype fp4"
        )


def _describe(model: V4Base, kernels: str) -> dict[str, Any]:
    config = model.config
    return {
        "num_parameters": model.num_parameters,
        "hidden_size": config.hidden_size,
        "compress_ratios": list(config.compress_ratios),
        "max_model_len": model.max_model_len,
        "num_mtp": model.num_mtp,
        "kv_row_bytes": model.formats.kv.row_bytes,
        "index_row_bytes": model.formats.index.row_bytes,
        "kernels": kernels,
    }


def _point(model: V4Base, sequence: LongSequence, context: int, step_s: list[float], peaks: Peaks) -> dict[str, Any]:
    """One context. Live bytes are counted in the tensors and must be what the model declares of itself."""
    held = sequence.held_bytes(context)
    declared = groups.live_bytes(model.config, model.formats, context, model.num_mtp)
    assert held == declared, f"{context} tokens: the tensors hold {held}, the model declares {declared}"
    allocated = sequence.allocated_bytes(context)
    work = model.step_work([1], [context - 1])
    roofline_s = peaks.seconds(work.weight_bytes + work.cache_bytes, work.flops)
    median_s = statistics.median(step_s)
    return {
        "num_tokens": context,
        "live_bytes": sum(n for name, n in held.items() if name != "mtp_window"),
        "mtp_window_bytes": held.get("mtp_window", 0),
        "live_bytes_by_group": held,
        "allocated_bytes": sum(n for name, n in allocated.items() if name != "mtp_window"),
        "allocated_bytes_by_group": allocated,
        "step_s": step_s,
        "step_s_p50": median_s,
        "flops": work.flops,
        "weight_bytes": work.weight_bytes,
        "cache_bytes": work.cache_bytes,
        "roofline_s": roofline_s,
        "ratio": median_s / roofline_s,
    }


def fit_line(x: Sequence[float], y: Sequence[float]) -> dict[str, float] | None:
    """Least squares y = slope x + intercept; None where all x are equal."""
    if len(set(x)) < 2:
        return None
    slope, intercept = statistics.linear_regression(x, y)
    return {"slope": slope, "intercept_s": intercept}


def _retention(model: V4Base, contexts: Sequence[int], block_size: int) -> dict[str, Any]:
    """What each policy costs for a prefix as long as 64k tokens, or the longest context below."""
    prefix = max([c for c in contexts if c <= CONTEXTS[1]] or [min(contexts)])
    costs = retention_costs(model.config, model.formats, prefix, block_size=block_size)
    num_blocks = max(1, prefix // block_size)
    policies = [asdict(cost) | {"kept_bytes_per_block": cost.kept_bytes / num_blocks} for cost in costs]
    return {"prefix_tokens": prefix, "block_size": block_size, "policies": policies}
