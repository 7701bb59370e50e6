"""A user's own file on the command line: what it imports, what it raises, and the exit codes of every command."""

import json
import os
import subprocess
import sys

import pytest
import torch

from wellposed import zoo

NET = """
import torch
from torch import nn
from sibling import WIDTH, fail


def build():
    return nn.Linear(WIDTH, 3), (torch.randn(4, WIDTH),)


def lazy():
    from later import width
    return nn.Linear(width(), 3), (torch.randn(4, width()),)


def broken():
    return nn.Linear(fail(0), 3)


def ends():
    raise SystemExit("no data")


def missing():
    return open("/no/such/data.bin")


def loss(model, batch):
    return model(batch).sum() / fail(0)


def training():
    return nn.Linear(WIDTH, 3), loss, [torch.randn(4, WIDTH)]


def asks(width):
    return nn.Linear(width, 3)


ready = nn.Linear(WIDTH, 3)


def endless():
    return endless()


def talks():
    print("built")

    class Talking(nn.Linear):
        def forward(self, x):
            from late import said
            print(said)
            return super().forward(x)

    return Talking(WIDTH, 3), (torch.randn(4, WIDTH),)


def drawn():
    import numpy

    width = int(numpy.random.randint(8, 80))
    return nn.Sequential(nn.Linear(WIDTH, width), nn.ReLU(), nn.Linear(width, 3)), (torch.randn(4, WIDTH),)


def drawn_training():
    return nn.Linear(WIDTH, 3), lambda model, batch: model(batch).square().mean(), [torch.randn(4, WIDTH)]


def of_whole_numbers():
    return nn.Linear(WIDTH, 3), (torch.ones(4, WIDTH, dtype=torch.long),)


def bare():
    class Tagged(nn.Linear):
        def forward(self, x, tokens):
            return super().forward(x) + nn.functional.one_hot(tokens, 3)

    return Tagged(WIDTH, 3)


def off():
    class Scaled(nn.Module):
        def __init__(self):
            super().__init__()
            self.linear = nn.Linear(64, 64)
            with torch.no_grad():
                self.linear.weight.mul_(torch.linspace(0, 40, 64)[None] ** 3)

        def forward(self, x):
            return self.linear(x * torch.linspace(0, 40, 64) ** 3)

    return Scaled(), (torch.randn(32, 64),)
"""
SIBLING = """
WIDTH = {width}


def fail(number):
    return 1 / number
"""


@pytest.fixture
def folder(tmp_path, monkeypatch):
    made = tmp_path / "first"
    made.mkdir()
    (made / "net.py").write_text(NET)
    (made / "sibling.py").write_text(SIBLING.format(width=4))
    (made / "late.py").write_text("said = 'called'\n")
    (made / "no_text.py").write_bytes(b"\0\0")
    (made / "empty.py").write_text("")
    (made / "later.py").write_text("def width():\n    return 6\n")
    (made / "unfinished.py").write_text("x = = 1\n")
    (made / "without.py").write_text("import no_such_module_at_all\n")
    monkeypatch.chdir(tmp_path)
    return made


def test_a_file_imports_its_siblings_also_later_and_the_path_is_as_before(folder):
    before = list(sys.path)
    assert zoo.load(f"{folder / 'net.py'}:build")[0].in_features == 4
    assert zoo.load(f"{folder / 'net.py'}:lazy")[0].in_features == 6
    assert sys.path == before


def test_the_path_is_as_before_after_a_failure(folder):
    before = list(sys.path)
    for name in ("net.py:broken", "unfinished.py:x", "without.py:x"):
        with pytest.raises((ZeroDivisionError, SyntaxError, ModuleNotFoundError)):
            zoo.load(f"{folder / name}")
    assert sys.path == before
    assert "unfinished" not in sys.modules


