"""The questions of `bench quality`: held-out texts, prompts, tool calls, passages to copy. Not responsible for asking.

quality_set.json is written by `python -m training.held_out`. Real text is not stored: the hard domain is files of the
Python that runs, those that training left out.
"""

from __future__ import annotations

import json
import sysconfig
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tokenmill.core.errors import ConfigError
from tokenmill.text.tokenizer import Tokenizer

PATH = Path(__file__).with_name("quality_set.json")
#: Tokens of each library file that are read, and where in it texts are continued from.
FILE_TOKENS, PROMPT_TOKENS, _MIDDLE = 2048, 128, 512
_FEWEST_FILES = 5
_BEFORE, _BETWEEN, _AFTER = "Text:\n", "\nEnd of text.\n", "\nThe text again:\n"


@dataclass(frozen=True, slots=True)
class ToolCase:
    """One request that one call of the only declared tool answers."""

    tool: dict[str, Any]
    request: str
    arguments: dict[str, Any]
    is_thinking: bool


@dataclass(frozen=True, slots=True)
class CopyCase:
    """token_ids end in the second copy, whose tokens from `begin` on are to be copied."""

    token_ids: list[int]
    begin: int


@dataclass(frozen=True, slots=True)
class QualitySet:
    """texts and prompts: domain -> token ids, begin token included where the model has one."""

    hard_domain: str
    texts: dict[str, list[list[int]]]
    prompts: dict[str, list[list[int]]]
    tool_cases: list[ToolCase]
    passages: list[str]
    filler: str

    @classmethod
    def load(cls, tokenizer: Tokenizer, path: Path = PATH) -> QualitySet:
        data = json.loads(path.read_text("utf-8"))
        hard, files = data["hard_domain"], _library_ids(data["library_files"], tokenizer)
        texts = {hard: files} | _ids(data["texts"], tokenizer)
        prompts = _ids(data["prompts"], tokenizer)
        # as many as of the other domains, so that all weigh the same in sums over domains
        prompts = {hard: _file_prompts(files, tokenizer)[: max(map(len, prompts.values()))]} | prompts
        tools = {tool["function"]["name"]: tool for tool in data["tools"]}
        cases = [
            ToolCase(tools[call["tool"]], call["request"], call["arguments"], call["thinking"])
            for call in data["tool_calls"]
        ]
        return cls(hard, texts, prompts, cases, data["passages"], data["filler"])

    def copy_cases(self, tokenizer: Tokenizer, distance: int) -> list[CopyCase]:
        """The passage begins again `distance` tokens behind its first beginning."""
        filler = tokenizer.encode(self.filler, add_special_tokens=False)
        cases = []
        for i, passage in enumerate(self.passages):
            head, copied, between, after = (
                tokenizer.encode(text, add_special_tokens=number == 0)
                for number, text in enumerate((_BEFORE, passage, _BETWEEN, _AFTER))
            )
            room = distance - len(copied) - len(between) - len(after)
            start = (i * 97) % max(1, len(filler) - room)
            if room < 0 or start + room > len(filler):
                raise ConfigError(f"a copying distance of {distance} tokens cannot be made of {len(filler)}: lower it")
            ids = [*head, *copied, *between, *filler[start : start + room], *after]
            cases.append(CopyCase([*ids, *copied], len(ids)))
        return cases


def _ids(texts: dict[str, list[str]], tokenizer: Tokenizer) -> dict[str, list[list[int]]]:
    """Stored texts begin with the begin token's text, which another tokenizer may not know."""
    return {name: [tokenizer.encode(_plain(text)) for text in some] for name, some in texts.items()}


def _plain(text: str) -> str:
    return text.removeprefix("<｜begin▁of▁sentence｜>")


def _library_ids(names: list[str], tokenizer: Tokenizer) -> list[list[int]]:
    root = Path(sysconfig.get_paths()["stdlib"])
    paths = [root / name for name in names if (root / name).is_file()]
    if len(paths) < _FEWEST_FILES:
        raise ConfigError(f"only {len(paths)} of {len(names)} held-out files are in {root}: use another Python")
    return [tokenizer.encode(path.read_text("utf-8"))[:FILE_TOKENS] for path in paths]


def _file_prompts(files: list[list[int]], tokenizer: Tokenizer) -> list[list[int]]:
    """In turn the beginning of a file and as many tokens out of its middle, of files that are long enough."""
    bos = [] if tokenizer.bos_token_id is None else [tokenizer.bos_token_id]
    long_enough = [ids for ids in files if len(ids) >= _MIDDLE + PROMPT_TOKENS]
    return [
        prompt for ids in long_enough for prompt in (ids[:PROMPT_TOKENS], bos + ids[_MIDDLE : _MIDDLE + PROMPT_TOKENS])
    ]
