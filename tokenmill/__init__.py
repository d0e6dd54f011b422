"""tokenmill: LLM inference whose one objective is cost per token."""

__version__ = "0.1.0"