def test_files_of_two_folders_each_have_their_own_sibling(folder):
    other = folder.parent / "second"
    other.mkdir()
    (other / "net.py").write_text(NET)
    (other / "sibling.py").write_text(SIBLING.format(width=5))
    for place, width in ((folder, 4), (other, 5), (folder, 4)):
        assert zoo.load(f"{place / 'net.py'}:build")[0].in_features == width


@pytest.mark.parametrize(
    ("argv", "said"),
    [
        (["plan", "first/net.py:broken"], ["error: ZeroDivisionError: division by zero", "first/net.py:",
                                           "in broken: return nn.Linear(fail(0), 3)",
                                           "first/sibling.py:6 in fail: return 1 / number"]),
        (["plan", "first/net.py:ends"], ["SystemExit: no data", 'in ends: raise SystemExit("no data")']),
        (["plan", "first/net.py:missing"], ["/no/such/data.bin", 'return open("/no/such/data.bin")']),
        (["plan", "first/unfinished.py:x"], ["SyntaxError", "first/unfinished.py:1: x = = 1"]),
        (["plan", "first/no_text.py:x"], ["SyntaxError", "first/no_text.py"]),
        (["plan", "first/empty.py:x"], ["'first/empty.py' has no function 'x'; it has none"]),
        (["plan", "first/net.py:asks"], ["asks of 'first/net.py' is called without arguments, and missing a required "
                                         "argument: 'width': give it a default"]),
        (["plan", "first/net.py:ready"], ["ready of 'first/net.py' is a model; name a function that returns it"]),
        (["plan", "first/net.py:endless"], ["RecursionError", "in endless: return endless()\n  … ", " more\n"]),
        (["plan", "first/without.py:x"], ["no_such_module_at_all", "without.py:1 in <module>: import no_such"]),
        (["score", "first/net.py:training"], ["ZeroDivisionError", "in loss: return model(batch).sum() / fail(0)"]),
        (["refine", "first/net.py:training"], ["ZeroDivisionError", "in loss"]),
        (["compare", "first/net.py:training"], ["ZeroDivisionError", "in loss"]),
        (["lr", "first/net.py:training", "--find"], ["ZeroDivisionError", "in loss"]),
        (["report", "first/net.py:broken"], ["ZeroDivisionError", "in broken"]),
        (["check", "first/net.py:broken"], ["ZeroDivisionError", "in broken"]),
        (["explain", "first/net.py:broken"], ["ZeroDivisionError", "in broken"]),
        (["check", "first/net.py:of_whole_numbers"], ["torch.int64", "example.to(torch.float32)"]),
        (["plan", "first/net.py:build", "-o", "no/such/folder/p.json"], ["cannot write a plan to 'no/such"]),
        (["refine", "first/net.py:drawn_training", "-o", "no/such/folder/p.json"], ["'no/such/folder/p.json'"]),
        (["plan", "first/net.py:build", "-o", "first"], ["'first'"]),
        (["report", "first/net.py:build", "-o", "first"], ["'first'"]),
        (["plan", "first/net.py:bare"], ["received: no tensors", "--shape 2,3,32,32"]),
        (["plan", "first/net.py:bare", "--shape", "a,4"], ["--shape takes whole numbers", "'a,4'"]),
        (["plan", "first/net.py:bare", "--shape", "2,4:foo"], ["--shape 2,4:foo: 'foo' is no type", "int64"]),
        (["plan", "first/net.py:bare", "--shape", "2,-4"], ["--shape 2,-4: sizes are not negative"]),
        (["plan", "first/net.py:bare", "--shape", "2,5", "--shape", "2:int64"], ["0: float32[2, 5], 1: int64[2]"]),
        (["ops", "cov2d"], ["'cov2d'", "conv2d"]),
        (["ops", "relu", "--tag", "exactly"], ["exact"]),
    ],
)  # fmt: skip
def test_what_fails_is_exit_code_two_with_the_users_lines(run, folder, argv, said):
    code, out, err = run(*argv, columns=400)
    assert code == 2
    assert out == ""
    assert err.startswith("error: ")
    for word in said:
        assert word in err
    for word in ("Traceback", "wellposed/zoo", ".tmp", "site-packages", "importlib"):
        assert word not in err
    assert len(err.splitlines()) < 16


