"""Which tensors of a model are quantised, and which share a scale. Names only; torch-free."""

from __future__ import annotations

import fnmatch
import re
from collections.abc import Iterable, Mapping, Sequence

from tokenmill.core.errors import ConfigError

#: Linear layers by name, the last part before `.weight`: the Llama family's, then the hub's and transformers' for V4.
#: Embeddings, heads, norms, routers, compressors and hyper-connections stay as they are: small, and sensitive.
_LINEAR = re.compile(
    r"(^|\.)(q_proj|k_proj|v_proj|o_proj|gate_proj|up_proj|down_proj"
    r"|attn\.(wq_a|wq_b|wkv|wo_a|wo_b)|attn\.indexer\.wq_b|(experts\.\d+|shared_experts)\.w[123])\.weight$"
)
_EXPERT = re.compile(r"(^|\.)experts\.\d+\.")
#: Layers that are computed as one: kernels of others want one tensor scale for them.
_FUSED = (("q_proj", "k_proj", "v_proj"), ("gate_proj", "up_proj"), ("w1", "w3"))


def choose_targets(
    shapes: Mapping[str, Sequence[int]], *, experts_only: bool = False, exclude: Iterable[str] = ()
) -> list[str]:
    """Names of the weights to quantise. exclude: patterns (fnmatch) of tensor or module names. ConfigError if none."""
    patterns = tuple(exclude)
    found = [
        name
        for name, shape in shapes.items()
        if len(shape) == 2 and _LINEAR.search(name) and not _matches(name, patterns)
    ]
    if experts_only:
        found = [name for name in found if _EXPERT.search(name)]
    if not found:
        what = "experts (w1, w2, w3 of experts.N)" if experts_only else "linear layers"
        raise ConfigError(f"there is nothing to quantise: no {what} with known names are left in this model")
    return found


def _matches(name: str, patterns: Iterable[str]) -> bool:
    module = name.removesuffix(".weight")
    return any(fnmatch.fnmatch(name, p) or fnmatch.fnmatch(module, p) for p in patterns)


def sharing(name: str, targets: Iterable[str]) -> list[str]:
    """The targets that share a tensor scale with `name`, itself among them."""
    head, _, last = name.removesuffix(".weight").rpartition(".")
    known = set(targets)
    for group in _FUSED:
        if last in group:
            return [n for n in (f"{head}.{member}.weight" for member in group) if n in known]
    return [name]
