"""Models: the sizes that their papers state, cells and graphs from strings, and nets without norm."""

import pytest
import torch
from experiments.errors import ExperimentError
from experiments.models import (
    DagNet,
    all_cnn_c,
    coatnet,
    densenet_100,
    nas_bench_201,
    parse_cell,
    parse_dag,
    preact_resnet,
    resnet_50,
    swin,
    wide_resnet,
)
from torch import nn


def millions(build):
    with torch.device("meta"):
        return sum(parameter.numel() for parameter in build().parameters()) / 1e6


@pytest.mark.parametrize(
    ("build", "paper"),
    [
        (lambda: all_cnn_c(), 1.4),  # "≈ 1.3–1.4 M", Springenberg et al. 2014, section 3.1
        (lambda: preact_resnet(110), 1.7),  # He et al. 2016, table 6 of the first paper
        (lambda: preact_resnet(164), 1.7),
        (lambda: wide_resnet(28, 10), 36.5),  # Zagoruyko & Komodakis 2016, table 4
        (lambda: densenet_100(), 0.8),  # Huang et al. 2017, table 2: DenseNet-BC, k = 12
        (lambda: resnet_50(1000), 25.6),  # Zagoruyko & Komodakis 2016, table 8: 25.6M
        (lambda: swin(classes=1000), 28.3),  # Liu et al. 2021, table 1: 29M, rounded up
    ],
    ids=["All-CNN-C", "ResNet-110", "ResNet-164", "WRN-28-10", "DenseNet-100", "ResNet-50", "Swin-T"],
)
def test_the_number_of_parameters_is_the_papers(build, paper):
    assert round(millions(build), 1) == paper


@pytest.mark.parametrize(
    ("build", "side"),
    [
        (lambda: coatnet(32, "relu", kind="small"), 32),
        (lambda: coatnet(32, "selu", norm=False, kind="small"), 32),
        (lambda: swin(32, small=True), 32),
        (lambda: wide_resnet(10, 1, bn=False), 16),
        (lambda: DagNet("x", parse_dag("2_02_120"), kernel=3, width=8).build(), 16),
    ],
    ids=["CoAtNet", "CoAtNet without norm", "Swin", "WRN-10-1", "DAG"],
)
def test_nets_map_images_to_logits(build, side):
    with torch.inference_mode():
        assert build().eval()(torch.randn(2, 3, side, side)).shape == (2, 10)


def test_taking_the_norms_out_leaves_every_activation():
    def kinds(norm):
        counted = {}
        for module in coatnet(32, "selu", norm=norm, kind="small").modules():
            counted[type(module)] = counted.get(type(module), 0) + 1
        return counted

    with_norm, without = kinds(True), kinds(False)
    assert without[nn.SELU] == with_norm[nn.SELU]
    assert not any(issubclass(kind, nn.BatchNorm2d | nn.LayerNorm) for kind in without)


def test_cells_come_from_the_benchmarks_own_strings():
    cell = parse_cell("|nor_conv_3x3~0|+|skip_connect~0|avg_pool_3x3~1|+|none~0|nor_conv_1x1~1|skip_connect~2|")
    assert cell == {
        (0, 1): "conv3x3",
        (0, 2): "skip",
        (1, 2): "avgpool3x3",
        (0, 3): "none",
        (1, 3): "conv1x1",
        (2, 3): "skip",
    }
    assert nas_bench_201(cell, cells=1, channels=4)(torch.randn(2, 3, 16, 16)).shape == (2, 10)


def test_edges_that_lead_nowhere_are_none():
    cell = parse_cell("|nor_conv_3x3~0|+|none~0|none~1|+|skip_connect~0|none~1|nor_conv_1x1~2|")
    assert cell[0, 1] == cell[2, 3] == "none"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("|nor_conv_7x7~0|+|none~0|none~1|+|none~0|none~1|none~2|", "no cell of NAS-Bench-201"),
        ("|none~0|", "no cell of NAS-Bench-201"),
        ("|nor_conv_3x3~0|+|none~0|none~1|+|none~0|none~1|none~2|", "no path"),
    ],
)
def test_other_strings_are_refused(text, message):
    with pytest.raises(ExperimentError, match=message):
        parse_cell(text)
