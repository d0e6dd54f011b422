"""Tokenizers out of .gguf files, written small by the gguf package itself."""

import builtins
import os
from pathlib import Path
from typing import Any

import pytest

from tests.text.make_tokenizers import spell
from tokenmill.core.errors import CheckpointError, SetupError
from tokenmill.core.paths import cache_folder
from tokenmill.text import gguf as gguf_module
from tokenmill.text.decoders import CHAR_TO_BYTE
from tokenmill.text.tokenizer import Tokenizer

pytestmark = pytest.mark.requires_gguf

NORMAL, CONTROL, USER_DEFINED = 1, 3, 4
MERGES = ["1 2", "12 3", "Ġ a", "' L", "'L L"]


def write_gguf(path: Path, **changes: Any) -> Path:
    """A file with nothing but a tokenizer; `changes` replace or (None) remove fields, without `tokenizer.ggml.`."""
    from gguf import GGUFWriter

    words = [*CHAR_TO_BYTE, *(merge.replace(" ", "") for merge in MERGES)]
    fields: dict[str, Any] = {
        "model": "gpt2",
        "pre": "smollm",
        "tokens": [*words, "<|im_start|>", "<|im_end|>", "<tool call>"],
        "token_type": [NORMAL] * len(words) + [CONTROL, CONTROL, USER_DEFINED],
        "merges": MERGES,
        "bos_token_id": len(words),
        "eos_token_id": len(words) + 1,
    } | changes
    writer = GGUFWriter(path, "llama")
    templates = fields.pop("chat_templates", {"tokenizer.chat_template": "T"})
    for name, value in {**{f"tokenizer.ggml.{k}": v for k, v in fields.items()}, **templates}.items():
        if isinstance(value, bool):
            writer.add_bool(name, value)
        elif isinstance(value, str):
            writer.add_string(name, value)
        elif isinstance(value, int):
            writer.add_uint32(name, value)
        elif value is not None:
            writer.add_array(name, value)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def tokens(tokenizer: Tokenizer, text: str) -> list[str]:
    return [tokenizer.token_text(i) for i in tokenizer.encode(text)]


def test_facts_and_round_trip(tmp_path: Path) -> None:
    tokenizer = Tokenizer.load(write_gguf(tmp_path / "m.gguf", eot_token_id=5))
    text = "a 123 é 👩‍👩‍👧<|im_end|> <tool call>"
    ids = tokenizer.encode(text)
    assert tokenizer.decode(ids, skip_special_tokens=False) == text
    assert "<tool call>" in tokens(tokenizer, text)
    assert tokenizer.eos_token_ids == (tokenizer.token_to_id("<|im_end|>"), 5)
    assert tokenizer.bos_token_id == tokenizer.token_to_id("<|im_start|>")
    assert tokenizer.special_tokens == {"bos_token": "<|im_start|>", "eos_token": "<|im_end|>"}
    assert tokenizer.chat_template == "T"
    assert tokenizer.vocab_size == 256 + len(MERGES) + 3
    assert len(tokenizer.special_token_ids) == 2


@pytest.mark.parametrize(
    ("pre", "expected"),
    [
        ("smollm", ["1", "2", "3", " a", "'", "L", "L"]),
        ("qwen2", ["1", "2", "3", " a", "'LL"]),
        ("llama-bpe", ["123", " a", "'LL"]),
        ("gpt-2", ["123", " a", "'", "L", "L"]),
        ("default", ["123", " a", "'", "L", "L"]),
    ],
)
def test_pre_tokenizers_differ_in_digits_and_contractions(tmp_path: Path, pre: str, expected: list[str]) -> None:
    tokenizer = Tokenizer.load(write_gguf(tmp_path / "m.gguf", pre=pre, add_bos_token=False))
    assert tokens(tokenizer, "123 a'LL")[: len(expected)] == expected


def test_digits_stay_together_by_three_in_llama(tmp_path: Path) -> None:
    tokenizer = Tokenizer.load(write_gguf(tmp_path / "m.gguf", pre="llama-bpe", add_bos_token=False))
    assert tokens(tokenizer, "12312") == ["123", "12"]


def test_qwen_composes_characters(tmp_path: Path) -> None:
    tokenizer = Tokenizer.load(write_gguf(tmp_path / "m.gguf", pre="qwen2"))
    assert tokenizer.encode("e\u0301") == tokenizer.encode("é")


@pytest.mark.parametrize(
    ("pre", "add_bos", "expected"), [("smollm", None, 0), ("smollm", True, 1), ("llama-bpe", None, 1)]
)
def test_begin_token(tmp_path: Path, pre: str, add_bos: bool | None, expected: int) -> None:
    """S53: Llama 3 files add one unless they say otherwise; none adds two."""
    tokenizer = Tokenizer.load(write_gguf(tmp_path / "m.gguf", pre=pre, add_bos_token=add_bos))
    assert tokenizer.encode("a").count(tokenizer.bos_token_id or -1) == expected
    assert tokenizer.encode("<|im_start|>a").count(tokenizer.bos_token_id or -1) == 1


