"""Hugging Face transformers on the same prompts: static batches, at the batch size, attention and experts that suit it.

Not responsible for: our own engine (throughput.py), or printing.
"""

from __future__ import annotations

import json
import statistics
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

from tokenmill.core.errors import SetupError
from tokenmill.models.weights import read_json

ATTENTIONS = ("sdpa", "eager")
EXPERTS = ("grouped_mm", "batched_mm", "eager")
#: Fields of config.json that describe how weights are stored.
_QUANTISED_FIELDS = ("quantization_config", "expert_dtype")
_PROBE_TOKENS = 9  # 1 for the prefill, 8 for the mean decode step


@dataclass(frozen=True, slots=True)
class Setting:
    """`seconds` is the estimate for the whole workload from one short probe; `experts` is None without experts."""

    batch_size: int
    attention: str
    seconds: float
    experts: str | None = None

    @property
    def kernels(self) -> str:
        return f"{self.attention} attention" + (f", {self.experts} experts" if self.experts else "")

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


class TransformersPeer:
    """One model of transformers, from the same checkpoint and in the same dtype as ours."""

    def __init__(self, path: Path, dtype: str, num_threads: int) -> None:
        try:
            import torch
            import transformers
        except ImportError as error:
            raise SetupError(f"--against transformers needs it installed: pip install transformers ({error})") from None
        transformers.utils.logging.set_verbosity_error()
        transformers.utils.logging.disable_progress_bar()
        torch.set_num_threads(num_threads)
        self._torch = torch
        self.model = _load(path, getattr(torch, dtype)).eval()
        self.num_threads = num_threads
        self.attentions = [name for name in ATTENTIONS if self._takes(self.model.set_attn_implementation, name)]
        self.experts = self._possible_experts()

    def _possible_experts(self) -> list[str | None]:
        """[None] for a model without experts, or whose experts have one implementation."""
        if not self.model._can_set_experts_implementation():
            return [None]
        return [name for name in EXPERTS if self._takes(self.model.set_experts_implementation, name)]

    @staticmethod
    def _takes(setter: Callable[[str], None], name: str) -> bool:
        """An architecture that has no such implementation says so with a ValueError."""
        try:
            setter(name)
        except ValueError:
            return False
        return True

    def _use(self, attention: str, experts: str | None) -> None:
        self.model.set_attn_implementation(attention)
        if experts is not None:
            self.model.set_experts_implementation(experts)

    def generate(self, prompts: Sequence[list[int]], osl: int, setting: Setting) -> list[list[int]]:
        """Greedy, exactly `osl` tokens each, in batches of setting.batch_size. Prompts must have one length."""
        self._use(setting.attention, setting.experts)
        outputs: list[list[int]] = []
        for start in range(0, len(prompts), setting.batch_size):
            outputs += self._generate_batch(prompts[start : start + setting.batch_size], osl)
        return outputs

    def _generate_batch(
        self, batch: Sequence[list[int]], osl: int, on_token: Callable[[], None] | None = None
    ) -> list[list[int]]:
        """on_token is called when the logits of each next token are there."""
        ids = self._torch.tensor(batch)
        with self._torch.inference_mode():
            out = self.model.generate(
                ids,
                attention_mask=self._torch.ones_like(ids),
                max_new_tokens=osl,
                min_new_tokens=osl,
                do_sample=False,
                pad_token_id=0,
                eos_token_id=None,
                generation_config=self._generation_config(),
                logits_processor=[] if on_token is None else [lambda ids, logits: (on_token(), logits)[1]],
            )
        return [row[ids.shape[1] :] for row in out.tolist()]

    def _generation_config(self) -> Any:
        """A fresh one: the checkpoint's own may ask for sampling or penalties."""
        from transformers import GenerationConfig

        return GenerationConfig(use_cache=True)

    def find_best(
        self, prompts: Sequence[list[int]], osl: int, on_probe: Callable[[Setting], None]
    ) -> tuple[Setting, list[Setting]]:
        """The quickest setting by short probes, and all that were tried.

        Larger batches until they stop paying, with the first kernels; the other kernels at the batch size that won.
        """
        tried: list[Setting] = []

        def probe(batch_size: int, attention: str, experts: str | None) -> float:
            seconds = self._estimate(prompts, osl, batch_size, attention, experts)
            tried.append(Setting(batch_size, attention, seconds, experts))
            on_probe(tried[-1])
            return seconds

        best_s, num_worse = float("inf"), 0
        for batch_size in batch_sizes(len(prompts)):
            seconds = probe(batch_size, self.attentions[0], self.experts[0])
            num_worse = num_worse + 1 if seconds > best_s else 0
            best_s = min(best_s, seconds)
            if num_worse == 2:
                break
        winner = min(tried, key=lambda setting: setting.seconds).batch_size
        for attention in self.attentions[1:]:
            probe(winner, attention, self.experts[0])
        attention = min(tried, key=lambda setting: setting.seconds).attention
        for experts in self.experts[1:]:
            probe(winner, attention, experts)
        return min(tried, key=lambda setting: setting.seconds), tried

    def _estimate(
        self, prompts: Sequence[list[int]], osl: int, batch_size: int, attention: str, experts: str | None
    ) -> float:
        """Seconds for all prompts: (prefill + osl - 1 decode steps) per batch, both measured on one batch."""
        self._use(attention, experts)
        batch = prompts[:batch_size]
        self._generate_batch([prompt[:8] for prompt in batch], 2)  # the first call of a batch size allocates
        at_s = [time.perf_counter()]
        self._generate_batch(batch, _PROBE_TOKENS, on_token=lambda: at_s.append(time.perf_counter()))
        prefill_s, *step_s = [later - earlier for earlier, later in pairwise(at_s)]
        return len(prompts) / batch_size * (prefill_s + statistics.median(step_s) * (osl - 1))


