"""The command ``report``: what it prints or writes, and with which exit code."""

import pytest
import torch
from rich.cells import cell_len

import wellposed as wp
from wellposed.reports import initialisations, parts

MODELS = """
import torch
from torch import nn


def net():
    torch.manual_seed(0)
    layers = [layer for _ in range(6) for layer in (nn.Linear(16, 16), nn.ReLU())]
    return nn.Sequential(*layers, nn.Linear(16, 4)), (torch.zeros(8, 16),)


def training():
    model, (example,) = net()
    loss = lambda model, batch: nn.functional.cross_entropy(model(batch[0]), batch[1])
    return model, loss, [(torch.randn(8, 16), torch.arange(8) % 4)]


def family():
    _, loss, batches = training()
    return (lambda width: nn.Sequential(nn.Linear(16, width), nn.ReLU(), nn.Linear(width, 4))), loss, batches * 10


def no_batches():
    model, loss, _ = training()
    return model, loss, []


def dies():
    model, _ = net()
    return nn.Sequential(model, nn.Linear(5, 5)), (torch.zeros(8, 16),)
"""


DEEP = """
from pathlib import Path

import torch
from torch import nn


def net():
    layers = [layer for _ in range(15) for layer in (nn.Linear(32, 32), nn.ReLU())]
    model = nn.Sequential(*layers, nn.Linear(32, 4))
    if Path("weights.pt").exists():
        model.load_state_dict(torch.load("weights.pt"))
    return model, (torch.randn(16, 32),)
"""


@pytest.fixture
def net(tmp_path):
    (tmp_path / "net.py").write_text(MODELS)
    return f"{tmp_path / 'net.py'}:net"


@pytest.mark.slow
def test_the_terminal_shows_it_in_eighty_columns(run, net):
    code, out, err = run("report", net, columns=80)
    assert (code, err) == (0, "")
    assert max(cell_len(line) for line in out.splitlines()) <= 80
    assert "Good: signals and gradients reach" in out
    assert "worst operations:" in out
    assert sum(any(bar in line for bar in "▁▂▃▄▅▆▇█") for line in out.splitlines()) == 4


@pytest.mark.slow
def test_a_page_is_written_with_the_command_that_makes_it_again(run, net, tmp_path):
    page = tmp_path / "report.html"
    code, out, _ = run(
        "report", net, "-o", page, "--seed", 3, "--draws", 2, "--method", "kaiming", "--only", "*.weight"
    )
    assert code == 0
    assert f"written to {page}" in out
    text = page.read_text()
    assert (
        f"wellposed report {net} --output {page} --method kaiming --seed 3 --only &#x27;*.weight&#x27; --draws 2"
        in text
    )
    assert "plan by kaiming<" in text


@pytest.mark.slow
def test_a_saved_plan_is_shown(run, net, tmp_path, monkeypatch):
    assert run("plan", net, "--method", "xavier", "-o", tmp_path / "plan.json")[0] == 0
    monkeypatch.setattr("wellposed.methods.plan", None)  # the saved one is enough
    page = tmp_path / "report.html"
    assert run("report", net, "--plan", tmp_path / "plan.json", "-o", page, "--draws", 2)[0] == 0
    assert "plan by xavier<" in page.read_text()


@pytest.mark.slow
def test_a_base_is_named(run, tmp_path):
    (tmp_path / "net.py").write_text(
        """
import torch
from torch import nn


class Block(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.up, self.down = nn.Linear(width, width), nn.Linear(width, width)

    def forward(self, x):
        return x + self.down(self.up(x).relu())


def make(depth, width):
    blocks = [Block(width) for _ in range(depth)]
    return nn.Sequential(nn.Linear(8, width), *blocks, nn.Linear(width, 4)), (torch.zeros(8, 8),)


def small():
    return make(2, 8)


def large():
    return make(8, 16)
"""
    )
    net, page = tmp_path / "net.py", tmp_path / "report.html"
    argv = ["--method", "complete_p", "-O", f"base={net}:small", "--draws", "0", "-o", page]
    code, _, err = run("report", f"{net}:large", *argv)
    assert (code, err) == (0, "")
    assert "times 0.25 = 4^-1 for its residual branch" in page.read_text()


@pytest.mark.slow
def test_a_training_adds_the_agreement_of_gradients(run, net, tmp_path):
    page = tmp_path / "report.html"
    code, _, _ = run("report", net.replace(":net", ":training"), "--training", "-o", page, "--draws", 0)
    assert code == 0
    assert 'id="plot-agreement"' in page.read_text()
    assert "--draws 0 --training</pre>" in page.read_text()


