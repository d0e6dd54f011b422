"""Our load generator, AIPerf and GuideLLM in turns against one server: do their figures agree? See README.md."""

from __future__ import annotations

import argparse
import json
import os
import platform
import shutil
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent))

from tools import TOOLS, Figures, Load

from tokenmill.bench.generator import null_server
from tokenmill.bench.local_server import local_server
from tokenmill.models.store import resolve_model
from tokenmill.text.tokenizer import has_tokenizer, read_source

COMPARED = ("output_tput_per_s", "ttft_s_p50", "tpot_s_p50")


def main() -> int:
    args = _arguments()
    venvs = {name: _venv(args.cache, name) for name in args.tools}
    rounds: list[dict[str, dict[str, Any]]] = []
    with _server(args) as (url, model), tempfile.TemporaryDirectory(prefix="tokenmill-loadgen-") as scratch:
        tokenizer = args.tokenizer or _tokenizer(args.model, Path(scratch) / "tokenizer")
        for index in range(args.rounds):
            order = args.tools if index % 2 == 0 else args.tools[::-1]
            figures = {}
            for position, name in enumerate(order):
                folder = Path(scratch) / f"{index}-{name}"
                folder.mkdir()
                load = _load(args, url, model, tokenizer, seed=1 + 1000 * index + position)
                figures[name] = _one(name, load, folder, venvs[name])
            rounds.append(figures)
    report = _report(args, rounds)
    print(json.dumps(report))
    return 0 if report["agree"] else 1


def _arguments() -> argparse.Namespace:
    cache = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "tokenmill-peers" / "loadgen"
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--model", default="smollm2", help="what the server is started with; with --url: its name there"
    )
    parser.add_argument("--set", dest="sets", action="append", default=[], help="a setting of the server, a.b=c")
    parser.add_argument("--url", help="a server that runs already")
    parser.add_argument("--null", action="store_true", help="a null server, one token per stream every --tick-ms")
    parser.add_argument("--tick-ms", type=float, default=20.0)
    parser.add_argument("--tokenizer", type=Path, help="folder with tokenizer.json; default: the model's own")
    parser.add_argument("--tools", nargs="*", choices=list(TOOLS), default=list(TOOLS))
    parser.add_argument("--isl", type=int, default=200)
    parser.add_argument("--osl", type=int, default=64)
    parser.add_argument("--concurrency", type=int, default=4)
    parser.add_argument("--num-requests", type=int, default=40)
    parser.add_argument("--num-warmup", type=int, default=4)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--within", type=float, default=0.10, help="largest allowed difference to ours")
    parser.add_argument("--cache", type=Path, default=cache, help="where the environments are kept")
    args = parser.parse_args()
    if "tokenmill" not in args.tools:
        args.tools.insert(0, "tokenmill")
    return args


@contextmanager
def _server(args: argparse.Namespace) -> Iterator[tuple[str, str]]:
    """(address, model name). Prefix caching stays on: every prompt is new."""
    if args.url is not None:
        yield args.url, args.model
    elif args.null:
        with null_server(args.tick_ms) as url:
            yield url, "null-model"
    else:
        sets = [part for text in args.sets for part in ("--set", text)]
        with local_server([args.model, "--served-model-name", "peer", *sets], is_quiet=True) as url:
            yield url, "peer"


def _tokenizer(model: str, folder: Path) -> Path:
    """The model's tokenizer as transformers reads it; a GGUF file holds it in another form."""
    source = read_source(Path(model) if has_tokenizer(model) else Path(resolve_model(model)))
    folder.mkdir(parents=True)
    (folder / "tokenizer.json").write_bytes(source.tokenizer_json)
    settings = {"tokenizer_class": "PreTrainedTokenizerFast", "model_max_length": 1 << 20}
    settings |= {name: token for name, token in source.special_tokens.items() if isinstance(token, str)}
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    return folder


def _load(args: argparse.Namespace, url: str, model: str, tokenizer: Path, seed: int) -> Load:
    sizes = (args.isl, args.osl, args.concurrency, args.num_requests, args.num_warmup)
    return Load(url, model, tokenizer, *sizes, seed=seed)


def _one(name: str, load: Load, folder: Path, venv: Path | None) -> dict[str, Any]:
    figures: Figures = TOOLS[name][1](load, folder, venv)
    print(
        f"{name}: {figures.output_tput_per_s:.1f} output tok/s, TTFT {figures.ttft_s_p50 * 1e3:.1f} ms, "
        f"TPOT {figures.tpot_s_p50 * 1e3:.2f} ms, {figures.isl_mean:.0f} + {figures.osl_mean:.1f} tokens",
        file=sys.stderr,
        flush=True,
    )
    return figures.to_dict()


def _venv(cache: Path, name: str) -> Path | None:
    pin = TOOLS[name][0]
    if pin is None:
        return None
    folder = cache / pin.replace("==", "-")
    if not (folder / ".ok").exists():
        print(f"installing {pin} into {folder}", file=sys.stderr, flush=True)
        shutil.rmtree(folder, ignore_errors=True)
        subprocess.run([sys.executable, "-m", "venv", str(folder)], check=True)
        subprocess.run([str(folder / "bin" / "pip"), "install", "--quiet", pin], check=True)
        (folder / ".ok").touch()
    return folder


def _report(args: argparse.Namespace, rounds: Sequence[dict[str, dict[str, Any]]]) -> dict[str, Any]:
    medians = {
        name: {figure: statistics.median(r[name][figure] for r in rounds) for figure in COMPARED} for name in args.tools
    }
    ours = medians["tokenmill"]
    ratios = {
        name: {figure: values[figure] / ours[figure] for figure in COMPARED}
        for name, values in medians.items()
        if name != "tokenmill"
    }
    spread = {
        figure: [min(r["tokenmill"][figure] for r in rounds), max(r["tokenmill"][figure] for r in rounds)]
        for figure in COMPARED
    }
    failed = {name: sum(r[name]["num_failed"] for r in rounds) for name in args.tools}
    agree = not any(failed.values()) and all(
        abs(ratio - 1) <= args.within for values in ratios.values() for ratio in values.values()
    )
    return {
        "machine": platform.platform(),
        "load_average_1m": os.getloadavg()[0],
        "settings": {name: getattr(args, name) for name in ("isl", "osl", "concurrency", "num_requests", "rounds")},
        "pins": {name: TOOLS[name][0] for name in args.tools},
        "medians": medians,
        "ratios_to_tokenmill": ratios,
        "tokenmill_spread": spread,
        "failed_requests": failed,
        "within": args.within,
        "agree": agree,
        "rounds": list(rounds),
    }


if __name__ == "__main__":
    sys.exit(main())
