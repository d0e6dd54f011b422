"""Settings of speculative decoding, spelled as vLLM spells its --speculative-config. Torch-free."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field, model_validator

from tokenmill.core.config import FrozenConfig

#: Verifying more positions at once than this pays nowhere on a CPU: steps of up to 8 rows cost about the same.
DEFAULT_DRAFTS = {"ngram": 7, "draft_model": 4, "mtp": 2, "dflash": 7, "auto": 7}
MOST_DRAFTS = 64


class SpeculativeConfig(FrozenConfig):
    """
    method                  ngram, draft_model, mtp, dflash or a plug-in's name; auto: what the model has, and ngram
    num_speculative_tokens  most drafts per sequence and step; None: the method's default
    model                   checkpoint of a draft model or DFlash drafter
    adaptive                draft fewer, or nothing, where that is cheaper per token; off: always
                            num_speculative_tokens
    draft_sample_method     greedy: drafts are the most likely tokens, and every token is what the same seed gives
                            without speculation. probabilistic: drafts are drawn, and kept by rejection sampling: the
                            same distribution, more of them stay at high temperatures, but other tokens for a seed
    prompt_lookup_min       ngram: shortest run of tokens that is looked up
    prompt_lookup_max       ngram: longest run whose agreement is compared
    """

    method: str = "auto"
    num_speculative_tokens: int | None = Field(default=None, ge=1, le=MOST_DRAFTS)
    model: str | None = None
    adaptive: bool = True
    draft_sample_method: Literal["greedy", "probabilistic"] = "greedy"
    prompt_lookup_min: int = Field(default=2, ge=1)
    prompt_lookup_max: int = Field(default=8, ge=1)

    @model_validator(mode="before")
    @classmethod
    def _aliases(cls, data: Any) -> Any:
        """vLLM's names of the same methods."""
        if isinstance(data, str):
            data = {"method": data}
        if isinstance(data, dict) and data.get("method") in _ALIASES:
            return {**data, "method": _ALIASES[data["method"]]}
        return data

    @model_validator(mode="after")
    def _check(self) -> SpeculativeConfig:
        if self.prompt_lookup_min > self.prompt_lookup_max:
            raise ValueError(
                f"prompt_lookup_min={self.prompt_lookup_min} exceeds prompt_lookup_max={self.prompt_lookup_max}"
            )
        return self

    @property
    def without_model(self) -> SpeculativeConfig:
        return self.model_copy(update={"model": None})

    @property
    def num_drafts(self) -> int:
        return self.num_speculative_tokens or DEFAULT_DRAFTS.get(self.method, 4)


_ALIASES = {
    "deepseek_mtp": "mtp",
    "[ngram]": "ngram",
    "prompt_lookup": "ngram",
    "suffix": "ngram",
    "draft": "draft_model",
}
