"""What a user waits for: the first call of a process, commands, a report, gradients beside signals; and what others
would call in the place of a plan.

    python benchmarks/first_calls.py [--repeats 3] [--out docs/results]

Processor time of one thread, least of the repeats. First calls and commands run in a process each; what a command takes
is what it takes beyond the import of its libraries and the construction of the net.
"""

from __future__ import annotations

import argparse
import os
import resource
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

import wellposed as wp
from common import RESULTS, markdown, seconds, seconds_in_turn, write
from nets.libraries import import_extras, torchvision_net
from speed import MODELS, kaiming, pictures
from wellposed.gradients import lsuv

HERE = Path(__file__).parent
CALLS = {"what": "what", "seconds": "took", "goal": "goal"}
PEERS = {
    "model": "model",
    "ours": "trace + plan + apply (s)",
    "kaiming": "kaiming_normal_ over modules (s)",
    "own": "initialiser of its library (s)",
    "lsuv": "LSUV, by passes (s)",
    "keras": "Keras constructs its own (s)",
}
BUILT = "from nets.libraries import import_extras, torchvision_net; model = torchvision_net('resnet18'); "
FIRST = (
    f"import time, torch; {BUILT}torch.set_num_threads(1); x = torch.zeros(2, 3, 224, 224); now = time.process_time; "
    "start = now(); import wellposed as wp; wp.plan; loaded = now(); wp.plan(model, x); first = now(); "
    "wp.plan(model, x); print(loaded - start, first - loaded, now() - first)"
)
ALONE = (
    "import time, torch; from torch import nn; torch.set_num_threads(1); import wellposed as wp; wp.trace; "
    "net = nn.Sequential(nn.Linear(64, 64), nn.ELU(), nn.Linear(64, 64)); now = time.process_time; start = now(); "
    "wp.trace(net, torch.zeros(2, 64)); print(now() - start)"
)
COMPILER = "import time, torch; start = time.process_time(); import torch._dynamo; print(time.process_time() - start)"
KERAS = (
    "import time, torch; torch.set_num_threads(1); import keras; net = keras.applications.{}; "
    "net(weights=None); start = time.process_time(); net(weights=None); print(time.process_time() - start)"
)
KERAS_NETS = {"resnet50": "ResNet50", "densenet121": "DenseNet121", "efficientnet_b0": "EfficientNetB0"}


