"""tokenmill: LLM inference whose one objective is cost per token."""

from __future__ import annotations

from typing import Any

__version__ = "0.1.0"
__all__ = ["LLM", "SamplingParams"]


def __getattr__(name: str) -> Any:
    """`from tokenmill import LLM` without paying for torch when only the version is wanted."""
    if name == "LLM":
        from tokenmill.llm import LLM

        return LLM
    if name == "SamplingParams":
        from tokenmill.core.request import SamplingParams

        return SamplingParams
    raise AttributeError(f"module 'tokenmill' has no attribute {name!r}")
