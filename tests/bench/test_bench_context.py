"""`bench context`: bytes as the specification counts them, real steps on caches that nobody computed, the command."""

import json
from typing import Any

import pytest
import torch
from typer.testing import CliRunner

from tests.deepseek_v4.tiny import random_tensors, v4_json, write_checkpoint
from tokenmill.bench import context as bench_context
from tokenmill.bench import machine_peaks
from tokenmill.bench.context import ContextBench, fit_line, run_context_bench
from tokenmill.bench.long_sequence import LongSequence
from tokenmill.bench.machine_peaks import Peaks, measure_peaks
from tokenmill.cli.app import build_app
from tokenmill.core.errors import ConfigError
from tokenmill.kernels.select import select_kernels
from tokenmill.models.deepseek_v4 import builder
from tokenmill.models.deepseek_v4.model import Trace
from tokenmill.models.deepseek_v4.native import NativeDeepseekV4
from tokenmill.models.deepseek_v4.synthetic import CONTEXT_JSON, SyntheticCheckpoint
from tokenmill.models.registry import LoadOptions

SMALL = CONTEXT_JSON | {
    "vocab_size": 256,
    "hidden_size": 64,
    "num_attention_heads": 4,
    "head_dim": 32,
    "qk_rope_head_dim": 8,
    "q_lora_rank": 32,
    "o_groups": 2,
    "o_lora_rank": 16,
    "index_n_heads": 8,
    "index_head_dim": 16,
    "index_topk": 16,
    "n_routed_experts": 8,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 32,
}


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """The synthetic model and the peaks in sizes for tests; everything else is the product's."""
    monkeypatch.setattr(bench_context, "SyntheticCheckpoint", lambda seed: SyntheticCheckpoint(SMALL, seed))
    monkeypatch.setattr(machine_peaks, "_BUFFER_BYTES", 2**20)
    monkeypatch.setattr(machine_peaks, "_MATRIX", 64)


def section_13(num_tokens: int, entry: int, key: int, config: dict[str, Any]) -> int:
    """The specification's table, row by row: online HCA state, minimal CSA state, MTP window not counted."""
    d, i = config["head_dim"], config["index_head_dim"]
    total = 0
    for ratio in config["compress_ratios"][: config["num_hidden_layers"]]:
        total += min(num_tokens, config["sliding_window"]) * entry
        if ratio == 4:  # overlap: part A of 4 tokens; open window: both parts of 3; kv and gate, main and indexer
            total += num_tokens // 4 * (entry + key) + (4 + 2 * 3) * 2 * (d + i) * 4
        elif ratio:
            total += num_tokens // ratio * entry + 3 * d * 4
    return total


ENTRY = {"fp32": 4 * 32, "bf16": 2 * 32, "fp8_e4m3": 48}  # 24 + 2 x 8 + 1 scale, padded to 8
KEY = {"fp32": 4 * 16, "bf16": 2 * 16, "fp8_e4m3": 16 + 4, "fp4": 12}  # 8 + 1 scale, padded to 4


@pytest.mark.parametrize(("kv", "index"), [("bf16", "bf16"), ("fp32", "fp8_e4m3"), ("fp8_e4m3", "fp4")])
def test_live_bytes_are_the_specifications(small: None, kv: str, index: str) -> None:
    contexts = (100, 4096, 16383, 65536)
    result = run_context_bench(ContextBench(contexts=contexts, kv_cache_dtype=kv, index_cache_dtype=index), print)
    assert result["model"]["kv_row_bytes"] == ENTRY[kv] and result["model"]["index_row_bytes"] == KEY[index]
    for point, num_tokens in zip(result["contexts"], contexts, strict=True):
        assert point["num_tokens"] == num_tokens
        assert point["live_bytes"] == section_13(num_tokens, ENTRY[kv], KEY[index], SMALL)
        assert point["mtp_window_bytes"] == min(num_tokens, 128) * ENTRY[kv]
        assert point["live_bytes"] <= point["allocated_bytes"]
        assert len(point["step_s"]) == 7 and point["roofline_s"] > 0
        assert point["ratio"] == pytest.approx(point["step_s_p50"] / point["roofline_s"])