def test_named_templates(tmp_path: Path) -> None:
    templates = {
        "tokenizer.chat_template": "D",
        "tokenizer.chat_template.tool_use": "T",
        "tokenizer.chat_templates": ["tool_use"],
    }
    tokenizer = Tokenizer.load(write_gguf(tmp_path / "m.gguf", chat_templates=templates))
    assert tokenizer.chat_templates == {"default": "D", "tool_use": "T"}


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"model": "llama"}, "kind 'llama': possible is 'gpt2'"),
        ({"model": None}, "kind None"),
        ({"pre": "tekken"}, "pre-tokenizer 'tekken': possible are default, gpt-2, llama-bpe, qwen2, smollm"),
        ({"pre": None}, "pre-tokenizer None"),
        ({"tokens": None}, "broken .KeyError"),
        ({"merges": ["q qq"]}, "broken"),
        ({"token_type": [1, 1]}, "but 2 token types"),
        ({"tokens": ["a", "a"], "token_type": [1, 1], "merges": ["a a"]}, "stand in the vocabulary twice"),
        ({"eos_token_id": 99999}, "broken .IndexError"),
    ],
)
def test_what_cannot_be_rebuilt_is_named(tmp_path: Path, changes: dict[str, Any], message: str) -> None:
    path = write_gguf(tmp_path / "m.gguf", **changes)
    with pytest.raises(CheckpointError, match=message) as error:
        Tokenizer.load(path)
    assert str(path) in error.value.message


@pytest.mark.parametrize("length", [0, 3, 20, 200, 3000])
def test_truncated_files(tmp_path: Path, length: int) -> None:
    path = write_gguf(tmp_path / "m.gguf")
    path.write_bytes(path.read_bytes()[:length])
    with pytest.raises(CheckpointError, match="download it again"):
        Tokenizer.load(path)


def test_a_folder_called_gguf_is_a_folder(tmp_path: Path) -> None:
    (tmp_path / "m.gguf").mkdir()
    with pytest.raises(CheckpointError, match=r"no tokenizer\.json"):
        Tokenizer.load(tmp_path / "m.gguf")


def test_the_second_load_comes_from_the_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TOKENMILL_CACHE", str(tmp_path / "cache"))
    path = write_gguf(tmp_path / "m.gguf")
    first = Tokenizer.load(path)
    (entry,) = cache_folder("tokenizers").iterdir()
    monkeypatch.setattr(gguf_module, "_parse", lambda path: pytest.fail("parsed again"))
    second = Tokenizer.load(path)
    assert second.digest == first.digest
    assert second.encode("a 123") == first.encode("a 123")
    monkeypatch.undo()
    monkeypatch.setenv("TOKENMILL_CACHE", str(tmp_path / "cache"))
    Tokenizer.load(write_gguf(path, pre="gpt-2"))  # other content, other entry
    assert len(list(entry.parent.iterdir())) == 2


def test_a_damaged_cache_entry_is_rebuilt(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("TOKENMILL_CACHE", str(tmp_path / "cache"))
    path = write_gguf(tmp_path / "m.gguf")
    first = Tokenizer.load(path)
    (entry,) = cache_folder("tokenizers").iterdir()
    whole = entry.read_bytes()
    entry.write_bytes(whole[:100])
    assert Tokenizer.load(path).digest == first.digest
    assert "rebuilding it" in caplog.text
    assert entry.read_bytes() == whole


def test_without_a_writable_cache_it_still_loads(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("TOKENMILL_CACHE", "/dev/null/nowhere")
    assert Tokenizer.load(write_gguf(tmp_path / "m.gguf")).encode("a")
    assert "cannot be cached" in caplog.text


def test_a_failed_write_leaves_nothing_behind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("TOKENMILL_CACHE", str(tmp_path / "cache"))

    def full(source: str, target: Path) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "replace", full)
    Tokenizer.load(write_gguf(tmp_path / "m.gguf"))
    assert "No space left" in caplog.text
    assert list(cache_folder("tokenizers").iterdir()) == []


def test_metadata_beyond_the_digest_is_not_cached(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TOKENMILL_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(gguf_module, "_HEAD_BYTES", 100)
    Tokenizer.load(write_gguf(tmp_path / "m.gguf"))
    assert not cache_folder("tokenizers").exists()


def test_without_the_gguf_package_the_remedy_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TOKENMILL_CACHE", str(tmp_path / "cache"))
    path = write_gguf(tmp_path / "m.gguf")
    real_import = builtins.__import__

    def blocked(name: str, *args: Any, **kwargs: Any) -> Any:
        if name == "gguf":
            raise ImportError(name)
        return real_import(name, *args, **kwargs)

    monkeypatch.setattr(builtins, "__import__", blocked)
    with pytest.raises(SetupError, match=r"pip install 'tokenmill\[gguf\]'"):
        Tokenizer.load(path)


def test_bytes_are_spelt_as_in_gguf() -> None:
    assert spell(b" a\n") == "ĠaĊ"
