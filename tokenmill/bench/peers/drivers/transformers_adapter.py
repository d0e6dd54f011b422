"""Hugging Face transformers: one static batch per run, in an environment that has it."""

import time


class Adapter:
    def __init__(self, model, max_model_len, max_num_seqs, num_threads=2):
        import torch
        import transformers

        transformers.utils.logging.set_verbosity_error()
        transformers.utils.logging.disable_progress_bar()
        torch.set_num_threads(num_threads)
        self._torch, self._version = torch, transformers.__version__
        self._model = transformers.AutoModelForCausalLM.from_pretrained(
            model, dtype=torch.bfloat16, attn_implementation="sdpa"
        ).eval()

    def describe(self):
        return {"version": self._version, "settings": {"attention": "sdpa", "batch": "static, all at once"}}

    def run(self, prompts, osl):
        ids, at_s = self._torch.tensor(prompts), []
        began_s = time.perf_counter()

        def note(token_ids, logits):
            at_s.append(time.perf_counter() - began_s)
            return logits

        with self._torch.inference_mode():
            rows = self._model.generate(
                ids,
                attention_mask=self._torch.ones_like(ids),
                max_new_tokens=osl,
                min_new_tokens=osl,
                do_sample=False,
                pad_token_id=0,
                eos_token_id=None,
                logits_processor=[note],
            ).tolist()
        wall_s = time.perf_counter() - began_s
        answers = [row[ids.shape[1] :] for row in rows]
        return {
            "wall_s": wall_s,
            "requests": [{"first_s": at_s[0], "last_s": wall_s, "token_ids": answer} for answer in answers],
        }

    def score(self, chunks, first):
        total, num = 0.0, 0
        with self._torch.inference_mode():
            for chunk in chunks:
                ids = self._torch.tensor([chunk])
                logprobs = self._model(ids).logits[0].float().log_softmax(-1)
                wanted = logprobs[first:-1].gather(1, ids[0, first + 1 :, None])
                total, num = total - float(wanted.sum()), num + len(wanted)
        return {"nll": total, "num_tokens": num}
