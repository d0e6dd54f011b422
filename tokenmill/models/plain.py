"""A checkpoint whose tensors read as plain numbers, whatever storage they have. Not responsible for: models."""

from __future__ import annotations

from pathlib import Path

from tokenmill.core.errors import CheckpointError
from tokenmill.models.quantization.checkpoint import expand_quantized
from tokenmill.models.weights import Checkpoint, open_checkpoint


def open_plain(path: str | Path) -> Checkpoint:
    """GGUF reads plain as it is; folders in the layouts of models/quantization, and DeepSeek's own, are expanded."""
    checkpoint = expand_quantized(open_checkpoint(path))
    if "quantization_config" not in checkpoint.config:
        return checkpoint
    model_type = checkpoint.config.get("model_type")
    if model_type != "deepseek_v4":
        raise CheckpointError(
            f"{path} is a quantised {model_type} checkpoint whose tensors carry no scales that anything here knows: "
            "use the unquantised one, or a .gguf file"
        )
    from tokenmill.models.deepseek_v4.checkpoint import HubCheckpoint

    hub = HubCheckpoint(checkpoint)
    hub.check_plain()
    return hub
