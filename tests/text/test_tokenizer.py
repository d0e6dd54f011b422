"""Loading tokenizers from Hugging Face folders, and what a server must know of them."""

import json
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import decoders, models

from tests.text.make_byte_tokenizer import EOS_TOKEN_ID, FOLDER, files
from tests.text.make_tokenizers import byte_level_bpe, write_folder
from tokenmill.core.errors import BadRequestError, CheckpointError
from tokenmill.text.decoders import parse_decoder
from tokenmill.text.tokenizer import Tokenizer, has_tokenizer


@pytest.mark.parametrize("name", ["tokenizer.json", "tokenizer_config.json"])
def test_the_byte_tokenizer_is_what_its_script_writes(name: str) -> None:
    assert json.loads((FOLDER / name).read_text()) == json.loads(files()[name])


@given(data=st.binary(max_size=40))
def test_byte_tokenizer_ids_are_bytes(byte_tokenizer: Tokenizer, data: bytes) -> None:
    assert byte_tokenizer.vocab_size == 256
    assert byte_tokenizer.eos_token_ids == (EOS_TOKEN_ID,)
    assert byte_tokenizer.bos_token_id is None
    assert byte_tokenizer.decode(list(data)) == data.decode(errors="replace")
    assert [byte_tokenizer.token_bytes(b) for b in data] == [bytes([b]) for b in data]
    text = data.decode(errors="replace")
    assert byte_tokenizer.encode(text) == list(text.encode())


@given(text=st.text(max_size=40))
def test_bpe_round_trip(bpe_tokenizer: Tokenizer, text: str) -> None:
    ids = bpe_tokenizer.encode(text)
    assert ids[0] == bpe_tokenizer.bos_token_id
    assert bpe_tokenizer.decode(ids, skip_special_tokens=False) == "<s>" + text.removeprefix("<s>")


def test_no_text_gets_two_begin_tokens(bpe_tokenizer: Tokenizer, tmp_path: Path) -> None:
    """S53: neither a text that brings its own, nor a configuration that says so twice."""
    bos = bpe_tokenizer.bos_token_id
    plain = bpe_tokenizer.encode("the", add_special_tokens=False)
    assert bpe_tokenizer.encode("the") == bpe_tokenizer.encode("<s>the") == [bos, *plain]
    for add_bos, expected in ((True, [bos, *plain]), (False, plain)):
        config = {"bos_token": "<s>", "eos_token": "</s>", "add_bos_token": add_bos}
        tokenizer = Tokenizer.load(write_folder(tmp_path / str(add_bos), byte_level_bpe(), tokenizer_config=config))
        assert tokenizer.encode("the") == expected
        assert tokenizer.encode("<s>the") == [bos, *plain]
        assert tokenizer.encode("the", add_special_tokens=False) == plain


@pytest.mark.parametrize(
    ("configs", "expected"),
    [
        ({"generation_config": {"eos_token_id": [5, 6]}, "config": {"eos_token_id": 9}}, (5, 6)),
        ({"generation_config": {}, "config": {"eos_token_id": 9}}, (9,)),
        ({"config": {"text_config": {"eos_token_id": 8}}}, (8,)),
        (
            {"tokenizer_config": {"eos_token": {"content": "</s>"}}, "generation_config": {"eos_token_id": 5}},
            (5, "</s>"),
        ),
        ({"special_tokens_map": {"eos_token": "</s>"}}, ("</s>",)),
        ({}, ()),
    ],
)
def test_eos_ids_come_from_all_files(tmp_path: Path, configs: dict[str, Any], expected: tuple[Any, ...]) -> None:
    hf = byte_level_bpe()
    tokenizer = Tokenizer.load(write_folder(tmp_path, hf, **configs))
    assert tokenizer.eos_token_ids == tuple(hf.token_to_id(e) if isinstance(e, str) else e for e in expected)


def test_templates_come_from_all_files(tmp_path: Path) -> None:
    named = [{"name": "default", "template": "A"}, {"name": "tool_use", "template": "T"}]
    folder = write_folder(tmp_path, byte_level_bpe(), tokenizer_config={"chat_template": named})
    assert Tokenizer.load(folder).chat_templates == {"default": "A", "tool_use": "T"}
    (folder / "chat_template.json").write_text('{"chat_template": "J"}')
    assert Tokenizer.load(folder).chat_template == "J"
    (folder / "chat_template.jinja").write_text("B")
    (folder / "additional_chat_templates").mkdir()
    (folder / "additional_chat_templates" / "rag.jinja").write_text("R")
    assert Tokenizer.load(folder).chat_templates == {"default": "B", "tool_use": "T", "rag": "R"}


