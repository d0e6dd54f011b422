"""Write small .gguf files with the gguf package's own writer, out of the tensors of a Hugging Face folder."""

import numpy as np
from gguf import GGMLQuantizationType, GGUFWriter, quantize

NAMES = {
    "input_layernorm": "attn_norm",
    "post_attention_layernorm": "ffn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "self_attn.q_norm": "attn_q_norm",
    "self_attn.k_norm": "attn_k_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}


def gguf_name(name):
    top = {"model.embed_tokens": "token_embd", "model.norm": "output_norm", "lm_head": "output"}
    stem, leaf = name.rsplit(".", 1)
    if stem in top:
        return f"{top[stem]}.{leaf}"
    layer, part = stem.removeprefix("model.layers.").split(".", 1)
    return f"blk.{layer}.{NAMES[part]}.{leaf}"


def pair_by_pair(weight, head_dim):
    """llama.cpp's row order of q and k: halves (x0 x1 .. y0 y1 ..) -> pairs (x0 y0 x1 y1 ..)."""
    rows = weight.reshape(-1, 2, head_dim // 2, *weight.shape[1:])
    return np.ascontiguousarray(rows.swapaxes(1, 2)).reshape(weight.shape)


def write_gguf(path, config, tensors, *, kind="F32", architecture="llama", keys=(), extra_tensors=(), vocabulary=None):
    """tensors: Hugging Face name -> float32. One-dimensional ones stay F32, as llama.cpp writes them.

    keys            pairs (metadata key, value) added or replaced; value None drops the key
    extra_tensors   pairs (gguf name, float32 array)
    """
    writer = GGUFWriter(path, architecture)
    values = {
        "block_count": config["num_hidden_layers"],
        "context_length": config["max_position_embeddings"],
        "embedding_length": config["hidden_size"],
        "feed_forward_length": config["intermediate_size"],
        "attention.head_count": config["num_attention_heads"],
        "attention.head_count_kv": config["num_key_value_heads"],
        "attention.key_length": config["head_dim"],
        "attention.value_length": config["head_dim"],
        "attention.layer_norm_rms_epsilon": config["rms_norm_eps"],
        "rope.freq_base": config["rope_theta"],
        "rope.dimension_count": config["head_dim"],
    }
    values = {f"{architecture}.{name}": value for name, value in values.items()} | dict(keys)
    for key, value in values.items():
        if value is not None:
            _add(writer, key, value)
    if vocabulary is not None:
        writer.add_token_list(vocabulary)
        writer.add_eos_token_id(2)
        writer.add_eot_token_id(5)
    for name, tensor in tensors.items():
        array = np.ascontiguousarray(tensor.numpy().astype(np.float32))
        if architecture == "llama" and (".q_proj." in name or ".k_proj." in name):
            array = pair_by_pair(array, config["head_dim"])
        _add_tensor(writer, gguf_name(name), array, kind if array.ndim > 1 else "F32")
    for name, array in extra_tensors:
        _add_tensor(writer, name, array, "F32")
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def _add(writer, key, value):
    if isinstance(value, str):
        writer.add_string(key, value)
    elif isinstance(value, list):
        writer.add_array(key, value)
    elif isinstance(value, float):
        writer.add_float32(key, value)
    else:
        writer.add_uint32(key, value)


def _add_tensor(writer, name, array, kind):
    if kind in ("F32", "F16"):
        writer.add_tensor(name, array if kind == "F32" else array.astype(np.float16))
    else:
        quantised = GGMLQuantizationType[kind]
        writer.add_tensor(name, quantize(array, quantised), raw_dtype=quantised)
