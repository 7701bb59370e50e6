"""Models by name, out of torchvision, timm, transformers and files, with random weights and example inputs."""

from wellposed.zoo.names import import_library, import_torchvision, load

__all__ = ["import_library", "import_torchvision", "load"]
