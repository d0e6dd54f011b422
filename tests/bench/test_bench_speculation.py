"""`bench speculation` end to end on a tiny model: rows, targets, methods that the model lacks."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from tests.structured.engines import write_byte_llama
from tokenmill.bench.draft_prompts import draft_prompts
from tokenmill.bench.speculation import SpeculationBench
from tokenmill.cli.app import build_app
from tokenmill.core.errors import ConfigError
from tokenmill.text.tokenizer import Tokenizer


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_byte_llama(tmp_path_factory.mktemp("bytes"))


def test_every_method_in_turn_and_one_json_line_last(checkpoint: Path) -> None:
    command = [
        "bench", "speculation", "--model", str(checkpoint), "--prompts", "code-edit", "--isl", "60", "--osl", "12",
        "--concurrency", "1,2", "--repeats", "2", "--set", "num_threads=1", "--set", "max_model_len=512",
        "--config", 'ngram={"method": "ngram", "prompt_lookup_min": 1, "adaptive": false}',
    ]  # fmt: skip
    done = CliRunner().invoke(build_app(), command)
    assert done.exit_code == 0, done.output
    result = json.loads(done.stdout.strip().splitlines()[-1])
    assert set(result["refused"]) == {"mtp", "dflash"}
    rows = {(row["method"], row["concurrency"]): row for row in result["results"]}
    assert set(rows) == {(m, n) for m in ("off", "ngram", "auto") for n in (1, 2)}
    assert all(len(row["seconds"]) == 2 and row["tok_s_per_user"] > 0 for row in rows.values())
    assert rows["off", 1]["speedup"] == 1 and rows["off", 1]["acceptance_length"] is None
    assert rows["ngram", 2]["drafted_per_token"] > 0 and 0 <= rows["ngram", 2]["rejected_share"] <= 1
    assert result["auto_over_off"] > 0 and result["auto_over_best"] > 0


def test_prompts_are_real_text_and_differ(checkpoint: Path) -> None:
    tokenizer = Tokenizer.load(checkpoint)
    prompts = draft_prompts("code-edit", tokenizer, 10, 200)
    assert len({tuple(p) for p in prompts}) == 10
    assert "```python" in tokenizer.decode(prompts[0])
    with pytest.raises(ConfigError, match="possible: code-edit, domains"):
        draft_prompts("poems", tokenizer, 1, 10)


@pytest.mark.parametrize("wrong", [{"methods": ("ngram",)}, {"repeats": 0}, {"concurrency": ()}])
def test_impossible_settings(wrong: dict[str, object]) -> None:
    with pytest.raises(ConfigError):
        SpeculationBench(model="m", **wrong).check()  # type: ignore[arg-type]
