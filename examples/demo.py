"""Starts a server, asks it a handful of questions at once, prints the answers, their speed and their cost, and stops.

make demo, or: .venv/bin/python examples/demo.py [MODEL]
"""

import asyncio
import json
import statistics
import sys
import time
from dataclasses import dataclass

import aiohttp

from tokenmill.bench.http_client import read_events
from tokenmill.bench.local_server import local_server
from tokenmill.core.errors import TokenmillError

QUESTIONS = (
    "What is the capital of France?",
    "Name three primary colours.",
    "Why is the sky blue? Answer in one sentence.",
    "Give me a short recipe for pancakes.",
    "What do bees make?",
    "Write one sentence about the sea.",
)


@dataclass
class Answer:
    question: str
    text: str = ""
    ttft_s: float = 0.0
    num_tokens: int = 0
    usd: float = 0.0
    joules: float = 0.0


async def ask(session: aiohttp.ClientSession, url: str, question: str, model: str) -> Answer:
    """One streamed chat completion."""
    answer, began_s = Answer(question), time.perf_counter()
    body = {"model": model, "messages": [{"role": "user", "content": question}], "max_tokens": 64, "temperature": 0}
    body |= {"stream": True, "stream_options": {"include_usage": True}}
    async with session.post(f"{url}/v1/chat/completions", json=body) as response:
        response.raise_for_status()
        async for event in read_events(response.content):
            chunk = json.loads(event)
            for choice in chunk["choices"]:
                if piece := choice["delta"].get("content"):
                    answer.ttft_s = answer.ttft_s or time.perf_counter() - began_s
                    answer.text += piece
            if usage := chunk.get("usage"):
                answer.num_tokens = usage["completion_tokens"]
                answer.usd, answer.joules = usage["cost"]["usd"], usage["cost"]["joules"]
    return answer


async def ask_all(url: str) -> tuple[list[Answer], float]:
    """All questions at once, and the seconds they took together."""
    async with aiohttp.ClientSession() as session:
        async with session.get(f"{url}/v1/models") as response:
            model = (await response.json())["data"][0]["id"]
        began_s = time.perf_counter()
        answers = await asyncio.gather(*(ask(session, url, question, model) for question in QUESTIONS))
        return answers, time.perf_counter() - began_s


def report(answers: list[Answer], seconds: float) -> None:
    for answer in answers:
        print(f"\n> {answer.question}\n{answer.text.strip()}")
    num_tokens, usd = sum(a.num_tokens for a in answers), sum(a.usd for a in answers)
    print(f"\n{len(answers)} requests, {num_tokens} output tokens in {seconds:.2f} s")
    print(f"  throughput   {num_tokens / seconds:8.1f} output tokens/s")
    print(f"  TTFT median  {statistics.median(a.ttft_s for a in answers) * 1e3:8.0f} ms")
    print(f"  cost         {usd / num_tokens * 1e6:8.3f} $ per million output tokens (${usd:.6f} for all)")
    print(f"  energy       {sum(a.joules for a in answers) / num_tokens:8.3f} J per output token")


def main() -> int:
    model = sys.argv[1] if len(sys.argv) > 1 else "smollm2"
    print(f"starting a server for {model} ...", flush=True)
    try:
        with local_server([model], is_quiet=True) as url:
            print(f"ready at {url}", flush=True)
            report(*asyncio.run(ask_all(url)))
    except TokenmillError as error:
        print(f"demo: {error.message}", file=sys.stderr)
        return 2
    print("server stopped")
    return 0


if __name__ == "__main__":
    sys.exit(main())
