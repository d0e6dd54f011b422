"""DFlash written down once more, from its definition: one sequence, whole context, float64, explicit loops and softmax.

Also writes random drafters in the public layout.
"""

from __future__ import annotations

import json
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file


def drafter_json(**changes):
    config = {
        "architectures": ["DFlashDraftModel"],
        "model_type": "qwen3",
        "vocab_size": 256,
        "hidden_size": 64,
        "intermediate_size": 96,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 16,
        "rms_norm_eps": 1e-5,
        "rope_theta": 10000.0,
        "hidden_act": "silu",
        "block_size": 5,
        "num_target_layers": 2,
        "dflash_config": {"mask_token_id": 255, "target_layer_ids": [0, 1]},
        **changes,
    }
    return {name: value for name, value in config.items() if value is not None}


def write_drafter(path: Path, seed: int = 0, extra=None, **changes) -> Path:
    c = drafter_json(**changes)
    path.mkdir(parents=True)
    (path / "config.json").write_text(json.dumps(c))
    g = torch.Generator().manual_seed(seed)
    hidden, inner, dim = c["hidden_size"], c["intermediate_size"], c["head_dim"]
    q, kv = c["num_attention_heads"] * dim, c["num_key_value_heads"] * dim
    shapes = {
        "fc": (hidden, len(c["dflash_config"]["target_layer_ids"]) * hidden),
        "hidden_norm": (hidden,),
        "norm": (hidden,),
    }
    for i in range(c["num_hidden_layers"]):
        shapes |= {
            f"layers.{i}.{name}": shape
            for name, shape in {
                "input_layernorm": (hidden,), "post_attention_layernorm": (hidden,),
                "self_attn.q_proj": (q, hidden), "self_attn.k_proj": (kv, hidden), "self_attn.v_proj": (kv, hidden),
                "self_attn.o_proj": (hidden, q), "self_attn.q_norm": (dim,), "self_attn.k_norm": (dim,),
                "mlp.gate_proj": (inner, hidden), "mlp.up_proj": (inner, hidden), "mlp.down_proj": (hidden, inner),
            }.items()
        }  # fmt: skip
    tensors = {
        f"{name}.weight": torch.randn(shape, generator=g) * 0.3 + ("norm" in name) for name, shape in shapes.items()
    }
    save_file(tensors | (extra or {}), path / "model.safetensors")
    return path


def rms(x, weight, eps):
    return x / torch.sqrt((x * x).mean(-1, keepdim=True) + eps) * weight


def rotate(vector, position, theta):
    """[D]: channels i and i + D/2 turn together."""
    half = len(vector) // 2
    out = torch.empty_like(vector)
    for i in range(half):
        angle = torch.tensor(position * theta ** (-i / half), dtype=torch.float64)
        a, b = vector[i], vector[i + half]
        out[i], out[i + half] = a * angle.cos() - b * angle.sin(), b * angle.cos() + a * angle.sin()
    return out


def direct_hidden(path: Path, features, embedded, first=0):
    """features [n, L C] of positions first .. first + n - 1, embedded [K, C] at the positions behind -> [K, C] float64.

    Per layer: keys and values of the context come from the projected features, those of the block from the block's
    own normalised input; every block position sees all of them, whatever comes later in the block.
    """
    c = json.loads((path / "config.json").read_text())
    w = {name: t.double() for name, t in load_file(path / "model.safetensors").items()}
    eps, dim, theta = c["rms_norm_eps"], c["head_dim"], c["rope_theta"]
    heads, kv_heads = c["num_attention_heads"], c["num_key_value_heads"]
    context = rms(features.double() @ w["fc.weight"].T, w["hidden_norm.weight"], eps)
    x, n = embedded.double(), len(features)
    for i in range(c["num_hidden_layers"]):
        p = f"layers.{i}."
        h = rms(x, w[p + "input_layernorm.weight"], eps)
        source = torch.cat((context, h))
        out = torch.zeros(len(x), heads * dim, dtype=torch.float64)
        for head in range(heads):
            g = head // (heads // kv_heads)
            rows = slice(g * dim, (g + 1) * dim)
            k = rms(source @ w[p + "self_attn.k_proj.weight"][rows].T, w[p + "self_attn.k_norm.weight"], eps)
            v = source @ w[p + "self_attn.v_proj.weight"][rows].T
            k = torch.stack([rotate(k[j], first + j, theta) for j in range(len(k))])
            mine = slice(head * dim, (head + 1) * dim)
            q = rms(h @ w[p + "self_attn.q_proj.weight"][mine].T, w[p + "self_attn.q_norm.weight"], eps)
            for r in range(len(x)):
                scores = k @ rotate(q[r], first + n + r, theta) / dim**0.5
                out[r, mine] = torch.softmax(scores, 0) @ v
        x = x + out @ w[p + "self_attn.o_proj.weight"].T
        h = rms(x, w[p + "post_attention_layernorm.weight"], eps)
        gate, up = h @ w[p + "mlp.gate_proj.weight"].T, h @ w[p + "mlp.up_proj.weight"].T
        x = x + (gate * torch.sigmoid(gate) * up) @ w[p + "mlp.down_proj.weight"].T
    return rms(x, w["norm.weight"], eps)
