"""Turns every `auto` of a DeploymentConfig into a value, and says for each what was decided, why, and from what.

Not responsible for: loading (load.py), or sizing the KV pools themselves (engine).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

from tokenmill.cost.rates import resolve_rate
from tokenmill.engine.config import EngineConfig
from tokenmill.engine.load import default_kv_bytes, resolve_dtype
from tokenmill.infra.devices import detect_machine
from tokenmill.models.store import default_name, find_local
from tokenmill.recipes.config import DeploymentConfig, ModelConfig
from tokenmill.recipes.model_facts import ModelFacts, read_model_facts

FactsOf = Callable[[str], ModelFacts | None]


@dataclass(frozen=True, slots=True)
class Decision:
    """`field` is the setting's path; `source` is what the value was taken from: rule, machine, model or catalogue."""

    field: str
    value: Any
    why: str
    source: str

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


@dataclass(frozen=True, slots=True)
class Host:
    """
    num_threads      that run here without being throttled
    available_bytes  of memory
    """

    num_threads: int
    available_bytes: int


def this_host() -> Host:
    machine = detect_machine()
    return Host(machine.cpu.num_threads, machine.memory.available_bytes)


def local_facts(spec: str) -> ModelFacts | None:
    """Facts of a model that is on this machine; None: it has to be fetched first."""
    path = find_local(spec)
    return None if path is None else read_model_facts(path)


def resolve(
    config: DeploymentConfig, *, host: Host | None = None, facts_of: FactsOf = local_facts
) -> tuple[DeploymentConfig, tuple[Decision, ...]]:
    """A config without `auto` values, and the decisions that made it. Resolving it again decides nothing.

    What depends on a model that is not on this machine yet stays None; the worker decides it at load.
    """
    resolver = _Resolver(config, host or this_host(), facts_of)
    models = tuple(resolver.model(index, model) for index, model in enumerate(config.models))
    cost = config.cost.model_copy(update=resolver.cost())
    resolved = config.model_copy(update={"models": models, "cost": cost})
    return resolved, tuple(resolver.decisions)


class _Resolver:
    def __init__(self, config: DeploymentConfig, host: Host, facts_of: FactsOf) -> None:
        self._config = config
        self._host = host
        self._facts_of = facts_of
        self._num_workers = sum(model.workers or config.operations.workers for model in config.models)
        self.decisions: list[Decision] = []

    def model(self, index: int, model: ModelConfig) -> ModelConfig:
        path = f"models.{index}"
        update: dict[str, Any] = {}
        if model.served_model_name is None:
            name = default_name(model.model)
            update["served_model_name"] = self._decide(f"{path}.served_model_name", name, "name of the model", "model")
        if model.workers is None:
            workers = self._config.operations.workers
            update["workers"] = self._decide(f"{path}.workers", workers, "operations.workers", "rule")
        update["engine"] = model.engine.model_copy(update=self._engine(f"{path}.engine", model))
        return model.model_copy(update=update)

    def _engine(self, path: str, model: ModelConfig) -> dict[str, Any]:
        engine = model.engine
        update = {**self._dtype(path, engine), **self._from_host(path, engine)}
        is_open = model.worker == "native" and (engine.max_model_len is None or engine.block_size is None)
        facts = self._facts_of(model.model) if is_open else None
        if facts and engine.max_model_len is None and facts.max_model_len is not None:
            limit = facts.max_model_len
            update["max_model_len"] = self._decide(f"{path}.max_model_len", limit, "the model's own limit", "model")
        if facts and engine.block_size is None:
            why = f"architecture {facts.architecture}"
            update["block_size"] = self._decide(f"{path}.block_size", facts.block_size, why, "model")
        return update

    def _dtype(self, path: str, engine: EngineConfig) -> dict[str, Any]:
        if engine.dtype != "auto":
            return {}
        why = "deterministic: bits matter more" if engine.deterministic else "half the bytes of float32 per step"
        return {"dtype": self._decide(f"{path}.dtype", resolve_dtype(engine), why, "rule")}

    def _from_host(self, path: str, engine: EngineConfig) -> dict[str, Any]:
        host, update = self._host, {}
        if engine.num_threads is None:
            threads = max(1, host.num_threads // self._num_workers)
            why = f"{host.num_threads} cores / {self._num_workers} workers"
            update["num_threads"] = self._decide(f"{path}.num_threads", threads, why, "machine")
        if engine.kv_cache_memory_bytes is None:
            num_bytes = default_kv_bytes(host.available_bytes, self._num_workers)
            why = f"share of {host.available_bytes / 2**30:.1f} GiB free memory / {self._num_workers} workers, capped"
            field = f"{path}.kv_cache_memory_bytes"
            update["kv_cache_memory_bytes"] = self._decide(field, num_bytes, why, "machine")
        return update

    def cost(self) -> dict[str, Any]:
        given = self._config.cost
        if given.price_per_hour is not None and given.watts is not None:
            return {}
        rate = resolve_rate(price_per_hour=given.price_per_hour, watts=given.watts)
        why_price, _, why_watts = rate.source.removeprefix("price: ").partition("; watts: ")
        update: dict[str, Any] = {}
        if given.price_per_hour is None:
            price = rate.usd_per_hour
            update["price_per_hour"] = self._decide("cost.price_per_hour", price, why_price, "catalogue")
        if given.watts is None:
            update["watts"] = self._decide("cost.watts", rate.watts, why_watts, "catalogue")
        return update

    def _decide(self, field: str, value: Any, why: str, source: str) -> Any:
        self.decisions.append(Decision(field, value, why, source))
        return value
