"""Which peers there are, where they are kept and how they come there. Not responsible for: driving them.

Each lives in a folder of its own under the peers' folder, outside the repository: a virtual environment, and for all of
them together the checkpoints made for them (`models`).
"""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass
from pathlib import Path

from tokenmill.core.errors import ConfigError

WEIGHTS = ("bf16", "int8", "int4")


def default_peers_dir() -> Path:
    cache = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache"))
    return cache / "tokenmill-peers"


@dataclass(frozen=True, slots=True)
class Peer:
    """
    folder   under the peers' folder; None: it runs in tokenmill's own environment
    target   what installs it
    weights  bits of weights that it has, and what it calls them
    is_http  driven through its own HTTP server, else in a process of ours with its library
    """

    name: str
    folder: str | None
    target: str
    weights: dict[str, str]
    is_http: bool = False

    def python(self, peers_dir: Path) -> Path:
        return Path(sys.executable) if self.folder is None else peers_dir / self.folder / "bin" / "python"

    def is_installed(self, peers_dir: Path) -> bool:
        if self.folder is not None:
            return (peers_dir / self.folder / ".ok").exists()
        from importlib.util import find_spec

        return find_spec("transformers") is not None


PEERS = {
    peer.name: peer
    for peer in (
        Peer(
            "llama.cpp", "llamacpp", "make test-peers-llamacpp", {"bf16": "BF16", "int8": "Q8_0", "int4": "Q4_0"}, True
        ),
        Peer("vllm-cpu", "vllm", "make test-peers-vllm", {"bf16": "bf16", "int8": "W8A8"}),
        Peer("openvino", "openvino", "make test-peers-openvino", {"bf16": "F16", "int8": "Q8_0", "int4": "Q4_0"}),
        Peer("transformers", None, "pip install transformers", {"bf16": "bf16"}),
    )
}


def find_peer(name: str) -> Peer:
    if name not in PEERS:
        raise ConfigError(f"--peers {name!r} is unknown: possible: {', '.join(PEERS)}")
    return PEERS[name]
