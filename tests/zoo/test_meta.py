"""Plans on meta against plans on the CPU, tags included."""

from functools import cache

import pytest
import torch

import wellposed as wp
from wellposed import zoo
from wellposed.remaking.ways import MAKERS

BY_NAME = (
    "torchvision:resnet18",
    "torchvision:convnext_tiny",
    "torchvision:squeezenet1_0",
    "torchvision:regnet_y_400mf",
    "timm:resnet18",
    "timm:convnext_atto",
    "transformers:llama",
    "transformers:qwen2_moe",
    "transformers:gpt_oss",
    "transformers:gemma2",
    "transformers:gpt_neo",
    "transformers:bloom",
    "transformers:falcon",
    "transformers:mamba",
)
CASES = [(name, by_name) for name in BY_NAME for by_name in (True, False) if by_name or "convnext" not in name]
"""By itself, a ConvNeXt cannot say what its gates are set to: by constructors whose arguments nobody keeps."""


def planned(name, device, by_name=True):
    torch.manual_seed(0)
    try:
        model, args, kwargs = zoo.load(name, device=device)
    except wp.errors.OptionError as error:
        pytest.skip(str(error))
    if not by_name:
        MAKERS.clear()
    return wp.plan(model, *args, method="autoinit", **kwargs)


@cache
def planned_for_real(name):
    return planned(name, "cpu")


@pytest.mark.slow
@pytest.mark.parametrize(("name", "by_name"), CASES)
def test_a_plan_on_meta_is_that_of_the_cpu(name, by_name):
    mine, real = planned(name, "meta", by_name), planned_for_real(name)
    assert mine.coverage == real.coverage
    untold = [text for text in mine.warnings if "it is not known what the constructor of" in text]
    assert not (untold and by_name)  # the zoo knows all arguments
    assert [text for text in mine.warnings if text not in untold] == list(real.warnings)
    assert mine.prescriptions.keys() == real.prescriptions.keys()
    for key, one in mine.prescriptions.items():
        other = real.prescriptions[key]
        assert (one.action, one.distribution, one.reason[:20]) == (other.action, other.distribution, other.reason[:20])
        for number in ("std", "mean", "constant"):
            found, expected = getattr(one, number), getattr(other, number)
            assert found == (None if expected is None else pytest.approx(expected, rel=1e-6)), (key, number)
