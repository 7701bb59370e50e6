"""Models by name, out of torchvision, timm, transformers and files, with random weights and example inputs."""

from wellposed.zoo.names import import_library, import_torchvision, load
from wellposed.zoo.training import Family, Training, load_family, load_training

__all__ = ["Family", "Training", "import_library", "import_torchvision", "load", "load_family", "load_training"]
