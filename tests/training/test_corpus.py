"""The corpus: the same on every call, true sums, chats in the package's encoding, held-out files kept out."""

import json
import re
from random import Random

import numpy as np
import pytest

from tokenmill.text.encodings import deepseek_v4_format as fmt
from tokenmill.text.parsers.deepseek_v4 import tool_parser
from tokenmill.text.parsers.events import collect
from tokenmill.text.tokenizer import Tokenizer
from training.corpus import chats, code
from training.corpus.agents import transcript
from training.corpus.copies import copy_task
from training.corpus.domains import DOMAINS, documents
from training.corpus.stories import story
from training.corpus.sums import line, problem
from training.corpus.tools import TOOLS
from training.data import Corpus, Phase
from training.ngram import KneserNey

GENERATED = [domain for domain in DOMAINS if domain.make is not None]


def test_shares_add_up() -> None:
    assert sum(domain.share for domain in DOMAINS) == pytest.approx(1.0)


@pytest.mark.parametrize("domain", GENERATED, ids=lambda domain: domain.name)
def test_documents_are_reproducible_and_splits_differ(domain) -> None:
    first, again = ([*documents(domain, "train", 3000)] for _ in range(2))
    assert first == again != [*documents(domain, "held_out", 3000)]


def test_sums_are_right() -> None:
    rng = Random(0)
    for _ in range(200):
        text = line(rng)
        left, right = re.fullmatch(r"(.+) (?:=|<|>) (-?\d+)", text).groups()
        assert eval(left) == int(right) if "=" in text else eval(text), text
        _, steps, answer = problem(rng)
        left, right = re.search(r"(\d+ [-+] \d+) = (\d+)", steps).groups()
        assert eval(left) == int(right) and right in answer


def test_stories_have_no_holes() -> None:
    rng = Random(1)
    for _ in range(300):
        text = story(rng)
        assert not re.search(r"[{}]|\ba [aeiou]|  |\bNone\b", text), text
        assert text.endswith((".", "!", '"')) and text[0].isupper()


@pytest.mark.parametrize("tool", TOOLS, ids=lambda tool: tool.name)
def test_calls_are_written_as_the_parser_reads_them(tool) -> None:
    task = tool.make(Random(2))
    assert set(task.arguments) == set(tool.properties)
    text = chats.render(chats.tool_exchange(Random(3), tool, task), [tool.schema()], thinking=False)
    answer = text.split(fmt.ASSISTANT + fmt.END_THINK)[1].split(fmt.EOS)[0]
    parser = tool_parser([tool.schema()])
    (call,) = collect([*parser.feed(answer), *parser.finish()]).tool_calls
    assert (call.name, json.loads(call.arguments), call.is_complete) == (tool.name, task.arguments, True)


def test_transcripts_share_their_beginning_and_copy_code() -> None:
    one, two = transcript(Random(4), 1), transcript(Random(5), 1)
    shared = next(i for i, (a, b) in enumerate(zip(one, two, strict=False)) if a != b)
    assert shared > 1000
    read, written = re.search(
        r"<tool_result>(.*?)</tool_result>.*?name=\"content\" string=\"true\">(.*?)</｜", one, re.S
    ).groups()
    assert len(set(read.splitlines()) ^ set(written.splitlines())) <= 2 and read != written


def test_copies_are_copies() -> None:
    text = copy_task(Random(6), 500)
    first, second = re.fullmatch(
        r"Text:\n(.*?)\nEnd of text\.\n.*\nThe text again:\n(.*)\nEnd of text\.\n", text, re.S
    ).groups()
    assert first == second


def test_no_held_out_file_trains() -> None:
    trained, held_out = code.training_files(), code.held_out_files()
    assert trained and held_out and trained.keys().isdisjoint(held_out)
    assert set(code.functions()) and all(not code.is_held_out(name) for name in trained)


def test_tokenizer_is_lossless_and_knows_the_format(corpus) -> None:
    tokenizer = Tokenizer.load(corpus / "tokenizer")
    text = "def f(x):\n    return x + 12345  # ünïcode 😀\n\n\n\tend"
    assert tokenizer.decode(tokenizer.encode(text, add_special_tokens=False)) == text
    assert [tokenizer.token_to_id(t) for t in (fmt.BOS, fmt.EOS)] == [0, 1] and tokenizer.bos_token_id == 0
    for token in (fmt.USER, fmt.ASSISTANT, fmt.THINK, fmt.END_THINK, "｜DSML｜"):
        assert len(tokenizer.encode(token, add_special_tokens=False)) == 1
    assert len(tokenizer.encode("12345", add_special_tokens=False)) == 5


def test_rows_keep_the_shares_and_are_the_same_for_any_number_of_ranks(corpus) -> None:
    data, phase = Corpus(corpus, seed=0), Phase(0, 100, 64, 8)
    whole = data.batch(3, phase, 0, 1)
    halves = [data.batch(3, phase, rank, 2) for rank in range(2)]
    assert whole.shape == (8, 66)
    assert whole[0::2].equal(halves[0]) and whole[1::2].equal(halves[1])
    counts = np.bincount([data._domain_of(i)[0] for i in range(1000)], minlength=len(DOMAINS))
    assert np.abs(counts / 1000 - [domain.share for domain in DOMAINS]).max() < 0.01


def test_trigram_is_a_distribution_and_knows_what_it_saw() -> None:
    rng = np.random.default_rng(0)
    tokens = rng.integers(0, 12, 3000)
    tokens[::3] = 5
    model = KneserNey(tokens, 12)
    context = np.array([[int(tokens[10]), int(tokens[11]), word] for word in range(12)])
    total = sum(float(np.exp(-model.nats(row)[0])) for row in context)
    assert total == pytest.approx(1.0, abs=1e-9)
    assert model.nats(tokens).mean() < np.log(12)
