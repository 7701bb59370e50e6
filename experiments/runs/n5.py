"""N5: ResNet-50 at ImageNet's resolution, refined by NIO and by others."""

from __future__ import annotations

from typing import Any, ClassVar

from experiments.registry import experiment
from experiments.runs.n1 import MethodsByNets


@experiment("N5")
class ResNet50(MethodsByNets):
    """The methods of N1 on a larger net and larger images."""

    title = "ResNet-50 on ImageNet"
    source = "NIO, table 4"
    claim = "On ImageNet ResNet-50 is more accurate after NIO than after Kaiming's initialisation and GradInit."
    paper = (
        "100 epochs: Kaiming 76.43 ± 0.05 %, Fixup 76.0, MetaInit 76.0 (refined for 0.81 h), GradInit 76.50 ± 0.05 "
        "(0.21 h), NIO 76.71 ± 0.07 (0.03 h), trained for 8.5 h. Below the paper's scale: CIFAR-10, as it is "
        "(laptop) or enlarged to 64×64"
    )
    use = "Nothing is known of it here: a longer run decides."
    reversal = "other rates, and more draws"
    stated: ClassVar[dict[str, Any]] = {"train.epochs": 100, "refine.gradinit.iterations": 2000}
