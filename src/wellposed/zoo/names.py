"""Models by name: ``torchvision:NAME``, ``timm:NAME``, ``transformers:CONFIG``, ``keras:FILE``, ``FILE.py:FUNCTION``.

Weights are random and nothing is downloaded. torchvision, timm, transformers, keras and flax are extras, imported when
first asked for. Models of Keras and JAX come as their front ends.
"""

from __future__ import annotations

import importlib
import importlib.util
import inspect
import os
import sys
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from wellposed.errors import OptionError, near_matches
from wellposed.extras import installing
from wellposed.remaking import remember
from wellposed.zoo.files import function_of

if TYPE_CHECKING:
    from wellposed.frontends.base import Frontend

Loaded = tuple[torch.nn.Module, tuple[Any, ...], dict[str, Any]]

_TORCHVISION_OPERATORS = (
    "nms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor",
    "qnms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor",
)
_LIBRARIES: list[torch.library.Library] = []
_ON_TORCHVISION = ("timm", "transformers", "lightning")
"""Libraries that import torchvision; it takes seconds, and the others do without it."""


def load(name: str, device: str = "cpu", args: tuple[Any, ...] | None = None) -> Loaded:
    """Return a model with random weights and an example input for it: ``(model, args, kwargs)``.

    Args:
        name: ``torchvision:resnet50``; ``timm:vit_small_patch16_224``; ``transformers:path/to/config.json``, or a model
            type such as ``transformers:llama`` for a small configuration of it; ``keras:path/to/model.keras``, which
            has weights of its own; ``path/to/file.py:function`` for a function that returns ``model``, ``(model,
            args)`` or ``(model, args, kwargs)``, a model being a module of torch, Keras or Flax NNX, or a
            `wellposed.jax.Function`.
        device: where parameters and buffers are made; ``"meta"`` takes no memory. Example inputs are on CPU, and so are
            models of files of Keras.
        args: example arguments in place of those that the model comes with.

    Raises:
        OptionError: the name cannot be read, there is no such model, or the library that has it is not installed.
    """
    if torch.device(device).type != "meta" or name.startswith(("transformers:", "keras:")):
        return _loaded(name, device, args)
    try:
        loaded = _loaded(name, device, args)
    except NotImplementedError:  # its constructor reads values, which nothing on meta has
        model, example, kwargs = _loaded(name, "cpu", args)
        loaded = model.to(device), example, kwargs
    remember(loaded[0], lambda: _loaded(name, "cpu", args)[0])
    return loaded


def _loaded(name: str, device: str, given: tuple[Any, ...] | None) -> Loaded:
    """Make a model on a device; see `load`, whose errors these are."""
    library, _, model = name.partition(":")
    if not model:
        raise OptionError(
            "a model is named as torchvision:NAME, timm:NAME, transformers:CONFIG, keras:FILE or "
            "path/to/file.py:function; "
            f"got {name!r}"
        )
    if library == "keras":
        return _from_keras(Path(model), given)
    if library.endswith(".py"):
        with torch.device(device):
            return _from_file(Path(library), model, given)
    made = _from_library(library, model, device)
    return made if given is None else (made[0], given, {})


def _from_library(library: str, model: str, device: str) -> Loaded:
    """Make a model that a library has by name."""
    if library == "transformers":
        from wellposed.zoo.configurations import from_config

        return from_config(model, import_library("transformers"), device)
    with torch.device(device):
        if library == "torchvision":
            return _from_torchvision(model)
        if library == "timm":
            return _from_timm(model)
    raise OptionError(
        f"unknown model library {library!r}{near_matches(library, ('torchvision', 'timm', 'transformers', 'keras'))}"
    )


def import_torchvision() -> ModuleType:
    """Import torchvision, also where its compiled operators do not load (a CUDA build beside a CPU-only torch).

    Its Python part registers shapes for two operators of the compiled part at import, and fails where that part is
    missing. They are declared here without an implementation, so that every model that does not call them works.

    Raises:
        OptionError: torchvision is not installed.
    """
    try:
        return import_library("torchvision")
    except RuntimeError as error:
        if "operator torchvision::" not in str(error):
            raise
    for name in [name for name in sys.modules if name.partition(".")[0] == "torchvision"]:
        del sys.modules[name]
    library = torch.library.Library("torchvision", "FRAGMENT")
    for schema in _TORCHVISION_OPERATORS:
        library.define(schema)
    _LIBRARIES.append(library)
    return import_library("torchvision")


def import_library(name: str, *, what: str | None = None, extra: str = "zoo") -> ModuleType:
    """Import one of the extras, and torchvision first where the library imports it.

    Args:
        name: the library.
        what: what needs it, for the message; by default models of it.
        extra: the extra of wellposed that installs it.

    Raises:
        OptionError: it is not installed.
    """
    try:
        if name in _ON_TORCHVISION and importlib.util.find_spec("torchvision") is not None:
            import_torchvision()
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name != name:
            raise
        needs = f"models of {name} need" if what is None else f"{what} needs"
        raise OptionError(f"{needs} {name}: {installing(extra)}") from error


