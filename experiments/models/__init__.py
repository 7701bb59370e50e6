"""The papers' models, and small versions that keep their shape; what the benchmarks measure too is shared with them.

Images are ``[batch, 3, side, side]``; all return logits ``[batch, classes]``.
"""

from benchmarks.nets.cells import nas_bench_201
from benchmarks.nets.dags import Dag, path_lengths
from benchmarks.nets.dags import Net as DagNet
from benchmarks.nets.dags import contracted as contract_dag
from benchmarks.nets.dags import parse as parse_dag
from benchmarks.nets.images import all_cnn_c, preact_resnet
from benchmarks.nets.plain import Residual
from benchmarks.nets.plain import cnn as plain_cnn

from experiments.models.cells import parse_cell, parse_code, published_factor
from experiments.models.images import ACTIVATIONS, coatnet, densenet_100, resnet_50, swin, wide_resnet
from experiments.models.small import net_for_nio

__all__ = [
    "ACTIVATIONS",
    "Dag",
    "DagNet",
    "Residual",
    "all_cnn_c",
    "coatnet",
    "contract_dag",
    "densenet_100",
    "nas_bench_201",
    "net_for_nio",
    "parse_cell",
    "parse_code",
    "parse_dag",
    "path_lengths",
    "plain_cnn",
    "preact_resnet",
    "published_factor",
    "resnet_50",
    "swin",
    "wide_resnet",
]
