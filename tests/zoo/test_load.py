"""Models by name, and what is said when there is none."""

from __future__ import annotations

import importlib.util
import json
import re
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import wellposed as wp
from wellposed import zoo
from wellposed.errors import OptionError
from wellposed.extras import installing
from wellposed.signals.algebra import pointwise
from wellposed.signals.distributions import mixtures, tails
from wellposed.signals.distributions.functions import Pointwise

needs_extras = pytest.mark.skipif(
    not all(map(importlib.util.find_spec, ("torchvision", "timm", "transformers"))),
    reason="needs pip install 'wellposed[zoo]'",
)
pytestmark = pytest.mark.filterwarnings("ignore")


def test_functions_of_files_return_models_with_their_arguments(tmp_path: Path) -> None:
    path = tmp_path / "nets.py"
    path.write_text(
        "import torch\nfrom torch import nn\n"
        "def alone(): return nn.Linear(2, 3)\n"
        "def with_args(): return nn.Linear(2, 3), (torch.ones(1, 2),)\n"
        "def with_one(): return nn.Linear(2, 3), torch.ones(1, 2)\n"
        "def with_kwargs(): return nn.Linear(2, 3), (), {'input': torch.ones(1, 2)}\n"
        "def wrong(): return 3\n"
    )
    model, args, kwargs = zoo.load(f"{path}:alone")
    assert (type(model), args, kwargs) == (nn.Linear, (), {})
    for function in ("with_args", "with_one"):
        _, args, kwargs = zoo.load(f"{path}:{function}")
        assert torch.equal(args[0], torch.ones(1, 2))
        assert kwargs == {}
    _, args, kwargs = zoo.load(f"{path}:with_kwargs", device="meta")
    assert args == ()
    assert list(kwargs) == ["input"]
    with pytest.raises(OptionError, match=r"has no function 'with_arg'; did you mean 'with_args'"):
        zoo.load(f"{path}:with_arg")
    with pytest.raises(OptionError, match=r"must return a model, \(model, args\) or .* got int"):
        zoo.load(f"{path}:wrong")
    with pytest.raises(OptionError, match="there is no file"):
        zoo.load(f"{tmp_path / 'none.py'}:alone")


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("resnet50", "a model is named as torchvision:NAME.*got 'resnet50'"),
        ("torchvison:resnet50", "unknown model library 'torchvison'; did you mean 'torchvision'"),
        pytest.param("torchvision:resnet5", "torchvision has no model 'resnet5'; did you mean", marks=needs_extras),
        pytest.param("timm:vit_tiny", "timm has no model 'vit_tiny'; did you mean", marks=needs_extras),
        pytest.param("transformers:lama", "transformers has no model type 'lama'; did you mean", marks=needs_extras),
        pytest.param("transformers:none.json", "there is no configuration file 'none.json'", marks=needs_extras),
    ],
)
def test_unknown_names_get_the_nearest(name: str, message: str) -> None:
    with pytest.raises(OptionError, match=message):
        zoo.load(name)


@pytest.mark.parametrize("library", ["torchvision", "timm", "transformers"])
def test_a_missing_extra_says_how_to_install_it(library: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in sys.modules if name.partition(".")[0] == library]:
        monkeypatch.delitem(sys.modules, name)

    class Absent:
        def find_spec(self, name: str, *_: object) -> None:
            if name == library:
                raise ModuleNotFoundError(f"No module named {name!r}", name=name)

    monkeypatch.setattr(sys, "meta_path", [Absent(), *sys.meta_path])
    with pytest.raises(OptionError, match=rf"models of {library} need {library}: {re.escape(installing('zoo'))}"):
        zoo.load(f"{library}:something")


@needs_extras
def test_torchvision_imports_without_its_compiled_operators() -> None:
    torchvision = zoo.import_torchvision()
    assert torchvision.models.resnet18 is not None
    assert hasattr(torch.ops.torchvision, "nms")


@needs_extras
def test_a_configuration_file_is_taken_as_it_is(tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    sizes = {"hidden_size": 48, "num_hidden_layers": 3, "num_attention_heads": 4, "num_key_value_heads": 2}
    path.write_text(json.dumps({"model_type": "llama", "vocab_size": 99, "intermediate_size": 80, **sizes}))
    model, args, kwargs = zoo.load(f"transformers:{path}", device="meta")
    assert type(model).__name__ == "LlamaForCausalLM"
    assert len(model.model.layers) == 3
    assert model.model.embed_tokens.weight.shape == (99, 48)
    assert model.model.embed_tokens.weight.device.type == "meta"
    assert args == ()
    assert int(kwargs["input_ids"].max()) < 99


@needs_extras
def test_examples_are_the_same_every_time() -> None:
    torch.manual_seed(1)
    _, first, _ = zoo.load("timm:vit_tiny_patch16_224", device="meta")
    torch.manual_seed(2)
    _, second, _ = zoo.load("timm:vit_tiny_patch16_224", device="meta")
    assert torch.equal(first[0], second[0])


@pytest.mark.slow
@needs_extras
@pytest.mark.parametrize(
    "name",
    ["torchvision:resnet18", "torchvision:mobilenet_v3_small", "timm:convnext_nano", "timm:vit_small_patch16_224"],
)
def test_expectations_of_real_nets_are_not_cut(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Only functions that outgrow powers are cut where no batch has elements; these nets have none."""
    cut: list[str] = []
    asked = 0

    def watched(function: Pointwise, *args: Any) -> Pointwise:
        nonlocal asked
        asked += 1
        shown = tails.clip_unseen_tails(function, *args)
        cut.extend([str(function.key)] if shown is not function else [])
        return shown

    def usual_scales(kappa: float) -> Any:
        raise AssertionError("scales are cut")

    monkeypatch.setattr(pointwise, "clip_unseen_tails", watched)
    monkeypatch.setattr(mixtures, "_usual_scales", usual_scales)
    model, args, kwargs = zoo.load(name)
    wp.propagate(wp.trace(model, *args, **kwargs), weights="planned")
    assert asked > 0
    assert cut == []
