"""The `tokenmill` command: one app, one thin file per command. Not responsible for: what the commands do.

Commands import what they need when they run, so that `tokenmill --help` is instant and needs no torch.
"""

from __future__ import annotations

import importlib
import os
import signal
import sys
from collections.abc import Sequence

from tokenmill.core.errors import BadRequestError, SetupError, TokenmillError

#: Processes of a deployment, started by the supervisor with a command line of their own.
_PROCESSES = {"worker": "tokenmill.operations.worker.main:run_and_leave", "frontend": "tokenmill.api.server:main"}


def main(argv: Sequence[str] | None = None) -> int:
    """Entry point; the exit code. 2: it cannot be done as asked, 1: it failed, 130: interrupted."""
    args = list(sys.argv[1:] if argv is None else argv)
    if args and args[0] in _PROCESSES:
        module, name = _PROCESSES[args[0]].split(":")
        return int(getattr(importlib.import_module(module), name)(args[1:]))
    from tokenmill.cli.app import build_app

    try:
        build_app()(args, prog_name="tokenmill", standalone_mode=True)
    except TokenmillError as error:
        print(f"tokenmill: {error.message}", file=sys.stderr)
        return 2 if isinstance(error, (SetupError, BadRequestError)) else 1
    except KeyboardInterrupt:
        return 128 + signal.SIGINT
    except BrokenPipeError:  # `tokenmill models | head`: the reader left
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 128 + signal.SIGPIPE
    except SystemExit as exit_:
        return exit_.code if isinstance(exit_.code, int) else int(exit_.code is not None)
    return 0


if __name__ == "__main__":
    sys.exit(main())