def run(command: Sequence[str]) -> tuple[float, str]:
    """Run a command on one thread; return its processor time in seconds, and what it prints."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    surroundings = os.environ | {"OMP_NUM_THREADS": "1", "KERAS_BACKEND": "torch"}
    done = subprocess.run(command, cwd=HERE, env=surroundings, capture_output=True, text=True, check=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime, done.stdout


def printed(code: str, repeats: int) -> list[float]:
    """Return the least of the numbers that a program prints, place by place, each time in a process of its own."""
    found = [[float(word) for word in run([sys.executable, "-c", code])[1].split()] for _ in range(repeats)]
    return [min(numbers) for numbers in zip(*found, strict=True)]


def first_calls(repeats: int) -> list[dict[str, Any]]:
    """Return what is waited for before the first plan, and what commands take."""
    loaded, first, later = printed(FIRST, repeats)
    rows = [
        row("first use of wp.plan, beyond torch", loaded),
        row("first plan of ResNet-18, beyond a later one", first - later, "≤ 0.1 s"),
        row("first trace of layers and an ELU, no library of models loaded", *printed(ALONE, repeats)),
        row("import of PyTorch's compiler, which such a trace does without", *printed(COMPILER, repeats)),
    ]
    program = [sys.executable, "-c"]
    built = min(run([*program, BUILT])[0] for _ in range(repeats))
    for name, goal in (("plan", "≤ 1 s"), ("check", "≤ 2 s")):
        call = (
            f"import sys; from wellposed.cli import main; sys.argv = ['wellposed', {name!r}, 'torchvision:resnet18']; "
        )
        taken = min(run([*program, f"{call}main()"])[0] for _ in range(repeats))
        rows.append(row(f"wellposed {name} torchvision:resnet18, beyond torch and the net", taken - built, goal))
    return rows


def row(what: str, taken: float, goal: str = "", unit: str = " s") -> dict[str, Any]:
    """Return a row of the first table."""
    return {"what": what, "seconds": f"{taken:.3g}{unit}", "goal": goal, "value": taken}


def later_calls(repeats: int) -> list[dict[str, Any]]:
    """Return what a report takes, and what gradients take beside signals, as a plan and as a prediction."""
    net = torchvision_net("resnet50")
    report = seconds_in_turn((lambda: wp.report(net, pictures()),), repeats)[0]
    rows = [row("report of ResNet-50, but for the first of a process", report, "≤ 8 s")]
    for name in ("resnet18", "resnet50", "efficientnet_b0", "vit_b_16", "convnext_tiny", "gpt2"):
        build, example = MODELS[name]
        graph = wp.trace(build(), example())
        one, two = plans_of(graph, repeats)
        rows.append(row(f'plan(direction="both") of {name} over a plan', two / one, "≤ 4", " ×"))
        one, two = predictions_of(graph, repeats)
        rows.append(row(f"propagate(backward=True) of {name} over propagate", two / one, "", " ×"))
    return rows


def plans_of(graph: wp.Graph, repeats: int) -> list[float]:
    """Return what a plan takes that keeps the signal, and one that keeps the gradient too."""
    return seconds_in_turn(
        (
            lambda: wp.plan(graph, method="autoinit"),
            lambda: wp.plan(graph, method="autoinit", direction="both"),
        ),
        repeats,
    )


def predictions_of(graph: wp.Graph, repeats: int) -> list[float]:
    """Return what a prediction of signals takes, and one of gradients with them."""
    return seconds_in_turn((lambda: wp.propagate(graph), lambda: wp.propagate(graph, backward=True)), repeats)


def no_loss(model: nn.Module, batch: Tensor) -> Tensor:
    """Return a loss: LSUV runs passes, and needs none."""
    output = model(batch)
    return (output if isinstance(output, Tensor) else output[0]).square().mean()


def of_timm(name: str) -> nn.Module:
    """Return a net of timm with random weights."""
    import_extras()
    import timm

    net: nn.Module = timm.create_model(name)
    return net


def beside_peers(name: str, repeats: int) -> dict[str, Any]:
    """Return what a plan takes, and what a user might call in its place, for one model."""
    build, example = MODELS.get(name) or (lambda: of_timm(name), pictures)
    model, inputs = build(), example()
    calls = (lambda: wp.initialize_(model, inputs, method="autoinit"), lambda: kaiming(model), lambda: reset(model))
    ours, he, its_own = seconds_in_turn(calls, repeats)
    keras = printed(KERAS.format(KERAS_NETS[name]), repeats)[0] if name in KERAS_NETS else None
    passes = min(seconds(lambda: lsuv(model, no_loss, [inputs]), 1, clock))
    return {"model": name, "ours": ours, "kaiming": he, "own": its_own, "lsuv": passes, "keras": keras}


def reset(model: nn.Module) -> None:
    """Draw all weights again as the model's library draws them; of torchvision's nets what PyTorch's layers do."""
    own: Callable[[], Any] | None = getattr(model, "init_weights", None)
    if own is not None:
        for module in model.modules():
            module.__dict__.pop("_is_hf_initialized", None)  # transformers goes by the modules that are drawn
        own()
        return
    for module in model.modules():
        again = getattr(module, "reset_parameters", None)
        if callable(again):
            again()


def clock() -> float:
    """Return the processor time of this process in seconds."""
    times = os.times()
    return times.user + times.system


NETS = ("resnet18", "resnet50", "densenet121", "efficientnet_b0", "vit_base_patch16_224", "bert-base", "gpt2")
"""Those of `speed.MODELS`, and one of timm."""


def main() -> None:
    """Run the benchmark and write its results."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--out", type=Path, default=RESULTS)
    options = parser.parse_args()
    torch.set_num_threads(1)
    calls = [*first_calls(options.repeats), *later_calls(options.repeats)]
    print(markdown(calls, CALLS), flush=True)
    peers = []
    for name in NETS:
        peers.append(beside_peers(name, options.repeats))
        print(markdown(peers[-1:], PEERS).splitlines()[-1], flush=True)
    write("first_calls", f"{markdown(calls, CALLS)}\n\n{markdown(peers, PEERS)}", calls, options.out, peers=peers)


if __name__ == "__main__":
    main()
