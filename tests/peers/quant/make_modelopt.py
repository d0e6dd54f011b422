"""Runs beside nvidia-modelopt: export a tiny Llama that it quantises.    python make_modelopt.py PLAIN OUT CONFIG"""

import sys

import modelopt.torch.quantization as mtq
import torch
from modelopt.torch.export import export_hf_checkpoint
from transformers import LlamaForCausalLM

plain, out, config = sys.argv[1:]
model = LlamaForCausalLM.from_pretrained(plain, dtype=torch.bfloat16).eval()
generator = torch.Generator().manual_seed(0)


def calibrate(model):
    for _ in range(2):
        model(torch.randint(0, model.config.vocab_size, (2, 32), generator=generator))


mtq.quantize(model, getattr(mtq, config), calibrate)
export_hf_checkpoint(model, dtype=torch.bfloat16, export_dir=out)
