"""Runs beside compressed-tensors: load a folder through transformers and save the weights it de-quantises.

python read_compressed.py FOLDER OUT.safetensors
"""

import sys

import torch
from safetensors.torch import save_file
from transformers import AutoModelForCausalLM
from transformers.utils.quantization_config import CompressedTensorsConfig

folder, out = sys.argv[1:]
config = CompressedTensorsConfig(run_compressed=False)
model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, quantization_config=config)
wanted = ("proj.weight", "norm.weight", "embed_tokens.weight", "lm_head.weight")
save_file({k: v.float().contiguous().clone() for k, v in model.state_dict().items() if k.endswith(wanted)}, out)
