"""Files of weights: safetensors, which every framework reads, or PyTorch's own."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import TYPE_CHECKING

from wellposed.errors import OptionError

if TYPE_CHECKING:
    from torch import nn

    from wellposed.plans import Plan

SUFFIXES = (".safetensors", ".pt")


def require_writable(path: Path) -> None:
    """Raise `OptionError` where weights cannot be written to a file, before the long work."""
    from wellposed.plans import files

    if path.suffix not in SUFFIXES:
        raise OptionError(f"weights are written to a file that ends in {' or '.join(SUFFIXES)}, received {str(path)!r}")
    if path.suffix == ".safetensors" and importlib.util.find_spec("safetensors") is None:
        raise OptionError("a file of safetensors needs that package: pip install safetensors; or name a .pt file")
    files.require_writable(path, "weights")


def loading(path: Path) -> str:
    """Return the call that reads a file of weights."""
    return f"{'torch.load' if path.suffix == '.pt' else 'safetensors.torch.load_file'}({str(path)!r})"


def write(module: nn.Module, plan: Plan, path: Path) -> None:
    """Write a module's parameters and buffers by name, each whole, also where several share their memory."""
    from wellposed.plans import files

    tensors = {name: tensor.detach().cpu().clone().contiguous() for name, tensor in module.state_dict().items()}

    def fill(target: Path) -> None:
        if path.suffix == ".pt":
            import torch

            torch.save(tensors, target)
        else:
            from safetensors.torch import save_file

            save_file(tensors, target, {"format": "pt", "method": plan.method, "seed": str(plan.seed)})

    files.write_whole(path, fill)
