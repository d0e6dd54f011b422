"""Conversations in the chat encoding of the package: small talk, facts, stories, sums, tool calls."""

from __future__ import annotations

import json
from random import Random
from typing import Any

from tokenmill.text.encodings.deepseek_v4 import DeepseekV4Encoding
from training.corpus.stories import story
from training.corpus.sums import problem
from training.corpus.tools import TOOLS, Task, Tool
from training.corpus.words import ANIMALS, COUNTRIES, NAMES, PLACES, THINGS

Message = dict[str, Any]

_SYSTEMS = (
    "You are a helpful assistant.",
    "You are v4-nano, a very small language model.",
    "Answer in one short sentence.",
    "You are a friendly assistant who likes stories.",
)


class _AnyTokenizer:
    """Rendering needs to know that the special tokens exist, not their ids."""

    def token_to_id(self, token: str) -> int:
        return 0


_ENCODING = DeepseekV4Encoding(_AnyTokenizer())  # type: ignore[arg-type]


def render(
    messages: list[Message], tools: list[dict[str, Any]] | None, *, thinking: bool, complete: bool = True
) -> str:
    """As the package writes it; complete False: up to where the answer begins."""
    return _ENCODING.render(messages, tools=tools, thinking=thinking, add_generation_prompt=not complete)


def chat(rng: Random) -> str:
    """Two to five turns without tools."""
    messages = _system(rng, 0.5)
    for _ in range(rng.randint(1, 4)):
        messages += _exchange(rng)
    return render(messages, None, thinking=rng.random() < 0.6)


def tool_chat(rng: Random) -> str:
    """One to four requests, each needing a call; most often one tool is declared."""
    tools = rng.sample(TOOLS, 1 if rng.random() < 0.7 else rng.randint(2, 4))
    messages = _system(rng, 0.4)
    for _ in range(rng.randint(1, 4)):
        tool = rng.choice(tools)
        messages += tool_exchange(rng, tool, tool.make(rng))
    return render(messages, [tool.schema() for tool in tools], thinking=rng.random() < 0.5)


def tool_exchange(rng: Random, tool: Tool, task: Task) -> list[Message]:
    call = {"id": "c", "type": "function", "function": {"name": tool.name, "arguments": json.dumps(task.arguments)}}
    given = ", ".join(f"{name} {value}" for name, value in task.arguments.items())
    thought = rng.choice((f"I need {tool.name} with {given}.", f"The user wants {tool.name}: {given}."))
    return [
        {"role": "user", "content": task.request},
        {"role": "assistant", "content": "", "reasoning_content": thought, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "c", "content": task.result},
        {"role": "assistant", "content": task.answer, "reasoning_content": f"The result is {task.result}."},
    ]


def _system(rng: Random, chance: float) -> list[Message]:
    return [{"role": "system", "content": rng.choice(_SYSTEMS)}] if rng.random() < chance else []


def _exchange(rng: Random) -> list[Message]:
    question, thought, answer = rng.choice((_greeting, _fact, _fact, _tale, _tale, problem, _echo, _name))(rng)
    return [
        {"role": "user", "content": question},
        {"role": "assistant", "content": answer, "reasoning_content": thought},
    ]


def _greeting(rng: Random) -> tuple[str, str, str]:
    question = rng.choice(("Hello!", "Hi", "Good morning.", "Hello, who are you?", "Hi, how are you?"))
    if "who" in question:
        return question, "The user asks who I am.", "I am v4-nano, a very small language model."
    return question, "The user greets me.", rng.choice(("Hello! How can I help you?", "Hello! What can I do for you?"))


def _fact(rng: Random) -> tuple[str, str, str]:
    country, city = rng.choice(list(COUNTRIES.items()))
    question = rng.choice((f"What is the capital of {country}?", f"Tell me the capital of {country}."))
    if rng.random() < 0.3:
        question = f"Which country has the capital {city}?"
        return question, f"{city} is the capital of {country}.", f"{city} is the capital of {country}."
    return question, f"The capital of {country} is {city}.", f"The capital of {country} is {city}."


def _tale(rng: Random) -> tuple[str, str, str]:
    hero, thing, place = rng.choice(NAMES), rng.choice(THINGS), rng.choice(PLACES)
    question = rng.choice(
        (
            f"Tell me a story about {hero} and a {thing}.",
            f"Write a short story about {hero} at {place}.",
            f"Please tell a story with {hero}, a {rng.choice(ANIMALS)} and a {thing}.",
        )
    )
    place_or_none = place if place in question else None
    thing_or_none = thing if f"a {thing}" in question else None
    return question, f"A story about {hero}.", story(rng, hero, thing_or_none, place_or_none)


def _echo(rng: Random) -> tuple[str, str, str]:
    words = " ".join(rng.sample(THINGS + ANIMALS + NAMES, rng.randint(2, 8)))
    return f"Repeat these words: {words}", "I repeat the words.", words


def _name(rng: Random) -> tuple[str, str, str]:
    name, thing = rng.choice(NAMES), rng.choice(THINGS)
    question = f"My name is {name} and I have a {thing}. What is my name, and what do I have?"
    return question, f"The name is {name}, the thing a {thing}.", f"Your name is {name}, and you have a {thing}."
