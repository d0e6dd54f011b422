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
    value     what the value is, for --help
    aliases   other spellings, with their dashes
    group     heading in --help
    """

    name: str
    path: str
    help: str
    group: str
    is_bool: bool = False
    value: str = "TEXT"
    aliases: tuple[str, ...] = ()

    @property
    def key(self) -> str:
        return self.name.replace("-", "_")

    @property
    def variable(self) -> str:
        return "TOKENMILL_" + self.key.upper()


def _api(name: str, help_: str, value: str = "TEXT") -> Flag:
    return Flag(name, f"api.{name.replace('-', '_')}", help_, "HTTP", value=value)


def _engine(name: str, help_: str, value: str = "TEXT", *, is_bool: bool = False) -> Flag:
    return Flag(name, f"models.*.engine.{name.replace('-', '_')}", help_, "Model and engine", is_bool, value)


def _fleet(name: str, setting: str, help_: str, value: str, *aliases: str) -> Flag:
    return Flag(name, f"operations.{setting}", help_, "Fleet", False, value, aliases)


def _cost(name: str, help_: str, value: str, *aliases: str) -> Flag:
    return Flag(name, f"cost.{name.replace('-', '_')}", help_, "Cost", False, value, aliases)


FLAGS: tuple[Flag, ...] = (
    _api("host", "Address to listen on."),
    _api("port", "Port to listen on; 0 takes a free one.", "N"),
    _api("api-key", "Bearer key that clients must send."),
    _api("chat-template", "File with a Jinja chat template to use instead of the model's.", "FILE"),
    _api("stream-interval", "Output tokens per streamed chunk.", "N"),
    _api("log-level", "debug, info, warning or error."),
    _api("log-format", "text or json."),
    Flag(
        "served-model-name",
        "models.*.served_model_name",
        "Name for clients; give it again for further names.",
        "Model and engine",
        value="NAME",
    ),
    Flag("worker", "models.*.worker", "native, or simulated (no weights, modelled step times).", "Model and engine"),
    Flag("hardware", "models.*.simulated.hardware", "What a simulated worker is.", "Model and engine", value="KEY"),
    _engine("max-model-len", "Context limit, prompt + output (8k = 8000, 8K = 8192).", "N"),
    _engine("max-num-seqs", "Most sequences in one step.", "N"),
    _engine("max-num-batched-tokens", "Token budget of one step.", "N"),
    _engine("block-size", "Source tokens per KV block.", "N"),
    _engine("kv-cache-memory-bytes", "KV cache of one worker (2GiB).", "BYTES"),
    _engine("dtype", "auto, float32 or bfloat16."),
    _engine("kv-cache-dtype", "Storage of KV rows, if the model has a choice."),
    _engine("chat-encoding", "How messages are written: jinja, deepseek_v4, deepseek_v4_0731.", "NAME"),
    _engine("tool-call-parser", "What calls in the output are read with; none: nothing.", "NAME"),
    _engine("reasoning-parser", "What reasoning in the output is read with; none: nothing.", "NAME"),
    _engine("grammar-backend", "What structured output is enforced with.", "NAME"),
    _engine("quantization", "Of weights, made on load: none, int8, int4, nvfp4, mxfp4, fp8 or fp8_block."),
    _engine("kernels", "auto, native (C) or cpu (torch)."),
    _engine(
        "speculative-config",
        'Draft tokens and verify them: auto, or JSON such as {"method": "mtp", "num_speculative_tokens": 2}.',
        "JSON",
    ),
    _engine("num-threads", "Threads of one worker.", "N"),
    _engine("enable-prefix-caching", "Reuse KV of equal prefixes.", is_bool=True),
    _engine("enable-chunked-prefill", "Split long prompts over steps.", is_bool=True),
    _engine("overlap", "Tell a step's tokens while the next one runs.", is_bool=True),
    _engine("deterministic", "Same seed, same text, whatever else is in the batch.", is_bool=True),
    _fleet("workers", "workers", "Worker processes per model.", "N", "-w"),
    _fleet("router-policy", "router", "How requests are placed on workers.", "NAME", "--router"),
    _fleet("max-queued-requests", "max_queued_requests", "Requests that may wait, per model.", "N"),
    _fleet("request-timeout", "request_timeout_s", "From submission to last token (10m).", "TIME"),
    _fleet("drain-timeout", "drain_timeout_s", "Time to finish what runs after SIGTERM (30s).", "TIME"),
    _cost("price-per-hour", "Dollars per hour of this machine.", "USD"),
    _cost("watts", "Power draw of this machine.", "W"),
    _cost("ledger", "File that costs are kept in over restarts (JSON lines).", "FILE"),
    Flag("session-budget", "cost.budgets.session_usd", "Dollars that a session may cost.", "Cost", value="USD"),
    Flag("tenant-budget", "cost.budgets.tenant_usd", "Dollars that a tenant may cost.", "Cost", value="USD"),
    Flag("budget-action", "cost.budgets.when_spent", "When a budget is spent: stop or degrade.", "Cost"),
    _cost("slo", "Latency objectives: ttft=500ms,tpot=50ms.", "TEXT", "--goodput"),
)

BY_KEY = {flag.key: flag for flag in FLAGS}
