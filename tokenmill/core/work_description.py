"""What a model is to somebody who prices it: weights by use, keys by kind, bytes. Reported by models' work.py.

Only sizes: no device, no parallel layout, no efficiency (cost/steptime turns these into seconds).
Multiply-add = 2 FLOPs. "Active": what one token is multiplied with.
"""

from __future__ import annotations

import math
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class KeyRead:
    """One kind of cache rows that a token reads: at context c it meets min(most_keys, c / tokens_per_key) of them.

    flops_per_key, bytes_per_key  all layers of the kind together
    prefill_flops_per_key         where prompts are computed in another form than decoded tokens (latent attention)
    """

    flops_per_key: float
    bytes_per_key: float
    tokens_per_key: float = 1.0
    most_keys: float = math.inf
    prefill_flops_per_key: float | None = None

    def num_keys(self, context: float) -> float:
        return min(self.most_keys, context / self.tokens_per_key)


@dataclass(frozen=True, slots=True)
class WorkDescription:
    """
    dense_params            met by every token: attention, shared experts, dense MLPs, gates; without the head
    expert_params           one routed expert of one layer
    num_experts             routed experts per layer; 0: a dense model
    *_bytes                 stored bytes of all such weights (embedding: all of its table)
    dense_dtype, expert_dtype, attention_dtype
                            what the products are computed in: bf16, fp8, fp4
    kv_bytes_per_token      a sequence's growth per token; kv_bytes_constant: windows and states
    kv_shards               over how many ranks of tensor parallelism the cache can be split (latent caches: 1)
    draft_params            active weights of one drafted token (MTP block and head); 0: no drafts
    ops_per_layer           operations that a well-fused engine launches per layer: each has a fixed time
    """

    name: str
    num_layers: int
    hidden_size: int
    vocab_size: int
    dense_params: float
    dense_bytes: float
    head_params: float
    head_bytes: float
    embedding_bytes: float
    keys: tuple[KeyRead, ...]
    kv_bytes_per_token: float
    kv_bytes_constant: float = 0.0
    kv_shards: int = 1
    num_moe_layers: int = 0
    num_experts: int = 0
    experts_per_token: int = 0
    expert_params: float = 0.0
    expert_bytes: float = 0.0
    dense_dtype: str = "bf16"
    expert_dtype: str = "bf16"
    attention_dtype: str = "bf16"
    draft_params: float = 0.0
    draft_bytes: float = 0.0
    ops_per_layer: float = 9.0
    max_model_len: int = 131072

    @property
    def active_expert_params(self) -> float:
        return self.num_moe_layers * self.experts_per_token * self.expert_params

    @property
    def active_params(self) -> float:
        """The head counts, the embedding table does not."""
        return self.dense_params + self.active_expert_params + self.head_params

    @property
    def weight_bytes(self) -> float:
        """All that is stored, draft blocks included."""
        return self.dense_bytes + self.head_bytes + self.embedding_bytes + self.expert_bytes + self.draft_bytes

    def attention_flops(self, context: float, *, is_prefill: bool = False) -> float:
        """Of one token that sees `context` tokens."""
        return sum(_flops(key, is_prefill) * key.num_keys(context) for key in self.keys)

    def token_flops(self, context: float, *, is_prefill: bool = False) -> float:
        return 2.0 * self.active_params + self.attention_flops(context, is_prefill=is_prefill)

    def read_bytes(self, context: float) -> float:
        """Cache bytes read for one decoded token (or for one sequence's rows of a step)."""
        return sum(key.bytes_per_key * key.num_keys(context) for key in self.keys)

    def kv_bytes(self, context: float) -> float:
        """What a sequence of `context` tokens holds."""
        return self.kv_bytes_constant + self.kv_bytes_per_token * context

    def expert_hit(self, num_tokens: float) -> float:
        """Share of the experts that `num_tokens` tokens visit in a layer, if each draws evenly."""
        if self.num_experts == 0:
            return 0.0
        return 1.0 - (1.0 - self.experts_per_token / self.num_experts) ** num_tokens


def _flops(key: KeyRead, is_prefill: bool) -> float:
    if is_prefill and key.prefill_flops_per_key is not None:
        return key.prefill_flops_per_key
    return key.flops_per_key
