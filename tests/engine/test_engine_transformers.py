"""Greedy text of the engine equals transformers', five prompts served together."""

import pytest
import torch

from tests.models.as_folder import write_folder
from tests.models.test_model_llama_transformers import CASES, write
from tokenmill.core.request import SamplingParams
from tokenmill.llm import LLM
from tokenmill.models.store import resolve_model

pytestmark = pytest.mark.requires_transformers

NUM_TOKENS = 24


@torch.inference_mode()
def greedy(model, prompt):
    """transformers' own generate, end-of-sequence ignored."""
    ids = torch.tensor([prompt])
    out = model.generate(
        ids, attention_mask=torch.ones_like(ids), max_new_tokens=NUM_TOKENS, min_new_tokens=NUM_TOKENS, do_sample=False,
        eos_token_id=None, pad_token_id=0,
    )  # fmt: skip
    return out[0, len(prompt) :].tolist()


def check(llm, model, prompts):
    params = SamplingParams(temperature=0, max_tokens=NUM_TOKENS, ignore_eos=True)
    answers = llm.generate(prompts, params)
    assert [a.outputs[0].token_ids for a in answers] == [greedy(model, prompt) for prompt in prompts]


@pytest.mark.parametrize("name", ["llama3", "qwen2", "qwen3"])
def test_greedy_ids_of_tiny_checkpoints(name, tmp_path):
    family, changes = CASES[name]
    model = write(family, changes, tmp_path)
    llm = LLM(str(tmp_path), dtype="float32", kernels="cpu", max_num_batched_tokens=50, kv_cache_memory_bytes=2**24)
    check(llm, model, [[(7 * i + 3 * j) % 200 for j in range(5 + 23 * i)] for i in range(5)])


@pytest.mark.ci
@pytest.mark.timeout(300)
@pytest.mark.requires_gguf
def test_greedy_ids_of_smollm2(tmp_path):
    from transformers import AutoModelForCausalLM

    path = resolve_model("smollm2")
    model = AutoModelForCausalLM.from_pretrained(write_folder(path, tmp_path), dtype=torch.float32).eval()
    llm = LLM("smollm2", dtype="float32", kernels="cpu", kv_cache_memory_bytes=2**28)
    texts = (
        "The capital of France is",
        "Once upon a time there was a miller who",
        "def fibonacci(n):\n",
        "Water boils at 100 degrees because",
        "Q: What do bees make?\nA:",
    )
    check(llm, model, [llm.tokenizer.encode(text) for text in texts])
