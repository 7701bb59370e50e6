"""``--option NAME=VALUE``: read by the type of the option, or refused by name."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import pytest

from wellposed.cli.further import by_option
from wellposed.cli.options import further_options
from wellposed.errors import OptionError


@dataclass
class Settings:
    widen: int = 3
    memory: int | None = None


def search(
    model: object,
    *,
    seeds: int = 3,
    steps: int | None = None,
    rate: "float | Literal['auto']" = "auto",
    grid: Sequence[float] | None = None,
    kind: Literal["normal", "uniform"] = "normal",
    optimizer: str | Callable[[], object] = "sgd",
    gains: bool | Literal["norms"] = False,
    make: Callable[[], object] | None = None,
    extra: Mapping[str, Any] | None = None,
    only: str | Sequence[str] | None = None,
    settings: Settings | None = None,
    **fields: Any,
) -> None:
    """Stand for a function with options of every type."""


def command(model: str, seed: int = 0, *, as_json: bool = False) -> None:
    """Stand for a command."""


def given(*texts: str) -> dict[str, Any]:
    return further_options(command, texts, search)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("seeds=2", 2),
        ("steps=none", None),
        ("steps=4", 4),
        ("rate=auto", "auto"),
        ("rate=1", 1.0),
        ("rate=1e-3", 1e-3),
        ("grid=0.1,0.2,0.3", [0.1, 0.2, 0.3]),
        ("grid=[0.1, 0.2]", [0.1, 0.2]),
        ("grid=0.5", [0.5]),
        ("kind=uniform", "uniform"),
        ("optimizer=adam", "adam"),
        ("optimizer=1", "1"),
        ("gains=norms", "norms"),
        ("gains=True", True),
        ('extra={"zeros": "write"}', {"zeros": "write"}),
        ("only=*.bias", "*.bias"),
        ("only=0.*,1.*", ["0.*", "1.*"]),
        ("widen=0", 0),
        ("memory=1024", 1024),
    ],
)
def test_values_have_the_type_of_the_option(text, value):
    found = given(text)[text.partition("=")[0]]
    assert (found, type(found)) == (value, type(value))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("seeds=two", "seeds of search takes a whole number, received 'two'"),
        ("seeds=2.5", "a whole number"),
        ("kind=norml", "'normal' or 'uniform'"),
        ("grid=a,b", "several"),
        ("gains=1", "true or false or 'norms'"),
        ("make=x", "make of search takes a function, which cannot be given on the command line"),
        ("settings=1", "'settings' is no option"),
        ("sed=1", "'sed' is no option of search; did you mean 'seed' or 'seeds'"),
        ("seed=1", "give it as --seed"),
        ("as_json=true", "give it as --as-json"),
        ("model=x", "one of the command's own"),
        ("grid", "NAME=VALUE"),
        ("=3", "NAME=VALUE"),
        ("extra=3", "a JSON object"),
    ],
)
def test_what_is_no_option_or_no_value_is_refused_by_name(text, message):
    with pytest.raises(OptionError) as caught:
        given(text)
    assert message in str(caught.value)


def test_an_option_is_given_once():
    with pytest.raises(OptionError, match="twice"):
        given("seeds=2", "seeds=3")


TRAINING = """
import torch
from torch import nn


def training():
    return nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 1)), loss, [torch.randn(8, 4) for _ in range(4)]


def loss(model, batch):
    return (model(batch) - batch.sum(1, keepdim=True)).square().mean()
"""


@pytest.mark.parametrize(
    ("argv", "code", "said"),
    [
        (["plan", "torchvision:resnet18", "-O", "method=kaiming"], 2, "--method"),
        (["check", "torchvision:resnet18", "-O", "draws=3"], 2, "--draws"),
        (["report", "torchvision:resnet18", "-O", "seed=3"], 2, "--seed"),
        (["plan", "torchvision:resnet18", "-m", "kaiming", "-O", "mode=fan_uot"], 2, "'fan_in' or 'fan_out'"),
        (["plan", "torchvision:resnet18", "-O", "centre=true"], 2, "'center'"),
        (["lr", "{file}", "--base-rate", "nan"], 2, "--base-rate must be a finite number above 0, received nan"),
        (["lr", "{file}", "--find", "--base", "x"], 2, "leave out --rule, --base and --base-rate"),
        (["check", "{file}", "--plan", "p.json", "-m", "kaiming"], 2, "--plan is a finished plan: leave out --method"),
        (["explain", "{file}", "--plan", "p.json", "--only", "x"], 2, "--plan is a finished plan: leave out --method"),
        (["lr", "{file}", "--find", "-O", "batches=1"], 2, "'batches' is no option of find_max_lr"),
        (["lr", "{file}", "--find", "-O", "rule=ntk"], 2, "--rule"),
        (["lr", "{file}", "--rule", "ntk", "-O", "sampels=1"], 2, "'sampels'"),
        (["refine", "{file}", "-O", "seed=1"], 2, "--seed"),
        (["refine", "{file}", "-O", "plan=x"], 2, "plan of gradient_norm takes"),
        (["compare", "{file}", "-O", "seeds=2"], 2, "--seeds"),
        (["lr", "{file}", "--find", "-O", "seeds=1", "-O", "seed=1", "-O", "grid=0.01,0.02,0.03", "-O", "widen=0"], 0,
         "one draw of the weights"),
    ],
)  # fmt: skip
def test_every_command_reads_its_options_by_that_rule(run, tmp_path, argv, code, said):
    (tmp_path / "train.py").write_text(TRAINING)
    got, out, err = run(*(word.format(file=f"{tmp_path / 'train.py'}:training") for word in argv), columns=400)
    assert got == code
    assert said in (err if code else out)


@pytest.mark.parametrize(
    ("words", "read"),
    [
        (["net", "--steps", "3"], ["net", "--option", "steps=3"]),
        (["--steps=3", "-s", "1"], ["--option", "steps=3", "-s", "1"]),
        (["--base-width", "-1.5"], ["--option", "base_width=-1.5"]),
        (["--per-layer", "--seed", "2"], ["--option", "per_layer=true", "--seed", "2"]),
        (["--center"], ["--option", "center=true"]),
        (["--", "--steps"], ["--", "--steps"]),
    ],
)
def test_what_a_command_does_not_declare_is_a_further_option(words, read):
    assert by_option(words, {"--option", "--seed"}) == read
    assert by_option(words, {"--seed"}) == words