def _from_torchvision(name: str) -> Loaded:
    """Make one of ``torchvision.models.list_models()``."""
    models = import_torchvision().models
    names = models.list_models()
    if name not in names:
        raise OptionError(f"torchvision has no model {name!r}{near_matches(name, names)}")
    builder = models.get_model_builder(name)
    options = {"weights": None}
    if "weights_backbone" in inspect.signature(builder).parameters:
        options["weights_backbone"] = None
    if name in ("googlenet", "inception_v3"):
        options["init_weights"] = True  # type: ignore[assignment]
    model: nn.Module = builder(**options)
    module = builder.__module__
    if ".video" in module:
        frames, size = (14, 224) if "s3d" in name else (16, 224 if "swin" in name or "mvit" in name else 112)
        return model, (cpu_noise(2, 3, frames, size, size),), {}
    if ".optical_flow" in module:
        return model, (cpu_noise(1, 3, 128, 128), cpu_noise(1, 3, 128, 128)), {}
    if ".detection" in module:
        images = [cpu_noise(3, 320, 320), cpu_noise(3, 320, 320)]
        boxes = torch.tensor([[10.0, 20.0, 200.0, 220.0]], device="cpu")
        target: dict[str, torch.Tensor] = {"boxes": boxes, "labels": torch.ones(1, dtype=torch.int64, device="cpu")}
        if "mask" in name:
            target["masks"] = torch.ones(1, 320, 320, dtype=torch.uint8, device="cpu")
        if "keypoint" in name:
            target["keypoints"] = torch.full((1, 17, 3), 100.0, device="cpu")
        return model, (images, [target, dict(target)]), {}
    size = 299 if name == "inception_v3" else 224
    size = getattr(model, "image_size", size)
    return model, (cpu_noise(2, 3, size, size),), {}


def _from_timm(name: str) -> Loaded:
    """Make one of ``timm.list_models()``."""
    timm = import_library("timm")
    names = timm.list_models()
    if name not in names:
        raise OptionError(f"timm has no model {name!r}{near_matches(name, names)}")
    model: nn.Module = timm.create_model(name, pretrained=False)
    size = getattr(model, "pretrained_cfg", {}).get("input_size", (3, 224, 224))
    return model, (cpu_noise(2, *size),), {}


def _from_file(path: Path, function: str, given: tuple[Any, ...] | None) -> Loaded:
    """Make the model of a user's own function; arguments that are given stand for its own."""
    keras_on_torch()
    made = function_of(path, function)()
    parts = made if isinstance(made, tuple) else (made,)
    model, args, kwargs = (*parts, *((), {})[len(parts) - 1 :])[:3] if parts else (None, (), {})
    args = given if given is not None else args if isinstance(args, tuple) else (args,)
    front = front_end(model)
    if front is not None and kwargs == {} and len(parts) <= 3:
        return front, front.given(args), {}
    if not isinstance(model, nn.Module) or not isinstance(kwargs, dict) or len(parts) > 3:
        raise OptionError(
            f"{function} of {str(path)!r} must return a model, (model, args) or (model, args, kwargs); "
            f"got {kinds(made)}"
        )
    return model, args, kwargs


def kinds(made: Any) -> str:
    """Return of what class that is which a function returned, or its parts."""
    return ", ".join(type(part).__name__ for part in made) if isinstance(made, tuple) else type(made).__name__


def front_end(model: Any) -> Frontend | None:
    """Return the front end of a model of Keras or JAX; None for anything else. It is chosen by the model's classes.

    Raises:
        InputError: a model of Keras that is not built.
        UnsupportedError: Keras runs on another backend than torch, or a layer of it cannot be traced.
    """
    homes = {kind.__module__ for kind in type(model).__mro__}
    libraries = {home.partition(".")[0] for home in homes}
    if "keras" in libraries:  # on torch a module of it is also one of torch
        from wellposed.frontends.keras import KerasModule

        return KerasModule(model)
    if "flax" in libraries or any(home.startswith("wellposed.frontends.jax") for home in homes):
        from wellposed.frontends import jax

        return jax.front_end(model)
    return None


def keras_on_torch() -> None:
    """See to it that Keras runs on torch in this process, if nothing has imported it."""
    if "keras" not in sys.modules:
        os.environ["KERAS_BACKEND"] = "torch"


def _from_keras(path: Path, given: tuple[Any, ...] | None) -> Loaded:
    """Load a model that Keras saved."""
    if not path.exists():
        raise OptionError(f"there is no file {str(path)!r}")
    keras_on_torch()
    keras = import_library("keras", extra="keras")
    from wellposed.frontends.keras import KerasModule
    from wellposed.frontends.keras.sending import summary

    try:
        model = keras.saving.load_model(path, compile=False)
    except Exception as error:
        raise OptionError(
            f"Keras cannot load {str(path)!r} ({summary(error)}); a model with classes of its own is named "
            "path/to/file.py:function, for a function that loads it"
        ) from error
    module = KerasModule(model)
    return module, module.given(given or ()), {}


def cpu_noise(*shape: int, seed: int = 0) -> torch.Tensor:
    """Return standard normal example data on CPU, also while models are made on meta; always the same for a seed."""
    return torch.randn(*shape, generator=torch.Generator("cpu").manual_seed(seed), device="cpu")
