"""A Llama-family config is read as transformers reads it, or refused by the field's name. Torch-free."""

import pytest

from tests.tiny import tiny_llama_config
from tokenmill.core.errors import CheckpointError
from tokenmill.models.llama_config import read_llama_config


def read(*, num_layers=2, **changes):
    return read_llama_config({**tiny_llama_config(num_layers=num_layers), **changes}, "m")


def without(*names, **changes):
    config = {**tiny_llama_config(), **changes}
    return read_llama_config({name: value for name, value in config.items() if name not in names}, "m")


def test_defaults_of_absent_fields():
    config = without("head_dim", "num_key_value_heads", "rms_norm_eps", "rope_theta", "tie_word_embeddings")
    assert (config.head_dim, config.num_kv_heads, config.rms_norm_eps) == (16, 4, 1e-6)
    assert not config.is_tied and config.rotary.frequencies[1] == pytest.approx(10000 ** (-2 / 16))


def test_families_differ_in_biases_and_norms():
    flags = {
        name: (c.has_qkv_bias, c.has_o_bias, c.has_mlp_bias, c.has_qk_norm)
        for name in ("Llama", "Mistral", "Qwen2", "Qwen3")
        if (c := read(architectures=[f"{name}ForCausalLM"]))
    }
    assert flags == {
        "Llama": (False, False, False, False),
        "Mistral": (False, False, False, False),
        "Qwen2": (True, False, False, False),
        "Qwen3": (False, False, False, True),
    }
    biased = read(attention_bias=True, mlp_bias=True)
    assert biased.has_qkv_bias and biased.has_o_bias and biased.has_mlp_bias
    assert without("head_dim", architectures=["Qwen3ForCausalLM"]).head_dim == 128


def test_windows_by_family():
    assert read(architectures=["MistralForCausalLM"]).layer_windows == (4096, 4096)  # absent: the class's default
    assert read(architectures=["MistralForCausalLM"], sliding_window=None).layer_windows == (None, None)
    assert read(architectures=["MistralForCausalLM"], sliding_window=7).layer_windows == (7, 7)
    qwen = {"architectures": ["Qwen2ForCausalLM"], "num_layers": 3, "sliding_window": 9}
    assert read(**qwen).layer_windows == (None, None, None), "off unless use_sliding_window"
    assert read(**qwen, use_sliding_window=True, max_window_layers=1).layer_windows == (None, 9, 9)
    assert read(**qwen, use_sliding_window=True).layer_windows == (None, None, None)
    types = ["sliding_attention", "full_attention", "sliding_attention"]
    assert read(**qwen, use_sliding_window=True, layer_types=types).layer_windows == (9, None, 9)


def test_rope_settings_old_and_new():
    old = read(rope_theta=5000.0, rope_scaling={"type": "linear", "factor": 2.0})
    new = read(rope_parameters={"rope_type": "linear", "factor": 2.0, "rope_theta": 5000.0})
    assert old.rotary == new.rotary and old.rotary.frequencies[0] == 0.5
    assert read(rope_scaling={"rope_type": "default"}).rotary == read().rotary


def test_yarn_extends_the_context():
    yarn = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 2048}
    assert read(rope_scaling=yarn).max_model_len == 8192
    assert read(rope_scaling={**yarn, "attention_factor": 1.5}).rotary.magnitude == 1.5
    even = read(rope_scaling={**yarn, "mscale": 0.7, "mscale_all_dim": 0.7})
    assert even.rotary.magnitude == pytest.approx(1.0)


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"hidden_act": "gelu"}, "config.hidden_act='gelu'"),
        ({"hidden_size": 0}, "config.hidden_size=0"),
        ({"hidden_size": "64"}, "config.hidden_size='64'"),
        ({"num_hidden_layers": True}, "config.num_hidden_layers=True"),
        ({"num_key_value_heads": 3}, "config.num_key_value_heads=3 is not supported: possible: a divisor of"),
        ({"head_dim": 15}, "config.head_dim=15"),
        ({"vocab_size": None}, "config.vocab_size is missing"),
        ({"rms_norm_eps": -1.0}, "config.rms_norm_eps=-1.0"),
        ({"tie_word_embeddings": "yes"}, "config.tie_word_embeddings='yes'"),
        ({"rope_scaling": [1]}, "config.rope_scaling=[1]"),
        ({"rope_scaling": {"type": "longrope"}}, "config.rope_scaling.type='longrope'"),
        ({"rope_scaling": {"rope_type": "linear"}}, "config.rope_scaling.factor is missing"),
        ({"rope_scaling": {"rope_type": "llama3", "factor": 8.0}}, "config.rope_scaling.low_freq_factor is missing"),
        ({"rope_parameters": {"partial_rotary_factor": 0.5}}, "config.rope_parameters.partial_rotary_factor=0.5"),
        ({"quantization_config": {"quant_method": "fp8"}}, "config.quantization_config="),
        ({"num_local_experts": 8}, "config.num_local_experts=8"),
        ({"attn_logit_softcapping": 30.0}, "config.attn_logit_softcapping=30.0"),
        ({"rope_interleaved": True}, "config.rope_interleaved=True"),
        ({"architectures": ["Qwen2ForCausalLM"], "layer_types": ["sliding_attention"] * 2}, "config.layer_types="),
        (
            {"architectures": ["Qwen2ForCausalLM"], "use_sliding_window": True, "layer_types": ["chunked"] * 2},
            "config.layer_types=",
        ),
    ],
)
def test_what_is_not_supported_is_refused_by_name(changes, field):
    with pytest.raises(CheckpointError) as caught:
        read(**changes)
    assert field in caught.value.message and "possible:" in caught.value.message and "\n" not in caught.value.message


def test_fields_without_arithmetic_are_let_through():
    """Real config files carry notes of their makers; SmolLM2's own ones among them."""
    read(
        is_llama_config=True,
        rope_interleaved=False,
        unsloth_version="2024",
        pretraining_tp=1,
        attention_dropout=0.0,
        quantization_config=None,
        use_cache=True,
    )
