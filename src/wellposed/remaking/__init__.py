"""What tensors on the meta device would hold on the CPU: worked out again by the model's own means."""

from wellposed.remaking.parents import Untold
from wellposed.remaking.remake import remade
from wellposed.remaking.ways import authored, constructor, hook_of, remember, resets

__all__ = ["Untold", "authored", "constructor", "hook_of", "remade", "remember", "resets"]
