"""Real clients against a real server: one environment per client, pinned, outside the repository. See README.md."""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import platform
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tokenmill.bench.local_server import local_server

HERE = Path(__file__).resolve().parent
KEY = "peer-secret"


@dataclass(frozen=True)
class Client:
    """`pins`: name -> version; `script` beside this file."""

    name: str
    script: str
    pins: dict[str, str]

    @property
    def is_node(self) -> bool:
        return self.script.endswith(".mjs")


CLIENTS = (
    Client("openai-python", "openai_python.py", {"openai": "3.57.0"}),
    Client("anthropic-python", "anthropic_python.py", {"anthropic": "2.14.0"}),
    Client("langchain-openai", "langchain_openai_client.py", {"langchain-openai": "1.7.4"}),
    Client("litellm", "litellm_client.py", {"litellm": "1.110.2"}),
    Client("openai-node", "openai_node.mjs", {"openai": "6.49.0"}),
    Client("ai-sdk", "ai_sdk.mjs", {"ai": "6.0.325", "@ai-sdk/openai-compatible": "2.0.92", "zod": "4.6.7"}),
)


def main() -> int:
    args = _arguments()
    chosen = [client for client in CLIENTS if not args.only or client.name in args.only]
    args.cache.mkdir(parents=True, exist_ok=True)
    with _server(args) as url:
        results = [_one(client, args.cache, url, args.served_name) for client in chosen]
    report = {"model": args.model, "machine": platform.platform(), "clients": results}
    for result in results:
        print(_line(result), file=sys.stderr)
    if args.output is not None:
        args.output.write_text(json.dumps(report, indent=1))
    print(json.dumps(report))
    return 0 if all(result["passed"] for result in results) else 1


def _arguments() -> argparse.Namespace:
    cache = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "tokenmill-peers" / "clients"
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", default="smollm2", help="what the server is started with")
    parser.add_argument("--url", help="a server that runs already, in place of one of our own (its key: peer-secret)")
    parser.add_argument("--served-name", default="smollm2", help="the model's name for clients")
    parser.add_argument("--only", nargs="*", choices=[client.name for client in CLIENTS], default=[])
    parser.add_argument("--cache", type=Path, default=cache, help="where the environments are kept")
    parser.add_argument("--output", type=Path, help="write the report to this file, too")
    return parser.parse_args()


@contextmanager
def _server(args: argparse.Namespace) -> Iterator[str]:
    """Calls are written as Hermes models write them: a small model has no format of its own."""
    if args.url is not None:
        yield args.url
        return
    flags = ["--served-model-name", args.served_name, "--tool-call-parser", "hermes", "--api-key", KEY]
    with local_server([args.model, *flags], is_quiet=True) as url:
        yield url


def _one(client: Client, cache: Path, url: str, model: str) -> dict[str, Any]:
    print(f"{client.name} …", file=sys.stderr, flush=True)
    env = {key: value for key, value in os.environ.items() if not key.startswith(("OPENAI_", "ANTHROPIC_"))}
    env |= {"TOKENMILL_URL": url, "TOKENMILL_MODEL": model, "TOKENMILL_KEY": KEY, "PYTHONPATH": str(HERE)}
    env |= {"LITELLM_LOCAL_MODEL_COST_MAP": "True", "LANGSMITH_TRACING": "false", "DO_NOT_TRACK": "1"}
    result: dict[str, Any] = {"client": client.name, "pins": client.pins, "passed": False}
    try:
        folder = (_node_folder if client.is_node else _venv)(client, cache)
        command = _command(client, folder)
        done = subprocess.run(command, cwd=folder, env=env, capture_output=True, text=True, timeout=600)
        told = json.loads(done.stdout.strip().splitlines()[-1])
    except subprocess.CalledProcessError as error:
        return result | {"error": f"cannot be installed: {(error.stderr or error.stdout)[-1500:]}"}
    except (subprocess.TimeoutExpired, OSError) as error:
        return result | {"error": str(error)}
    except (ValueError, IndexError):
        return result | {"error": f"no result: {done.stderr[-1500:]}"}
    return result | told | {"passed": all(check["ok"] for check in told["checks"].values())}


def _command(client: Client, folder: Path) -> Sequence[str]:
    if client.is_node:
        for name in (client.script, "checks.mjs"):
            shutil.copy(HERE / name, folder / name)  # modules are looked for beside the script
        return ["node", client.script]
    return [str(folder / "bin" / "python"), str(HERE / client.script)]


def _folder(client: Client, cache: Path) -> Path:
    """Other pins, other folder."""
    key = json.dumps([client.pins, sys.version_info[:2]], sort_keys=True)
    return cache / f"{client.name}-{hashlib.sha256(key.encode()).hexdigest()[:12]}"


def _venv(client: Client, cache: Path) -> Path:
    folder = _folder(client, cache)
    if not (folder / ".ok").exists():
        shutil.rmtree(folder, ignore_errors=True)
        _run([sys.executable, "-m", "venv", str(folder)])
        pins = [f"{name}=={version}" for name, version in client.pins.items()]
        _run([str(folder / "bin" / "python"), "-m", "pip", "install", "--quiet", *pins])
        (folder / ".ok").touch()
    return folder


def _node_folder(client: Client, cache: Path) -> Path:
    folder = _folder(client, cache)
    if not (folder / ".ok").exists():
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        package = {"name": "peer", "private": True, "type": "module", "dependencies": client.pins}
        (folder / "package.json").write_text(json.dumps(package))
        _run(["npm", "install", "--no-audit", "--no-fund", "--ignore-scripts", "--loglevel=error"], cwd=folder)
        (folder / ".ok").touch()
    return folder


def _run(command: Sequence[str], cwd: Path | None = None) -> None:
    subprocess.run(command, cwd=cwd, check=True, capture_output=True, text=True, timeout=900)


def _line(result: dict[str, Any]) -> str:
    if "error" in result:
        return f"{result['client']}: {result['error']}"
    checks = ", ".join(f"{name} {'ok' if check['ok'] else 'FAILED'}" for name, check in result["checks"].items())
    versions = " ".join(f"{name} {version}" for name, version in result["versions"].items())
    return f"{result['client']} ({versions}): {checks}"


if __name__ == "__main__":
    sys.exit(main())