@pytest.mark.slow
def test_a_check_of_transfer_is_shown(run, net, tmp_path):
    argv = [net.replace(":net", ":family"), "--sizes", "8,16", "-O", "widen=0", "-O", "refine=0", "--way", "own"]
    code, out, _ = run("transfer", *argv, "--json")
    assert code == 0
    (tmp_path / "found.json").write_text(out)
    page = tmp_path / "report.html"
    assert run("report", net, "--transfer", tmp_path / "found.json", "-o", page, "--draws", 0)[0] == 0
    assert "Does the best rate carry over size?" in page.read_text()
    code, out, _ = run("report", net, "--transfer", tmp_path / "found.json", "--draws", 0)
    assert code == 0
    assert "from size 8 to 16: own: best rate moves" in " ".join(out.split())


@pytest.mark.parametrize(
    ("content", "message"),
    [(None, "No such file"), ("{}", "axis: Field required"), ("no", "Invalid JSON"), ("\udcff", "utf-8")],
)
def test_a_file_that_is_no_check_of_transfer(run, net, tmp_path, content, message):
    path = tmp_path / "found.json"
    if content is not None:
        path.write_text(content, encoding="utf-8", errors="surrogateescape")
    code, _, err = run("report", net, "--transfer", path)
    assert code == 2
    assert message in " ".join(err.split())
    assert "wellposed transfer ... --json" in " ".join(err.split())


@pytest.mark.parametrize("words", [("report", "--training"), ("score",), ("refine", "--start", "kaiming")])
def test_a_training_without_batches_is_bad_usage(run, net, words):
    command, *options = words
    code, _, err = run(command, net.replace(":net", ":no_batches"), *options)
    assert code == 2
    assert "the function of a training must return batches" in err


@pytest.mark.slow
def test_a_model_without_weights_is_predicted(run, net, monkeypatch):
    def refuses(*_, **__):
        raise AssertionError("a measured pass")

    monkeypatch.setattr(parts, "LARGEST", 0)
    monkeypatch.setattr(initialisations, "passes", refuses)
    code, out, _ = run("report", net, "--meta")
    assert code == 0
    assert "the model has no values yet" in out
    assert "current weights: the model is on the meta device" in out.replace("\n", " ")


@pytest.mark.slow
def test_a_forward_that_dies_is_shown_and_is_no_success(run, net):
    code, out, _ = run("report", net.replace(":net", ":dies"))
    assert code == 2
    assert "the model's forward fails; 13 operations ran before it did" in out
    assert "mat1 and mat2 shapes cannot be multiplied" in out


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("-o", "missing/report.html"), "cannot write a report to"),
        (("--plan", "plan.json", "--method", "xavier"), "--plan is a finished plan"),
        (("--training", "--meta"), "--training takes gradients of real weights"),
    ],
)
def test_bad_usage_is_said_before_the_model_is_built(run, net, monkeypatch, words, message):
    def refuses(*_, **__):
        raise AssertionError("the model was built")

    monkeypatch.setattr("wellposed.zoo.load", refuses)
    code, out, err = run("report", net, *words)
    assert (code, out) == (2, "")
    assert message in err


@pytest.mark.slow
def test_the_command_that_mends_a_start_does(run, net, tmp_path, monkeypatch):
    file = tmp_path / "deep.py"
    file.write_text(DEEP)
    monkeypatch.chdir(tmp_path)
    _, out, _ = run("report", "deep.py:net", "--method", "kaiming", columns=200)
    command = next(line.strip() for line in out.splitlines() if line.strip().startswith("wellposed init"))
    assert command == "wellposed init deep.py:net --method kaiming -o weights.pt"
    assert run(*command.split()[1:])[0] == 0
    _, out, _ = run("report", "deep.py:net", columns=200)
    assert "Good: " in out
    assert "wellposed init" not in out
    assert "wellposed lr FILE.py:FUNCTION --find" in out


@pytest.mark.slow
def test_a_report_that_is_written_says_what_to_do_as_a_call_and_a_command(run, tmp_path, monkeypatch):
    (tmp_path / "deep.py").write_text(DEEP)
    monkeypatch.chdir(tmp_path)
    _, out, _ = run("report", "deep.py:net", "-o", "page.html")
    assert ": wp.initialize_(model, x) or wellposed init deep.py:net -o weights.pt\n" in out


@pytest.mark.slow
def test_it_is_what_the_function_finds(run, net):
    torch.manual_seed(0)
    layers = [layer for _ in range(6) for layer in (torch.nn.Linear(16, 16), torch.nn.ReLU())]
    found = wp.report(torch.nn.Sequential(*layers, torch.nn.Linear(16, 4)), torch.zeros(8, 16), draws=4)
    _, out, _ = run("report", net, columns=200)
    assert found.judgement.sentence in " ".join(out.split())
