"""DeploymentConfig: one frozen object per layer, composed. Not responsible for: reading files and flags (load.py)."""

from __future__ import annotations

from typing import Literal, Self

from pydantic import Field, field_validator, model_validator

from tokenmill.api.config import ApiConfig
from tokenmill.core.config import FrozenConfig
from tokenmill.core.errors import ConfigError
from tokenmill.core.slo import SLO
from tokenmill.cost.budgets import BudgetConfig
from tokenmill.engine.config import EngineConfig
from tokenmill.models.store import default_name
from tokenmill.operations.config import OperationsConfig
from tokenmill.operations.worker.arguments import SimulatedConfig


class ModelConfig(FrozenConfig):
    """
    model              path, alias or hf:org/name
    served_model_name  what clients call it; None: made from `model`
    workers            processes that serve it; None: operations.workers
    worker             native computes; simulated counts up on modelled step times: for trials of everything around it,
                       or as a stand-in for hardware that is not here
    simulated          of a simulated worker: its step times and sizes
    """

    model: str = Field(min_length=1)
    served_model_name: str | None = Field(default=None, min_length=1)
    workers: int | None = Field(default=None, ge=1)
    worker: Literal["native", "simulated"] = "native"
    simulated: SimulatedConfig = SimulatedConfig()
    engine: EngineConfig = EngineConfig()

    @property
    def name(self) -> str:
        return self.served_model_name or default_name(self.model)


class CostConfig(FrozenConfig):
    """
    price_per_hour  dollars per hour of this machine; None: the catalogue's entry for it
    watts           power draw of this machine; None: a meter, else the catalogue
    slo             latency objectives that make a token a good one, e.g. "ttft=500ms,tpot=50ms"
    ledger          file (JSON lines) that the ledger is kept in over restarts; None: in memory
    budgets         what sessions and tenants may spend, see BudgetConfig
    """

    price_per_hour: float | None = Field(default=None, ge=0)
    watts: float | None = Field(default=None, ge=0)
    slo: str | None = None
    ledger: str | None = Field(default=None, min_length=1)
    budgets: BudgetConfig = BudgetConfig()

    @field_validator("slo")
    @classmethod
    def _parsable(cls, text: str | None) -> str | None:
        if text is not None:
            try:
                SLO.parse(text)
            except ConfigError as error:
                raise ValueError(error.message) from None
        return text


class DeploymentConfig(FrozenConfig):
    """Everything that `tokenmill serve` needs to know. Checks that need two layers are here."""

    models: tuple[ModelConfig, ...] = Field(min_length=1)
    operations: OperationsConfig = OperationsConfig()
    api: ApiConfig = ApiConfig()
    cost: CostConfig = CostConfig()

    @model_validator(mode="after")
    def _names_are_unique(self) -> Self:
        names = [model.name for model in self.models]
        for name in names:
            if names.count(name) > 1:
                raise ValueError(f"two models are called {name!r}: set models.N.served_model_name of one of them")
        for alias, name in self.api.model_aliases.items():
            if name not in names:
                raise ValueError(f"api.model_aliases.{alias} names {name!r}: possible: {', '.join(names)}")
        return self
