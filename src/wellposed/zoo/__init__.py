"""Models by name, out of torchvision, timm, transformers and files, with random weights and example inputs."""

from wellposed.zoo.names import import_library, import_torchvision, load
from wellposed.zoo.training import Training, load_training

__all__ = ["Training", "import_library", "import_torchvision", "load", "load_training"]
