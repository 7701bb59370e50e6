"""Models and trainings that a command is given by name."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from wellposed.errors import OptionError

if TYPE_CHECKING:
    from wellposed.plans import Plan
    from wellposed.zoo import Family, Training
    from wellposed.zoo.names import Loaded


def load(name: str, seed: int, device: str = "cpu") -> Loaded:
    """Return a model and an example input for it (`wellposed.zoo.load`), made from a seed."""
    from wellposed import zoo

    _prepare(name, seed)
    return zoo.load(name, device=device)


def with_base(options: dict[str, Any], seed: int, device: str = "cpu") -> dict[str, Any]:
    """Return the options of a method with the graph of the model that ``base`` names, where it names one."""
    name = options.get("base")
    if not isinstance(name, str):
        return options
    from wellposed import graphs

    module, args, kwargs = load(name, seed, device)
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
