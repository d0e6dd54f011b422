"""Step time from measurements of one model on one machine: a table over rows, and costs of context and sequences.

    step_s = served_factor x (table(rows) + decode_seq_s x decoding sequences + chunk_s x prompt chunks
             + sampled_s x drawn tokens + decode_flop_s x attention FLOPs of decodes + prefill_flop_s x those of chunks)
             + served_step_s
Attention FLOPs come from the model's own kinds of keys, so that windows and selections bend the curve where they
should. Pure. Not responsible for: measuring (bench/calibrate), fitting (fit), files (calibration).
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass, replace

from tokenmill.core.work_description import KeyRead
from tokenmill.cost.steptime.shape import Prediction, StepShape


@dataclass(frozen=True, slots=True)
class MeasuredStepTime:
    """
    rows, rows_s    table: seconds of a step of so many rows, without the terms below; linear between entries, beyond
                    the last one with its slope
    keys            of the model (KeyRead: FLOPs only matter here)
    range_factor    four of five steps are within it
    served_factor, served_step_s
                    what a server adds that shares the machine with its clients; 1 and 0: the engine alone
    """

    rows: tuple[float, ...]
    rows_s: tuple[float, ...]
    decode_seq_s: float
    chunk_s: float
    sampled_s: float
    decode_flop_s: float
    prefill_flop_s: float
    keys: tuple[KeyRead, ...]
    range_factor: float = 1.2
    served_factor: float = 1.0
    served_step_s: float = 0.0

    def step_s(self, shape: StepShape) -> float:
        num_rows = shape.num_tokens
        if num_rows == 0:
            return 0.0
        decodes, chunks = shape.num_decode_seqs, shape.num_prefill_seqs
        seconds = self._table_s(num_rows) + self.sampled_s * shape.num_sampled
        if decodes:
            flops = _flops(self.keys, shape.decode_context_sum / decodes + 1.0, is_prefill=False)
            seconds += self.decode_seq_s * decodes
            seconds += self.decode_flop_s * flops * (decodes + shape.num_draft_tokens)
        if chunks:
            flops = _flops(self.keys, shape.prefill_context_sum / shape.num_prefill_tokens, is_prefill=True)
            seconds += self.chunk_s * chunks + self.prefill_flop_s * flops * shape.num_prefill_tokens
        return self.served_factor * seconds + self.served_step_s

    def _table_s(self, num_rows: float) -> float:
        rows, rows_s = self.rows, self.rows_s
        i = min(max(bisect_right(rows, num_rows), 1), len(rows) - 1)
        share = (num_rows - rows[i - 1]) / (rows[i] - rows[i - 1])
        return rows_s[i - 1] + share * (rows_s[i] - rows_s[i - 1])

    def decode_seconds(self, batch: int, context_sum: float, num_steps: int = 1, num_draft_tokens: int = 0) -> float:
        if batch == 0 or num_steps == 0:
            return 0.0
        middle = context_sum + batch * (num_steps - 1) / 2.0
        return num_steps * self.step_s(StepShape.decode(batch, middle, num_draft_tokens))

    def seconds(self, shape: StepShape) -> Prediction:
        total = self.step_s(shape)
        return Prediction(total, total / self.range_factor, total * self.range_factor, self.parts(shape))

    def parts(self, shape: StepShape) -> dict[str, float]:
        """Seconds by part; they sum to the step."""
        if shape.num_tokens == 0:
            return {}
        names = ("rows", "decoding sequences", "chunks", "sampling", "decode attention", "prompt attention")
        coefficients = (1.0, self.decode_seq_s, self.chunk_s, self.sampled_s, self.decode_flop_s, self.prefill_flop_s)
        amounts = (self._table_s(shape.num_tokens), *terms(self.keys, shape))
        parts = {n: self.served_factor * c * a for n, c, a in zip(names, coefficients, amounts, strict=True)}
        return parts | ({"served": self.served_step_s} if self.served_step_s else {})

    def served(self, factor: float, step_s: float) -> MeasuredStepTime:
        return replace(self, served_factor=factor, served_step_s=step_s)


def terms(keys: Sequence[KeyRead], shape: StepShape) -> tuple[float, float, float, float, float]:
    """What the costs multiply: decoding sequences, chunks, drawn tokens, attention FLOPs of decodes and of chunks."""
    decodes, chunks = shape.num_decode_seqs, shape.num_prefill_seqs
    of_decodes = of_chunks = 0.0
    if decodes:
        per_row = _flops(keys, shape.decode_context_sum / decodes + 1.0, is_prefill=False)
        of_decodes = per_row * (decodes + shape.num_draft_tokens)
    if chunks:
        per_row = _flops(keys, shape.prefill_context_sum / shape.num_prefill_tokens, is_prefill=True)
        of_chunks = per_row * shape.num_prefill_tokens
    return float(decodes), float(chunks), float(shape.num_sampled), of_decodes, of_chunks


def _flops(keys: Sequence[KeyRead], context: float, *, is_prefill: bool) -> float:
    flops = 0.0
    for key in keys:
        per_key = key.flops_per_key
        if is_prefill and key.prefill_flops_per_key is not None:
            per_key = key.prefill_flops_per_key
        flops += per_key * min(key.most_keys, context / key.tokens_per_key)
    return flops