@pytest.mark.parametrize("command", ["plan", "check", "report"])
def test_shapes_stand_for_the_arguments_of_a_model(run, folder, command):
    code, out, err = run(command, "first/net.py:bare", "--shape", "9,4", "--shape", "9:int64")
    assert (code, err) == (0, "")
    assert "Tagged" in out
    other = run("plan", "first/net.py:build", "--shape", "7,4", "--json")
    assert json.loads(other[1])["model"] == "Linear"
    (at,) = zoo.load("first/net.py:build", args=(torch.zeros(7, 4),))[1]
    assert at.shape == (7, 4)


def test_a_shape_of_a_library_stands_for_its_own_size(run):
    from wellposed.cli import loading

    model, (x,), _ = loading.load("torchvision:resnet18", 0, shapes=["2,3,64,64"])
    assert (type(model).__name__, x.shape) == ("ResNet", (2, 3, 64, 64))
    assert abs(float(x.square().mean()) - 1) < 4 * (2 / x.numel()) ** 0.5
    assert set(loading.argument_of("3,50:int64", 0).unique().tolist()) == {0, 1}


def test_a_model_imports_its_siblings_when_it_is_called_and_standard_output_is_for_results(run, folder):
    path = list(sys.path)
    for command in ("plan", "check"):
        code, out, err = run(command, "first/net.py:talks", "--json")
        assert code == 0
        assert json.loads(out)["model"] == "Talking"
        assert err.startswith("built\ncalled\n")
    assert sys.path == path


@pytest.mark.parametrize(
    "argv",
    [
        ["lr", "first/net.py:drawn", "--rule", "ntk"],
        ["check", "first/net.py:drawn"],
        ["score", "first/net.py:drawn_training"],
        ["refine", "first/net.py:drawn_training", "-m", "lsuv"],
        ["compare", "first/net.py:drawn_training", "--seeds", "2"],
    ],
)
def test_a_seed_is_of_the_model_too(run, folder, argv):
    said = [run(*argv, "--json", "--seed", seed)[1] for seed in (1, 1, 2)]
    assert said[0] == said[1] != said[2]


@pytest.mark.slow
def test_other_encodings_are_given_what_comes_nearest(folder):
    words = [sys.executable, "-m", "wellposed", "report", "first/net.py:build", "--draws", "0"]
    environment = os.environ | {"PYTHONIOENCODING": "ascii", "COLUMNS": "80"}
    said = subprocess.run(words, env=environment, capture_output=True, check=True).stdout.decode("ascii")
    assert "+ Good" in said
    assert "E[x^2] and gradients along the trunk stay within a factor of 1 in (|x| |g|)^2" in " ".join(said.split())


def test_a_fault_of_wellposed_has_its_traceback_and_a_code_of_its_own(run, folder, monkeypatch):
    def fault(*_, **__):
        raise KeyError("state")

    monkeypatch.setattr("wellposed.graphs.trace", fault)
    code, _, err = run("plan", "first/net.py:build")
    assert code == 3
    assert "Traceback" in err
    assert "report" in err


def test_one_is_for_a_failed_check_alone(run, folder):
    code, out, _ = run("check", "first/net.py:off", "--tolerance", "0.0001")
    assert code == 1
    assert "off" in out


def test_a_reader_that_goes_away_is_no_failed_check(run, folder, monkeypatch):
    def gone(*_, **__):
        raise BrokenPipeError(32, "Broken pipe")

    monkeypatch.setattr("wellposed.cli.show.operators", gone)
    assert run("ops")[0] == 141


def test_an_interrupt_is_no_failed_check(run, folder, monkeypatch):
    def stopped(*_, **__):
        raise KeyboardInterrupt

    monkeypatch.setattr("wellposed.graphs.trace", stopped)
    assert run("plan", "first/net.py:build")[0] == 130
