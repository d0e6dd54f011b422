"""transformers as a peer for DeepSeek V4: it runs the same model, from hub names, and from FP8 + FP4 storage."""

from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from tokenmill.bench.transformers_peer import Setting, TransformersPeer
from tokenmill.core.errors import CheckpointError
from tokenmill.models.plain import open_plain

pytestmark = pytest.mark.requires_transformers
GOLDENS = Path(__file__).parents[1] / "data" / "goldens"


@pytest.mark.parametrize("name", ["tiny-flash", "tiny-quant"])
def test_the_peer_runs_the_golden_model(name: str) -> None:
    peer = TransformersPeer(GOLDENS / name, "float32", torch.get_num_threads())
    assert peer.attentions == ["eager"] and set(peer.experts) == {"grouped_mm", "batched_mm", "eager"}
    reference = load_file(GOLDENS / name / "reference.safetensors")
    ids = reference["prompt_5.input_ids"]
    with torch.inference_mode():
        logits = peer.model(input_ids=ids[None], use_cache=False).logits[0]
    assert (logits - reference["prompt_5.logits"]).abs().max().item() < 1e-3
    greedy = reference["prompt_5.greedy_ids"].tolist()[:3]
    assert peer.generate([ids.tolist()], 3, Setting(1, "eager", 0.0, "eager")) == [greedy]


def test_other_quantised_folders_are_refused(tmp_path: Any) -> None:
    (tmp_path / "config.json").write_text('{"model_type": "llama", "quantization_config": {"quant_method": "awq"}}')
    (tmp_path / "model.safetensors").write_bytes((GOLDENS / "tiny-flash" / "model.safetensors").read_bytes())
    with pytest.raises(CheckpointError, match="quant_method='awq' is not supported"):
        open_plain(tmp_path)
