"""Roll-back through the engine: drafts verified by scheduler, cache manager and runner; rejected ones never happened.

No proposer is built in yet, so the test proposes: `num_right` true continuations, then wrong tokens.
"""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from tests.deepseek_v4.conftest import Golden
from tests.deepseek_v4.test_v4_engine import make_engine, request, run
from tokenmill.core.step import SequencePlan, SequenceResult, StepPlan, StepResult
from tokenmill.engine.engine import Engine

NUM_DRAFTS = 8
MAX_TOKENS = 14
STARTS = [*range(2, 7), *range(120, 131), *range(249, 259)]


def draft_step(engine: Engine, truth: list[int], num_right: int) -> None:
    """One step of a single decoding sequence with NUM_DRAFTS drafts behind its newest token."""
    scheduler, runner = engine._scheduler, engine.runner
    plan = scheduler.schedule()
    assert plan is not None
    (planned,) = plan.sequences
    sequence = scheduler.get(planned.request_id)
    assert sequence is not None and planned.num_scheduled_tokens == 1
    drafts = [truth[min(sequence.num_output_tokens + i, len(truth) - 1)] for i in range(NUM_DRAFTS)]
    drafts = [t if i < num_right else (t + 1) % engine.card.vocab_size for i, t in enumerate(drafts)]
    end = planned.num_computed_tokens + 1 + NUM_DRAFTS
    assert scheduler.kv.reserve(planned.request_id, end)
    drafted = with_drafts(planned, scheduler.kv.block_tables(planned.request_id))
    tokens, accepted = verify(runner, drafted, drafts, plan.step_id)
    assert accepted >= min(num_right, NUM_DRAFTS) or sequence.num_output_tokens + num_right >= len(truth)
    result = SequenceResult(planned.request_id, tuple(tokens), 1 + accepted)
    scheduler.update(StepPlan(plan.step_id, (drafted,)), StepResult((result,)))
    engine.check_integrity()


def with_drafts(planned: SequencePlan, tables: object) -> SequencePlan:
    return replace(
        planned,
        num_scheduled_tokens=1 + NUM_DRAFTS,
        num_draft_tokens=NUM_DRAFTS,
        is_sampling=False,
        block_tables=tables,
    )


@torch.inference_mode()
def verify(runner, drafted: SequencePlan, drafts: list[int], step_id: int) -> tuple[list[int], int]:
    """Greedy: the longest run of drafts that the model would have drawn, and one token more."""
    state = runner._states[drafted.request_id]
    known = len(state.token_ids)
    state.token_ids.extend(drafts)
    batch = runner._build_batch(StepPlan(step_id, (drafted,)))
    hidden = runner._model.forward(batch, runner._caches)
    drawn = runner._model.compute_logits(hidden).argmax(-1).tolist()
    accepted = next((i for i, draft in enumerate(drafts) if draft != drawn[i]), len(drafts))
    runner._model.commit(batch, runner._caches, [1 + accepted])
    tokens = drawn[: accepted + 1]
    state.token_ids[known:] = tokens
    return tokens, accepted


def speculate(engine: Engine, prompt: list[int], truth: list[int], num_right: int) -> list[int]:
    engine.add(request("spec", prompt, len(truth)))
    sequence = engine._scheduler.get("spec")
    assert sequence is not None
    while sequence.num_output_tokens == 0:
        engine.step()
    while engine._scheduler.get("spec") is not None:
        draft_step(engine, truth, num_right)
    engine.runner.remove("spec")
    return sequence.token_ids[len(prompt) :][: len(truth)]


QUICK = (0, 3, NUM_DRAFTS)


@pytest.mark.parametrize(
    "num_right", [n if n in QUICK else pytest.param(n, marks=pytest.mark.ci) for n in range(NUM_DRAFTS + 1)]
)
def test_golden_rollback_of_any_length_at_every_position(golden: Golden, num_right: int) -> None:
    """S09: 0..8 of 8 drafts accepted, around 4, 128 and 256; ids equal plain decoding, also warm from the cache."""
    settings = {"deterministic": False, "dtype": "float32", "max_model_len": 512}
    plain, engine = make_engine(golden, **settings), make_engine(golden, **settings)
    base = golden.ids(300)
    for start in STARTS:
        truth = run(plain, request(f"p{start}", base[:start], MAX_TOKENS))[f"p{start}"].ids
        assert speculate(engine, base[:start], truth, num_right) == truth, f"prompt of {start}"
        assert engine.stats().kv_usage == 0
