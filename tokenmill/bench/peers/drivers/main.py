"""One engine in a process of its own, told what to do in JSON lines on stdin; run as a script by the engine's Python.

    python main.py ADAPTER

ADAPTER is a file beside this one with a class `Adapter`; whatever its library prints goes to stderr. Standard library
alone: nothing of tokenmill is there in a peer's environment. Not responsible for: measuring memory or start-up.
"""

import importlib
import json
import os
import sys
import traceback


def main() -> int:
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)  # libraries write progress to stdout
    module = importlib.import_module(sys.argv[1])  # the script's folder is first in sys.path
    adapter = None
    for line in sys.stdin:
        asked = json.loads(line)
        what = asked.pop("do")
        try:
            if what == "load":
                adapter = module.Adapter(**asked)
                told = adapter.describe()
            else:
                told = getattr(adapter, what)(**asked)
        except Exception as error:
            traceback.print_exc()
            told = {"error": f"{type(error).__name__}: {error}"}
        print(json.dumps(told), file=answers, flush=True)
    answers.flush()
    os._exit(0)  # a library's threads and exit hooks are not worth waiting for


if __name__ == "__main__":
    sys.exit(main())
