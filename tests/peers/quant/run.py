"""Quantised checkpoints exchanged with nvidia-modelopt and llm-compressor, each pinned in an environment of its own.

    python tests/peers/quant/run.py [--cache DIR]

Both make checkpoints of a tiny Llama here, which must give the logits of their de-quantised weights; and folders that
`tokenmill quantize` writes must hold the same weights for compressed-tensors within transformers. The environments
(outside the repository) use the torch and transformers of this one. The last line is one JSON object.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import site
import subprocess
import sys
import tempfile
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[2]
PINS = {"modelopt": "nvidia-modelopt==0.47.0", "llmcompressor": "llmcompressor==0.14.0.1"}
MODELOPT = ("NVFP4_DEFAULT_CFG", "MXFP4_DEFAULT_CFG", "FP8_DEFAULT_CFG")
LLMCOMPRESSOR = ("NVFP4A16", "MXFP4A16", "FP8_DYNAMIC", "FP8_BLOCK", "W8A8", "W4A16")
MOST = 1e-3  # of logits, relative to the largest
#: compressed-tensors 0.19 expands four-bit floats in bfloat16 (nvfp4/helpers.py): its own weights are that far off.
FOUR_BITS = ("nvfp4", "mxfp4", "NVFP4A16", "MXFP4A16")
MOST_IN_BF16 = 5e-3


def main() -> int:
    cache = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "tokenmill-peers" / "quant"
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cache", type=Path, default=cache, help="where the environments are kept")
    pythons = {name: _installed(parser.parse_args().cache / name, pin) for name, pin in PINS.items()}
    sys.path.insert(0, str(ROOT))
    with tempfile.TemporaryDirectory() as folder:
        results = exchange(pythons, Path(folder))
    in_bf16 = [f"ours {scheme} read by compressed-tensors" for scheme in FOUR_BITS]
    ok = all(value <= (MOST_IN_BF16 if what in in_bf16 else MOST) for what, value in results.items())
    print(json.dumps({"peers": "quant", "largest_difference": results, "ok": ok}))
    return int(not ok)


def _installed(folder: Path, pin: str) -> Path:
    python = folder / "bin" / "python"
    if not (folder / ".ok").exists():
        shutil.rmtree(folder, ignore_errors=True)
        subprocess.run([sys.executable, "-m", "venv", str(folder)], check=True)
        version = f"python{sys.version_info[0]}.{sys.version_info[1]}"
        (folder / "lib" / version / "site-packages" / "base.pth").write_text("\n".join(site.getsitepackages()))
        subprocess.run([str(python), "-m", "pip", "install", "--quiet", pin], check=True, timeout=1800)
        (folder / ".ok").touch()
    return python


def exchange(pythons: dict[str, Path], root: Path) -> dict[str, float]:
    """Largest difference, by what was exchanged."""
    import torch
    from checks import logits_differ_by, weights_differ_by, write_plain

    torch.set_num_threads(1)
    plain = write_plain(root / "plain")
    found = {}
    for config in MODELOPT:
        out = root / config
        _run(pythons["modelopt"], "make_modelopt.py", plain, out, config)
        found[f"modelopt {config} read"] = logits_differ_by(out, None)
    for scheme in LLMCOMPRESSOR:
        out, theirs = root / scheme, root / f"{scheme}.safetensors"
        _run(pythons["llmcompressor"], "make_llmcompressor.py", plain, out, scheme)
        if scheme not in FOUR_BITS:
            _run(pythons["llmcompressor"], "read_compressed.py", out, theirs)
        found[f"llm-compressor {scheme} read"] = logits_differ_by(out, None if scheme in FOUR_BITS else theirs)
    for scheme in ("nvfp4", "mxfp4", "fp8", "fp8_block", "int8", "int4"):
        out, theirs = root / f"ours-{scheme}", root / f"ours-{scheme}.safetensors"
        command = ["quantize", str(plain), str(out), "--format", scheme, "--layout", "compressed-tensors"]
        subprocess.run([sys.executable, "-m", "tokenmill.cli.main", *command], check=True, cwd=ROOT)
        _run(pythons["llmcompressor"], "read_compressed.py", out, theirs)
        found[f"ours {scheme} read by compressed-tensors"] = weights_differ_by(out, theirs)
    return found


def _run(python: Path, script: str, *arguments: object) -> None:
    command = [str(python), str(HERE / script), *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600, check=False)
    if done.returncode:
        raise SystemExit(f"{script} {arguments} failed:\n{done.stderr[-2000:]}")


if __name__ == "__main__":
    sys.exit(main())