def batch_sizes(num_prompts: int) -> list[int]:
    """4, 8, 16 … and all at once; 1, too, where there are few prompts."""
    first = (1,) if num_prompts < 8 else ()
    return [size for size in (*first, 4, 8, 16, 32, 64, 128) if size < num_prompts] + [num_prompts]


def common_prefix_share(ours: Sequence[Sequence[int]], theirs: Sequence[Sequence[int]]) -> float:
    """Median share of each answer up to the first token that differs: both ran the same model only if it is high."""
    shares = []
    for mine, other in zip(ours, theirs, strict=True):
        length = min(len(mine), len(other))
        first = next((i for i in range(length) if mine[i] != other[i]), length)
        shares.append(first / length if length else 1.0)
    return statistics.median(shares)


def _load(path: Path, dtype: Any) -> Any:
    """Their class with this checkpoint's weights; what their library cannot read is expanded by our reader, so that
    both run one model."""
    from transformers import AutoModelForCausalLM

    if path.suffix == ".gguf":
        return _load_gguf(path, dtype)
    if "quantization_config" in read_json(path / "config.json"):
        return _load_expanded(path, dtype)
    return AutoModelForCausalLM.from_pretrained(path, dtype=dtype)


def _load_gguf(path: Path, dtype: Any) -> Any:
    from transformers import AutoConfig, AutoModelForCausalLM

    from tokenmill.models.weights import open_checkpoint

    checkpoint = open_checkpoint(path)
    fields = {key: value for key, value in checkpoint.config.items() if key != "model_type"}
    config = AutoConfig.for_model(checkpoint.config["model_type"], **fields)
    model = AutoModelForCausalLM.from_config(config, dtype=dtype)
    weights = {name: checkpoint.read(name).to(dtype) for name in checkpoint.shapes()}
    missing, unexpected = model.load_state_dict(weights, strict=False)
    tied = {"lm_head.weight"} if config.tie_word_embeddings else set()
    assert set(missing) <= tied and not unexpected, f"missing {missing}, unexpected {unexpected}"
    model.tie_weights()
    return model


def _load_expanded(path: Path, dtype: Any) -> Any:
    """FP8 blocks and FP4 experts as plain tensors of `dtype`, in a folder that lives as long as the loading."""
    from safetensors.torch import save_file
    from transformers import AutoModelForCausalLM

    from tokenmill.models.plain import open_plain

    checkpoint = open_plain(path)
    with tempfile.TemporaryDirectory(prefix="tokenmill-peer-") as folder:
        tensors = {name: _as_plain(checkpoint.read(name), dtype) for name in checkpoint.shapes()}
        save_file(tensors, Path(folder) / "model.safetensors")
        config = {key: value for key, value in checkpoint.config.items() if key not in _QUANTISED_FIELDS}
        (Path(folder) / "config.json").write_text(json.dumps(config), encoding="utf-8")
        loaded: Any = AutoModelForCausalLM.from_pretrained(folder, dtype=dtype, output_loading_info=True)
    model, info = loaded
    wrong = {key: sorted(info[key]) for key in ("missing_keys", "unexpected_keys", "mismatched_keys") if info[key]}
    if wrong:
        raise SetupError(
            f"transformers does not take the de-quantised weights of {path}: {wrong}; compare another model"
        )
    return model


def _as_plain(tensor: Any, dtype: Any) -> Any:
    """Contiguous and of its own memory; wide tensors and tables stay what they are."""
    is_expanded = tensor.is_floating_point() and tensor.dim() == 2
    return tensor.to(dtype if is_expanded else tensor.dtype, copy=True).contiguous()
