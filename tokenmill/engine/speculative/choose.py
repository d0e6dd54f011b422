"""What a speculative configuration means before anything is loaded: torch-free until files are looked at."""

from __future__ import annotations

from pathlib import Path

from tokenmill.core.errors import ConfigError
from tokenmill.engine.speculative.config import SpeculativeConfig
from tokenmill.engine.speculative.depth import DepthPolicy, FixedDepth
from tokenmill.engine.speculative.pricing import PricedDepth

#: Architectures with MTP blocks of their own.
_WITH_MTP = ("DeepseekV4ForCausalLM",)


def target_extras(config: SpeculativeConfig | None, model_path: Path) -> dict[str, str]:
    """Settings of the target model that the method needs: V4 loads its MTP blocks only when asked to."""
    if config is None or config.method not in ("mtp", "auto"):
        return {}
    from tokenmill.models.registry import architecture_of
    from tokenmill.models.weights import open_checkpoint

    architecture = architecture_of(open_checkpoint(model_path))
    if architecture in _WITH_MTP:
        return {"mtp": "on" if config.method == "mtp" else "auto"}
    if config.method == "mtp":
        raise ConfigError(
            f"speculative method mtp needs a model with MTP blocks ({', '.join(_WITH_MTP)}); {model_path} is a "
            f"{architecture}: use ngram, or draft_model or dflash with a checkpoint"
        )
    return {}


def depth_policy(config: SpeculativeConfig | None) -> DepthPolicy | None:
    if config is None:
        return None
    return PricedDepth(config.num_drafts) if config.adaptive else FixedDepth(config.num_drafts)
