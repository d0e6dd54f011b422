"""Router policies by name: the built-in ones and those of separate packages."""

from __future__ import annotations

from typing import cast

from tokenmill.core.registry import Registry
from tokenmill.operations.router.base import RouterPolicy

ROUTER_POLICIES = Registry(
    "router policy",
    "tokenmill.router_policies",
    {
        "round_robin": "tokenmill.operations.router.round_robin:RoundRobin",
        "least_loaded": "tokenmill.operations.router.least_loaded:LeastLoaded",
        "kv_aware": "tokenmill.operations.router.kv_aware:KVAware",
        "session": "tokenmill.operations.router.session:SessionAffinity",
        "cost_aware": "tokenmill.operations.router.cost_aware:CostAware",
    },
)


def load_policy(name: str, seed: int) -> RouterPolicy:
    """The policy called `name`; ConfigError with the possible names when there is none."""
    return cast(RouterPolicy, ROUTER_POLICIES.load(name)(seed=seed))
