"""Arguments and options that several commands share."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from wellposed.cli.options import further_options
from wellposed.errors import OptionError
from wellposed.options import DEFAULT_METHOD

_MODEL_HELP = (
    "torchvision:resnet50, timm:vit_small_patch16_224, transformers:path/to/config.json (random weights; nothing is "
    "downloaded), keras:path/to/model.keras, or path/to/file.py:function, which returns the model, (model, args) or "
    "(model, args, kwargs)."
)

Model = Annotated[str, typer.Argument(help=_MODEL_HELP, show_default=False)]
Shape = Annotated[
    list[str] | None,
    typer.Option(
        "--shape",
        metavar="SIZES[:DTYPE]",
        help="An argument of MODEL in place of those it comes with: 2,3,32,32 is noise, 2,16:int64 are tokens; "
        "repeatable.",
        show_default=False,
    ),
]
Method = Annotated[str, typer.Option("--method", "-m", help="How to initialise: steady, autoinit, kaiming, ...")]
CheckedMethod = Annotated[
    str | None,
    typer.Option(
        "--method", "-m", help="Draw the weights from a plan by this method; without it they are MODEL's own."
    ),
]
PlanFile = Annotated[Path | None, typer.Option("--plan", "-p", help="A saved plan, in place of one made by --method.")]
Seed = Annotated[
    int, typer.Option("--seed", "-s", help="Seed of all that is random: MODEL as it is built, plans, inputs.")
]
TargetVariance = Annotated[
    float | None, typer.Option("--target-variance", help="Variance that every weighted output is brought to.")
]
Distribution = Annotated[
    str | None, typer.Option("--distribution", help="truncated_normal, normal, uniform or orthogonal.")
]
Only = Annotated[list[str] | None, typer.Option("--only", help="Pattern of parameters to write; repeatable.")]
Skip = Annotated[list[str] | None, typer.Option("--skip", help="Pattern of parameters to leave alone; repeatable.")]
Option = Annotated[
    list[str] | None,
    typer.Option(
        "--option", "-O", metavar="NAME=VALUE", help="Any further option, also given as --NAME VALUE; repeatable."
    ),
]
Training = Annotated[
    str,
    typer.Argument(
        help="path/to/file.py:function, which returns (model, loss_fn, batches), with loss_fn(model, batch) a scalar.",
        show_default=False,
    ),
]
Family = Annotated[
    str,
    typer.Argument(
        help="path/to/file.py:function, which returns (model_fn, loss_fn, batches): model_fn(size) a model, "
        "loss_fn(model, batch) a scalar, batches a list or a function of the seed.",
        show_default=False,
    ),
]
Sizes = Annotated[str, typer.Option("--sizes", help="At least two sizes, as in 64,128,256.", show_default=False)]
Axis = Annotated[str, typer.Option("--axis", help="What the sizes are: width, depth, or another word.")]
Draws = Annotated[int, typer.Option("--draws", min=2, help="Draws of the weights and of the input.")]
Tolerance = Annotated[
    float | None, typer.Option("--tolerance", help="Octaves that a prediction may miss by; by default, by its tag.")
]
PlanOutput = Annotated[Path | None, typer.Option("--output", "-o", help="Write the plan to this JSON file.")]
Json = Annotated[bool, typer.Option("--json", help="Print JSON, for machines.")]


def method_options(
    command: Callable[..., Any],
    method: str | None,
    target_variance: float | None,
    distribution: str | None,
    only: Sequence[str] | None,
    skip: Sequence[str] | None,
    further: Sequence[str] | None,
    plan_file: Path | None = None,
) -> dict[str, Any]:
    """Return the options of a method that were given to a command, by their names in `wellposed.plan`.

    Raises:
        OptionError: an unknown method, further options that are none of it (`options.further_options`), or a method or
            options beside a finished plan.
    """
    named = {"target_variance": target_variance, "distribution": distribution, "only": only, "skip": skip}
    options: dict[str, Any] = {name: value for name, value in named.items() if value}
    if target_variance is not None:
        options["target_variance"] = target_variance
    if plan_file is not None and (options or further or method is not None):
        raise OptionError("--plan is a finished plan: leave out --method and its options, or make the plan by them")
    if not further:
        return options
    from wellposed import methods
    from wellposed.methods.options import find_method

    chosen = find_method(method or DEFAULT_METHOD)
    return options | further_options(command, further, chosen, methods.plan, either=named, without=("training",))


def sizes_of(text: str, flag: str) -> list[int]:
    """Return sizes that were given as ``64,128,256``.

    Raises:
        OptionError: they are not whole numbers.
    """
    try:
        return [int(part) for part in text.split(",")]
    except ValueError:
        raise OptionError(f"{flag} takes whole numbers, as in 64,128,256; received {text!r}") from None
