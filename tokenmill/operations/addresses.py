"""Names on the wire between the processes of one deployment: socket paths and peer identities."""

from __future__ import annotations

from pathlib import Path

SUPERVISOR = b"supervisor"

#: sockaddr_un holds 108 bytes with the closing zero; libzmq needs the path whole.
MAX_IPC_PATH = 107


def frontend_endpoint(run_dir: Path) -> str:
    """Where the frontend of this run directory listens."""
    return f"ipc://{run_dir / 'frontend.sock'}"


def worker_identity(worker_id: str, incarnation: int) -> bytes:
    """Two lives of one worker are two peers: what was meant for the first never reaches the second."""
    return f"{worker_id}#{incarnation}".encode()
