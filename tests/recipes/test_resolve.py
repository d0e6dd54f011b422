"""`auto` becomes a value with a reason; nothing that was given is touched."""

import json
import struct
import subprocess
import sys
from pathlib import Path

import pytest

from tokenmill.core.errors import CheckpointError
from tokenmill.recipes.load import load_deployment
from tokenmill.recipes.model_facts import ModelFacts, read_model_facts
from tokenmill.recipes.resolve import Host, resolve

HOST = Host(num_threads=8, available_bytes=20 * 2**30)
LLAMA = ModelFacts("llama", 8192, 16)


def _resolve(sources: list[str], facts: ModelFacts | None = LLAMA, **given: object):
    config = load_deployment(sources, **given)  # type: ignore[arg-type]
    resolved, decisions = resolve(config, host=HOST, facts_of=lambda spec: facts)
    return resolved, {decision.field: decision for decision in decisions}


def test_every_auto_gets_a_value_and_a_reason() -> None:
    resolved, decisions = _resolve(["hf:org/m"])
    (model,) = resolved.models
    engine = model.engine
    assert (model.served_model_name, model.workers) == ("org/m", 1)
    assert (engine.dtype, engine.num_threads, engine.max_model_len, engine.block_size) == ("bfloat16", 8, 8192, 16)
    assert engine.kv_cache_memory_bytes == 4 * 2**30  # 40 % would be 8 GiB: the cap holds
    assert resolved.cost.price_per_hour is not None and resolved.cost.watts is not None
    assert all(decision.why and decision.source for decision in decisions.values())
    of_the_template = {"chat_encoding", "tool_call_parser", "reasoning_parser"}
    are_off = {"plan_log", "speculative_config"}
    assert set(_nones(engine.model_dump())) == of_the_template | are_off
    assert not _nones(resolved.models[0].model_dump(exclude={"engine", "simulated"}))


def _nones(data: dict) -> list[str]:
    return [key for key, value in data.items() if value is None or (isinstance(value, dict) and _nones(value))]


def test_resolving_twice_decides_nothing_more() -> None:
    resolved, _ = _resolve(["m"])
    again, decisions = resolve(resolved, host=Host(1, 1), facts_of=lambda spec: None)
    assert again == resolved and decisions == ()


def test_given_values_stay() -> None:
    flags = {"dtype": "float32", "num_threads": "3", "max_model_len": "100", "block_size": "8", "workers": "2"}
    flags |= {"kv_cache_memory_bytes": "64MiB", "price_per_hour": "2", "watts": "9", "served_model_name": ["x"]}
    resolved, decisions = _resolve(["m"], flags=flags)
    engine = resolved.models[0].engine
    assert (engine.dtype, engine.num_threads, engine.max_model_len, engine.block_size) == ("float32", 3, 100, 8)
    assert (resolved.cost.price_per_hour, resolved.cost.watts) == (2, 9)
    assert set(decisions) == {"models.0.workers"}


def test_the_machine_is_shared_by_all_workers_of_all_models() -> None:
    resolved, _ = _resolve(["a", "b"], sets=["models.0.workers=3"])
    assert [m.workers for m in resolved.models] == [3, 1]
    assert [m.engine.num_threads for m in resolved.models] == [2, 2]
    total = sum(m.workers * m.engine.kv_cache_memory_bytes for m in resolved.models)
    assert total <= 0.4 * HOST.available_bytes + 4


def test_there_is_always_a_thread() -> None:
    resolved, _ = _resolve(["m"], flags={"workers": "20"})
    assert resolved.models[0].engine.num_threads == 1


def test_deterministic_prefers_float32() -> None:
    resolved, decisions = _resolve(["m"], flags={"deterministic": True})
    assert resolved.models[0].engine.dtype == "float32"
    assert "deterministic" in decisions["models.0.engine.dtype"].why


def test_what_depends_on_an_absent_model_stays_open() -> None:
    resolved, decisions = _resolve(["hf:org/m"], facts=None)
    assert resolved.models[0].engine.max_model_len is None
    assert not [field for field in decisions if "max_model_len" in field or "block_size" in field]


def _gguf(path: Path, values: dict[str, object]) -> Path:
    def text(value: str) -> bytes:
        return struct.pack("<Q", len(value.encode())) + value.encode()

    def encoded(value: object) -> bytes:
        if isinstance(value, str):
            return struct.pack("<I", 8) + text(value)
        if isinstance(value, list):
            items = b"".join(text(item) if isinstance(item, str) else struct.pack("<i", item) for item in value)
            return struct.pack("<IIQ", 9, 8 if isinstance(value[0], str) else 5, len(value)) + items
        return struct.pack("<If", 6, value) if isinstance(value, float) else struct.pack("<II", 4, value)

    body = b"".join(text(key) + encoded(value) for key, value in values.items())
    path.write_bytes(struct.pack("<4sIQQ", b"GGUF", 3, 0, len(values)) + body)
    return path


SAMPLE = {
    "general.architecture": "llama",
    "tokenizer.ggml.tokens": ["a", "bc", "déf"],
    "tokenizer.ggml.scores": [1, 2, 3],
    "llama.rope.freq_base": 1e5,
    "llama.context_length": 2048,
    "llama.block_count": 30,
}


def test_facts_of_a_gguf(tmp_path: Path) -> None:
    path = _gguf(tmp_path / "m.gguf", SAMPLE)
    assert read_model_facts(path) == ModelFacts("llama", 2048, 16)


def test_broken_gguf_is_a_typed_error(tmp_path: Path) -> None:
    path = _gguf(tmp_path / "m.gguf", SAMPLE)
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(CheckpointError, match=r"m.gguf is truncated"):
        read_model_facts(path)


def test_facts_of_a_folder(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "deepseek_v4", "max_position_embeddings": 4096}))
    assert read_model_facts(tmp_path) == ModelFacts("deepseek_v4", 4096, 128)
    (tmp_path / "config.json").write_text("{")
    with pytest.raises(CheckpointError, match=r"config.json cannot be read"):
        read_model_facts(tmp_path)


def test_block_sizes_are_those_of_the_builders(tmp_path: Path) -> None:
    from tokenmill.models import llama
    from tokenmill.models.deepseek_v4 import groups

    for name, size in (("llama", llama.DEFAULT_BLOCK_SIZE), ("deepseek_v4", groups.DEFAULT_BLOCK_SIZE)):
        (tmp_path / "config.json").write_text(json.dumps({"model_type": name}))
        assert read_model_facts(tmp_path) == ModelFacts(name, None, size)


def test_recipes_need_no_torch() -> None:
    code = (
        "import sys; sys.modules['torch'] = None\n"
        "from tokenmill.recipes.load import load_deployment\n"
        "from tokenmill.recipes.resolve import resolve\n"
        "print(len(resolve(load_deployment(['smollm2']))[1]))"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=50, check=True)
    assert int(result.stdout) > 3
