"""Other spellings of V4's tensor names, turned into the hub's; torch-free.

Hugging Face's `save_pretrained` writes either the modules' names (model.layers.0.self_attn.q_a_proj.weight) or the
hub's below `model.`, with `attn.norm` for `attn.kv_norm`; both are accepted.
"""

from __future__ import annotations

import re

_TOP = {
    "embed_tokens.weight": "embed.weight",
    "lm_head.weight": "head.weight",
    "hc_head.hc_fn": "hc_head_fn",
    "hc_head.hc_base": "hc_head_base",
    "hc_head.hc_scale": "hc_head_scale",
}

#: Within a block, applied in order; each pattern is anchored to whole name parts.
_IN_BLOCK = [
    (re.compile(pattern), replacement)
    for pattern, replacement in (
        (r"^self_attn\.", "attn."),
        (r"^mlp\.", "ffn."),
        (r"^input_layernorm\.", "attn_norm."),
        (r"^post_attention_layernorm\.", "ffn_norm."),
        (r"^(attn|ffn)_hc\.(fn|base|scale)$", r"hc_\1_\2"),
        (r"^attn\.sinks$", "attn.attn_sink"),
        (r"^attn\.norm\.", "attn.kv_norm."),
        (r"^attn\.q_a_norm\.", "attn.q_norm."),
        (r"^attn\.q_a_proj\.", "attn.wq_a."),
        (r"^attn\.q_b_proj\.", "attn.wq_b."),
        (r"^attn\.kv_proj\.", "attn.wkv."),
        (r"^attn\.o_a_proj\.", "attn.wo_a."),
        (r"^attn\.o_b_proj\.", "attn.wo_b."),
        (r"^attn\.compressor\.indexer\.q_b_proj\.", "attn.indexer.wq_b."),
        (r"^attn\.compressor\.indexer\.scorer\.weights_proj\.", "attn.indexer.weights_proj."),
        (r"^attn\.compressor\.indexer\.", "attn.indexer.compressor."),
        (r"compressor\.position_bias$", "compressor.ape"),
        (r"compressor\.kv_proj\.", "compressor.wkv."),
        (r"compressor\.gate_proj\.", "compressor.wgate."),
        (r"compressor\.kv_norm\.", "compressor.norm."),
        (r"^ffn\.gate\.e_score_correction_bias$", "ffn.gate.bias"),
        (r"^ffn\.shared_experts\.gate_proj\.", "ffn.shared_experts.w1."),
        (r"^ffn\.shared_experts\.up_proj\.", "ffn.shared_experts.w3."),
        (r"^ffn\.shared_experts\.down_proj\.", "ffn.shared_experts.w2."),
        (r"\.weight_scale_inv$", ".scale"),
    )
]
_BLOCK = re.compile(r"^(layers|mtp)\.(\d+)\.")


def hub_name(name: str) -> str:
    """The hub's name of a stored tensor; names that are not known come back without their `model.` prefix."""
    name = name.removeprefix("model.")
    block = _BLOCK.match(name)
    if block is None:
        return _TOP.get(name, name)
    rest = name[block.end() :]
    for pattern, replacement in _IN_BLOCK:
        rest = pattern.sub(replacement, rest)
    return block.group() + rest


def fused_experts(name: str) -> tuple[str, str] | None:
    """(block prefix, 'gate_up' or 'down') of a tensor that holds all experts of a layer at once, else None."""
    match = re.match(r"^(.*\.ffn\.experts)\.(gate_up|down)_proj$", name)
    return (match.group(1), match.group(2)) if match else None
