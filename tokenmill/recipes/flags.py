"""The flags of `tokenmill serve`: for each its setting, its help, and so its environment variable. One table.

Names are vLLM's where vLLM has such a flag. Not responsible for: parsing a command line (cli).
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Flag:
    """
    name      long option, without its dashes
    path      setting in DeploymentConfig; `models.*` is every model
    help      one line
    is_bool   given without a value; `--no-NAME` is its opposite
    aliases   other spellings, with their dashes
    group     heading in --help
    """

    name: str
    path: str
    help: str
    group: str
    is_bool: bool = False
    aliases: tuple[str, ...] = ()

    @property
    def key(self) -> str:
        return self.name.replace("-", "_")

    @property
    def variable(self) -> str:
        return "TOKENMILL_" + self.key.upper()


_DOOR, _MODEL, _FLEET, _COST = "HTTP", "Model and engine", "Fleet", "Cost"

FLAGS: tuple[Flag, ...] = (
    Flag("host", "api.host", "Address to listen on.", _DOOR),
    Flag("port", "api.port", "Port to listen on; 0 takes a free one.", _DOOR),
    Flag("api-key", "api.api_key", "Bearer key that clients must send.", _DOOR),
    Flag("chat-template", "api.chat_template", "File with a Jinja chat template to use instead.", _DOOR),
    Flag("stream-interval", "api.stream_interval", "Output tokens per streamed chunk.", _DOOR),
    Flag("log-level", "api.log_level", "debug, info, warning or error.", _DOOR),
    Flag("log-format", "api.log_format", "text or json.", _DOOR),
    Flag(
        "served-model-name", "models.*.served_model_name", "Name for clients; give it again for further names.", _MODEL
    ),
    Flag("max-model-len", "models.*.engine.max_model_len", "Context limit, prompt + output (8k, 8K).", _MODEL),
    Flag("max-num-seqs", "models.*.engine.max_num_seqs", "Most sequences in one step.", _MODEL),
    Flag("max-num-batched-tokens", "models.*.engine.max_num_batched_tokens", "Token budget of one step.", _MODEL),
    Flag("block-size", "models.*.engine.block_size", "Source tokens per KV block.", _MODEL),
    Flag("kv-cache-memory-bytes", "models.*.engine.kv_cache_memory_bytes", "KV cache per worker (2GiB).", _MODEL),
    Flag("dtype", "models.*.engine.dtype", "auto, float32 or bfloat16.", _MODEL),
    Flag("num-threads", "models.*.engine.num_threads", "Threads per worker.", _MODEL),
    Flag("enable-prefix-caching", "models.*.engine.enable_prefix_caching", "Reuse KV of equal prefixes.", _MODEL, True),
    Flag(
        "enable-chunked-prefill",
        "models.*.engine.enable_chunked_prefill",
        "Split long prompts over steps.",
        _MODEL,
        True,
    ),
    Flag("deterministic", "models.*.engine.deterministic", "Same seed, same text, whatever the batch.", _MODEL, True),
    Flag("workers", "operations.workers", "Worker processes per model.", _FLEET, aliases=("-w",)),
    Flag("router-policy", "operations.router", "How requests are placed on workers.", _FLEET),
    Flag("max-queued-requests", "operations.max_queued_requests", "Requests that may wait, per model.", _FLEET),
    Flag("request-timeout", "operations.request_timeout_s", "From submission to last token (10m).", _FLEET),
    Flag("drain-timeout", "operations.drain_timeout_s", "Time to finish what runs after SIGTERM (30s).", _FLEET),
    Flag("price-per-hour", "cost.price_per_hour", "Dollars per hour of this machine.", _COST),
    Flag("watts", "cost.watts", "Power draw of this machine.", _COST),
    Flag("slo", "cost.slo", "Latency objectives: ttft=500ms,tpot=50ms.", _COST, aliases=("--goodput",)),
)

BY_KEY = {flag.key: flag for flag in FLAGS}
