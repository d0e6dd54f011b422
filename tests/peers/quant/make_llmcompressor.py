"""Runs beside llm-compressor: save a tiny Llama that it quantises.    python make_llmcompressor.py PLAIN OUT SCHEME"""

import sys

import torch
from llmcompressor import oneshot
from llmcompressor.modifiers.quantization import QuantizationModifier
from tokenizers import Tokenizer, models
from transformers import LlamaForCausalLM, PreTrainedTokenizerFast

plain, out, scheme = sys.argv[1:]
model = LlamaForCausalLM.from_pretrained(plain, dtype=torch.bfloat16).eval()
words = models.WordLevel({str(i): i for i in range(model.config.vocab_size)}, unk_token="0")
tokenizer = PreTrainedTokenizerFast(tokenizer_object=Tokenizer(words), unk_token="0", pad_token="0")
recipe = QuantizationModifier(targets="Linear", scheme=scheme, ignore=["lm_head"])
oneshot(model=model, recipe=recipe, processor=tokenizer)
model.save_pretrained(out, save_compressed=True)