def test_a_million_tokens_in_the_released_layouts() -> None:
    """The default model's bytes at 1M, by hand: 584-byte entries, 68-byte keys, three CSA and three HCA layers."""
    options = LoadOptions(
        torch.bfloat16,
        select_kernels(deterministic=True),
        {"kv_cache_dtype": "fp8_e4m3", "index_cache_dtype": "fp4"},
    )
    model: Any = builder.build(
        SyntheticCheckpoint(SMALL | {"head_dim": 512, "qk_rope_head_dim": 64, "index_head_dim": 128}), options
    ).model
    sequence = LongSequence(model, (2**20,), 1, 128)
    assert model.max_model_len == 2**20
    held = sequence.held_bytes(2**20)
    assert held["csa"] == 3 * 2**18 * 584 and held["indexer"] == 3 * 2**18 * 68
    assert held["hca"] == 3 * 2**13 * 584 and held["window"] == 7 * 128 * 584
    assert sum(held.values()) == section_13(2**20, 584, 68, CONTEXT_JSON)
    assert len(sequence.decode(2**20)) == 1


def test_threads_that_share_the_keys_of_a_sequence_choose_what_the_reference_chooses() -> None:
    """4096 index keys of one row are scored in spans; entries and hidden states equal the torch definition."""
    models = []
    for deterministic in (False, True):
        kernels = select_kernels(deterministic=deterministic, dtype=torch.float32)
        models.append(builder.build(SyntheticCheckpoint(SMALL), LoadOptions(torch.float32, kernels)).model)
    assert isinstance(models[0], NativeDeepseekV4)
    chosen, hidden = [], []
    for model in models:
        sequence, trace = LongSequence(model, (16390,), 5, 128), Trace()  # type: ignore[arg-type]
        with torch.inference_mode():
            streams = model.forward_streams(sequence._batch(16389), sequence.caches, trace)  # type: ignore[attr-defined]
            hidden.append(model.collapse(streams))  # type: ignore[attr-defined]
        chosen.append({layer: ids.sort(dim=-1).values for layer, ids in trace.chosen.items()})
    assert chosen[0].keys() == chosen[1].keys() == {1, 3, 5}
    assert all(torch.equal(chosen[0][layer], chosen[1][layer].long()) for layer in chosen[0])
    torch.testing.assert_close(hidden[0], hidden[1], atol=1e-3, rtol=1e-3)


def test_the_command_prints_one_json_object_last(small: None) -> None:
    arguments = ["bench", "context", "--contexts", "1k,4k", "--kv-cache-dtype", "fp8_e4m3"]
    answer = CliRunner().invoke(build_app(), arguments, catch_exceptions=False)
    assert answer.exit_code == 0, answer.output
    result = json.loads(answer.stdout.splitlines()[-1])
    assert [point["num_tokens"] for point in result["contexts"]] == [1024, 4096]
    assert result["fit"]["slope"] != 0 and result["peaks"]["read_bytes_per_s"] > 0
    keep, periodic, recompute = result["retention"]["policies"]
    assert keep["kept_bytes_per_block"] > periodic["kept_bytes_per_block"] > recompute["kept_bytes_per_block"] == 0
    assert keep["hit_flops"] == 0 < periodic["hit_flops"] < recompute["hit_flops"]
    for column in ("live KV bytes", "allocated bytes", "roofline", "GFLOP per hit", "recompute"):
        assert column in answer.stdout


def test_a_checkpoint_on_disk(small: None, tmp_path: Any) -> None:
    config = v4_json()
    folder = write_checkpoint(tmp_path / "tiny", config, random_tensors(config))
    result = run_context_bench(ContextBench(model=str(folder)), lambda line: None)
    assert [point["num_tokens"] for point in result["contexts"]] == [4096]
    assert result["fit"] is None
    with pytest.raises(ConfigError, match=r"\[8192\] exceed .* at most 4096"):
        run_context_bench(ContextBench(model=str(folder), contexts=(8192,)), lambda line: None)


@pytest.mark.parametrize(
    ("settings", "message"),
    [({"num_steps": 4}, "num_steps=4"), ({"contexts": (5,)}, "context of 5 tokens"), ({"dtype": "fp8"}, "'fp8'")],
)
def test_impossible_settings(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        ContextBench(**settings).check()


def test_fit_and_roofline() -> None:
    fit = fit_line([1.0, 2.0, 3.0], [3.5, 5.5, 7.5])
    assert fit is not None
    assert fit["slope"] == pytest.approx(2.0) and fit["intercept_s"] == pytest.approx(1.5)
    peaks = Peaks(read_bytes_per_s=10.0, flops_per_s=100.0, num_threads=1)
    assert peaks.seconds(50.0, 100.0) == 5.0 and peaks.seconds(10.0, 400.0) == 4.0
    assert peaks.best(Peaks(5.0, 300.0, 1)) == Peaks(10.0, 300.0, 1)
    measured = measure_peaks(torch.bfloat16, repeats=2, buffer_bytes=2**20)
    assert measured.read_bytes_per_s > 0 and measured.flops_per_s > 0
