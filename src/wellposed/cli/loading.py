"""Models and trainings that a command is given by name."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from wellposed.cli.arguments import sizes_of
from wellposed.errors import OptionError

if TYPE_CHECKING:
    from torch import Tensor

    from wellposed.plans import Plan
    from wellposed.zoo import Family, Training
    from wellposed.zoo.names import Loaded


def load(name: str, seed: int, device: str = "cpu", shapes: Sequence[str] | None = None) -> Loaded:
    """Return a model and an example input for it (`wellposed.zoo.load`), made from a seed.

    Args:
        name: the model's.
        seed: of its weights.
        device: where they are made.
        shapes: of arguments that stand for those that the model comes with, as `argument_of` reads them.

    Raises:
        OptionError: a shape that cannot be read.
    """
    args = tuple(argument_of(text, place) for place, text in enumerate(shapes)) if shapes else None  # before long work
    from wellposed import zoo

    _prepare(name, seed)
    return zoo.load(name, device=device, args=args)


def argument_of(text: str, place: int) -> Tensor:
    """Return an example argument on CPU: standard normal numbers, integers of 0 and 1, or booleans.

    Args:
        text: sizes and, behind a colon, a type of torch: ``2,3,32,32`` or ``2,16:int64``.
        place: the argument's, so that two of one shape differ.

    Raises:
        OptionError: anything else.
    """
    import torch

    sizes, _, name = text.partition(":")
    shape = sizes_of(sizes, "--shape")
    dtype = getattr(torch, name or "float32", None)
    if not isinstance(dtype, torch.dtype):
        raise OptionError(f"--shape {text}: {name!r} is no type of torch, such as float32, int64 or bool")
    if min(shape) < 0:
        raise OptionError(f"--shape {text}: sizes are not negative")
    from wellposed.zoo.names import cpu_noise

    drawn = cpu_noise(*shape, seed=place)
    return drawn.to(dtype) if dtype.is_floating_point or dtype.is_complex else (drawn > 0).to(dtype)


def with_base(
    options: dict[str, Any], seed: int, device: str = "cpu", shapes: Sequence[str] | None = None
) -> dict[str, Any]:
    """Return the options of a method with the graph of the model that ``base`` names, where it names one.

    It gets the arguments of the model (``shapes``).
    """
    name = options.get("base")
    if not isinstance(name, str):
        return options
    from wellposed import graphs

    module, args, kwargs = load(name, seed, device, shapes)
    return options | {"base": graphs.trace(module, *args, **kwargs)}


def plan_of(path: Path) -> Plan:
    """Return the plan of a file.

    Raises:
        OptionError: the file cannot be read.
        PlanFileError: it holds no plan.
    """
    from wellposed.plans import Plan

    try:
        return Plan.load(path)
    except OSError as error:
        raise OptionError(
            f"--plan {path}: {error.strerror}; give a file that 'wellposed plan MODEL -o {path.name}' has written, or "
            "leave --plan out and name a --method"
        ) from error


def load_training(name: str, seed: int) -> Training:
    """Return a model, its loss and batches (`wellposed.zoo.load_training`), made from a seed."""
    from wellposed import zoo

    _prepare(name, seed)
    return zoo.load_training(name)


def load_family(name: str, seed: int) -> Family:
    """Return models by size, their loss and batches (`wellposed.zoo.load_family`), made from a seed."""
    from wellposed import zoo

    _prepare(name, seed)
    return zoo.load_family(name)


def _prepare(name: str, seed: int) -> None:
    """Seed all random generators (Keras takes its seeds from Python's), and put a file's folder on Python's path.

    It stays there while the command runs: a model may import its siblings only when it is called.
    """
    from wellposed.random_states import seed_all

    seed_all(seed)
    file, _, _ = name.rpartition(":")
    if file.endswith(".py"):
        sys.path.insert(0, str(Path(file).parent.resolve()))
