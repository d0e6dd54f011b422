"""OpenVINO GenAI's continuous batching on a GGUF file. Runs in its own environment."""

import importlib.metadata
import time
from typing import Any


class Adapter:
    def __init__(self, model, max_model_len, max_num_seqs, num_threads=2):
        import openvino_genai

        self._genai = openvino_genai
        config = openvino_genai.SchedulerConfig()
        config.cache_size = 2  # GiB
        config.max_num_seqs = max_num_seqs
        config.max_num_batched_tokens = 2048
        config.enable_prefix_caching = True
        config.dynamic_split_fuse = True
        self._pipe = openvino_genai.ContinuousBatchingPipeline(
            model, scheduler_config=config, device="CPU", properties={"INFERENCE_NUM_THREADS": num_threads}
        )
        self._num_sent = 0

    def describe(self):
        version = importlib.metadata.version("openvino-genai")
        return {"version": version, "settings": {"max_num_batched_tokens": 2048, "cache_gib": 2}}

    def run(self, prompts, osl):
        import numpy as np
        import openvino

        config = self._genai.GenerationConfig()
        config.max_new_tokens = config.min_new_tokens = osl
        config.ignore_eos, config.do_sample, config.apply_chat_template = True, False, False
        handles: list[Any] = []
        heard: list[dict[str, Any]] = []
        began_s = time.perf_counter()
        for prompt in prompts:
            ids = openvino.Tensor(np.array([prompt], dtype=np.int64))
            handles.append(self._pipe.add_request(self._num_sent, ids, config))
            heard.append({"first_s": None, "last_s": None, "token_ids": []})
            self._num_sent += 1
        while self._pipe.has_non_finished_requests():
            self._pipe.step()
            now_s = time.perf_counter() - began_s
            for handle, one in zip(handles, heard, strict=True):
                if not handle.can_read():
                    continue
                for output in handle.read().values():
                    if output.generated_ids:
                        one["first_s"] = one["first_s"] or now_s
                        one["last_s"] = now_s
                        one["token_ids"] += list(output.generated_ids)
        return {"wall_s": time.perf_counter() - began_s, "requests": heard}

    def score(self, chunks, first):
        return {"nll": None, "num_tokens": 0, "why": "its continuous batching gives no log-probabilities of prompts"}