def test_digest_is_of_the_content(tmp_path: Path) -> None:
    config = {"eos_token": "</s>", "chat_template": "A"}
    first = Tokenizer.load(write_folder(tmp_path / "a", byte_level_bpe(), tokenizer_config=config))
    second = Tokenizer.load(write_folder(tmp_path / "b", byte_level_bpe(), tokenizer_config=config))
    other = Tokenizer.load(
        write_folder(tmp_path / "c", byte_level_bpe(), tokenizer_config=config | {"chat_template": "B"})
    )
    assert first.digest == second.digest != other.digest


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("tokenizer.json", b"", "broken"),
        ("tokenizer.json", b"{}", "broken"),
        ("tokenizer.json", b'{"version": "1.0", "model": {"type": "BPE", "vocab"', "broken"),
        ("tokenizer_config.json", b"{", "not readable JSON"),
        ("tokenizer_config.json", b"[]", "not an object"),
        ("tokenizer_config.json", b'{"eos_token": "<nowhere>"}', "which its tokenizer.json lacks"),
        ("tokenizer_config.json", b'{"chat_template": 3}', "neither a text nor a list"),
        ("tokenizer_config.json", b'{"chat_template": [{"name": 3, "template": "x"}]}', "neither a text nor a list"),
        ("generation_config.json", b'{"eos_token_id": "x"}', "eos_token_id='x'"),
        ("generation_config.json", b'{"eos_token_id": [-1]}', "eos_token_id="),
        ("chat_template.jinja", b"\xff", "not readable text"),
    ],
)
def test_broken_files_are_named(tmp_path: Path, name: str, content: bytes, message: str) -> None:
    folder = write_folder(tmp_path, byte_level_bpe())
    (folder / name).write_bytes(content)
    with pytest.raises(CheckpointError, match=message) as error:
        Tokenizer.load(folder)
    assert str(tmp_path) in str(error.value)


def test_what_is_no_tokenizer_at_all(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"has no tokenizer.json.*add it"):
        Tokenizer.load(tmp_path)
    assert not has_tokenizer(tmp_path)
    (tmp_path / "tokenizer.model").touch()
    with pytest.raises(CheckpointError, match=r"convert its tokenizer.model"):
        Tokenizer.load(tmp_path)
    with pytest.raises(CheckpointError, match="does not exist"):
        Tokenizer.load(tmp_path / "nowhere")
    with pytest.raises(CheckpointError, match="neither a folder"):
        Tokenizer.load(tmp_path / "tokenizer.model")
    assert has_tokenizer(FOLDER)
    assert has_tokenizer(tmp_path / "x.gguf")


def test_unreadable_tokenizer_json(tmp_path: Path) -> None:
    (tmp_path / "tokenizer.json").mkdir()
    with pytest.raises(CheckpointError, match="cannot be read"):
        Tokenizer.load(tmp_path)


def test_decoders_that_cannot_be_streamed_are_refused(tmp_path: Path) -> None:
    hf = byte_level_bpe()
    hf.decoder = decoders.WordPiece()
    with pytest.raises(CheckpointError, match="decoder is WordPiece: possible are ByteLevel"):
        Tokenizer.load(write_folder(tmp_path, hf))
    with pytest.raises(CheckpointError, match="decoder is empty"):
        parse_decoder(None)


@pytest.mark.parametrize("text", ["a\ud800", "\udfff"])
def test_half_a_surrogate_pair_is_a_bad_request(byte_tokenizer: Tokenizer, text: str) -> None:
    with pytest.raises(BadRequestError, match="half of a surrogate pair at character"):
        byte_tokenizer.encode(text)


@pytest.mark.parametrize("ids", [[-1], [2**40], ["x"]])
def test_ids_that_are_no_ids_are_a_bad_request(byte_tokenizer: Tokenizer, ids: list[Any]) -> None:
    with pytest.raises(BadRequestError, match="0 to 255"):
        byte_tokenizer.decode(ids)


def test_ids_without_a_token_have_no_text(byte_tokenizer: Tokenizer) -> None:
    assert byte_tokenizer.decode([65, 300]) == "A"
    assert byte_tokenizer.token_bytes(300) == b""
    assert byte_tokenizer.token_text(300) == ""


def test_truncation_and_padding_of_the_file_are_off(tmp_path: Path) -> None:
    hf = byte_level_bpe()
    hf.enable_truncation(2)
    hf.enable_padding(length=50)
    tokenizer = Tokenizer.load(write_folder(tmp_path, hf))
    assert len(tokenizer.encode("abcdefgh", add_special_tokens=False)) == 8


def test_vocabulary_with_a_hole_counts_to_its_largest_id(tmp_path: Path) -> None:
    hf = byte_level_bpe()
    hf.model = models.BPE(vocab={"a": 0, "b": 900}, merges=[])
    tokenizer = Tokenizer.load(write_folder(tmp_path, hf))
    assert tokenizer.vocab_size > 900


def test_threads_share_one_tokenizer(bpe_tokenizer: Tokenizer) -> None:
    texts = [f"the é {i} 👩‍👩‍👧 " * 20 for i in range(8)]
    expected = [bpe_tokenizer.encode(text) for text in texts]
    wrong: list[int] = []

    def work(i: int) -> None:
        for _ in range(50):
            ids = bpe_tokenizer.encode(texts[i])
            if ids != expected[i] or bpe_tokenizer.decode(ids) != texts[i]:
                wrong.append(i)

    threads = [threading.Thread(target=work, args=(i,)) for i in range(len(texts))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def test_text_runs_without_torch() -> None:
    """The frontend has no torch: everything in text/ must import and work with torch blocked."""
    code = f"""
import sys
sys.modules["torch"] = None
import tokenmill.text.chat, tokenmill.text.gguf, tokenmill.text.output
from tokenmill.text.tokenizer import Tokenizer
tokenizer = Tokenizer.load({str(FOLDER)!r})
print(tokenmill.text.chat.load_encoding("jinja", tokenizer).encode([{{"role": "user", "content": "x"}}]))
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=50, check=True)
    assert done.stdout.strip() == str(list(b"<user>x\n<assistant>"))
