"""Write any checkpoint that our loader reads as a Hugging Face folder, for transformers to read."""

import json
from pathlib import Path

from safetensors.torch import save_file

from tokenmill.models.weights import open_checkpoint


def write_folder(path: Path, folder: Path) -> Path:
    checkpoint = open_checkpoint(path)
    (folder / "config.json").write_text(json.dumps(checkpoint.config))
    tensors = {name: checkpoint.read(name).clone() for name in checkpoint.shapes()}
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    return folder
