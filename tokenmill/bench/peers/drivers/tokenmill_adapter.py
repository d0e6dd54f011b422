"""tokenmill's own engine, stepped in this process as the peers' engines are."""

import time
from importlib.metadata import version
from typing import Any


class Adapter:
    def __init__(self, model, settings):
        from tokenmill.engine.config import EngineConfig
        from tokenmill.engine.load import load_engine
        from tokenmill.models.store import resolve_model

        self._settings = settings
        self._engine = load_engine(resolve_model(model), EngineConfig.parse(settings), name=model)
        self._num_sent = 0

    def describe(self):
        runner: Any = self._engine.runner
        held = weights_bytes(runner._model)
        return {"version": version("tokenmill"), "settings": self._settings, "weights_bytes": held}

    def _add(self, prompt, **sampling):
        from tokenmill.core.request import Request, SamplingParams

        request_id = f"r{self._num_sent}"
        self._num_sent += 1
        params = SamplingParams(temperature=0.0, ignore_eos=True, **sampling)
        self._engine.add(
            Request(request_id=request_id, model="m", prompt_token_ids=prompt, sampling=params, seed=0, choice_index=0)
        )
        return request_id

    def run(self, prompts, osl):
        began_s = time.perf_counter()
        heard: dict[str, dict[str, Any]] = {
            self._add(prompt, max_tokens=osl): {"first_s": None, "last_s": None, "token_ids": []} for prompt in prompts
        }
        while self._engine.has_work():
            deltas = self._engine.step()
            now_s = time.perf_counter() - began_s
            for delta in deltas:
                if delta.error is not None:
                    raise RuntimeError(str(delta.error))
                if delta.token_ids:
                    one = heard[delta.request_id]
                    one["first_s"] = one["first_s"] or now_s
                    one["last_s"] = now_s
                    one["token_ids"] += delta.token_ids
        return {"wall_s": time.perf_counter() - began_s, "requests": list(heard.values())}

    def score(self, chunks, first):
        total, num = 0.0, 0
        for chunk in chunks:
            self._add(chunk, max_tokens=1, prompt_logprobs=0)
            while self._engine.has_work():
                for delta in self._engine.step():
                    found = delta.prompt_logprobs or ()  # entry i is of token i + 1
                    total -= sum(entry.logprob for entry in found[first:])
                    num += len(found[first:])
        return {"nll": total, "num_tokens": num}


def weights_bytes(model):
    """Bytes of all tensors that a model holds, each storage once, without its caches and buffers of steps."""
    import torch

    storages, seen, todo = {}, set(), [model]
    while todo:
        item = todo.pop()
        if id(item) in seen:
            continue
        seen.add(id(item))
        if isinstance(item, torch.Tensor):
            storages[item.untyped_storage().data_ptr()] = item.untyped_storage().nbytes()
        elif isinstance(item, (list, tuple)):
            todo += item
        elif isinstance(item, dict):
            todo += item.values()
        elif type(item).__module__.startswith("tokenmill."):
            todo += [value for name, value in _fields(item) if name not in _NO_WEIGHTS]
    return sum(storages.values())


#: Attributes of models that hold cache rows and scratch.
_NO_WEIGHTS = {"_caches", "_act", "_x", "_wide", "_mixed", "_q", "_cos", "_sin", "_library"}


def _fields(item):
    slots = [name for kind in type(item).__mro__ for name in getattr(kind, "__slots__", ())]
    found = {name: getattr(item, name) for name in slots if hasattr(item, name)}
    return (found | getattr(item, "__dict__", {})).items()
