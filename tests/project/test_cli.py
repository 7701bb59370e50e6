"""The command line: what it prints, on which stream, how wide, and with which exit code."""

import importlib.util
import json
import re
import runpy
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from rich.cells import cell_len
from safetensors.torch import load_file

import wellposed as wp
from wellposed import checks, plans, zoo
from wellposed.checks import compare
from wellposed.cli import demo, streams
from wellposed.random_states import seed_all
from wellposed.signals import Signal, Signals, registry

ROOT = Path(__file__).resolve().parents[2]

MODELS = """
import torch
from torch import nn


def build():
    model = nn.Sequential(nn.Linear(64, 256), nn.Tanh(), nn.Linear(256, 256), nn.Tanh(), nn.Linear(256, 8))
    return model, (torch.zeros(32, 64),)


def tokens():
    # Reads values while it is built, and needs those of its example: neither would work on the meta device.
    rate = torch.linspace(0, 0.5, 3)[1].item()
    model = nn.Sequential(nn.Embedding(50, 64), nn.Dropout(rate), nn.Linear(64, 50))
    return model, (torch.randint(0, 50, (4, 16)),), {}


def broken():
    return nn.Linear(4, 4), (torch.zeros(2, 5),)
"""


@pytest.fixture
def net(tmp_path):
    (tmp_path / "net.py").write_text(MODELS)
    return f"{tmp_path / 'net.py'}:build"


@pytest.mark.parametrize("command", ["plan", "check", "init", "explain", "lr", "score", "refine", "ops", "demo"])
def test_every_command_has_help(run, command):
    code, out, _ = run(command, "--help")
    assert code == 0
    assert "Usage: wellposed " + command in out


def test_version_is_printed(run):
    code, out, _ = run("--version")
    assert (code, out) == (0, "wellposed 0.1.0\n")


def test_plan_prints_a_summary_of_few_lines(run, net):
    code, out, err = run("plan", net)
    assert (code, err) == (0, "")
    assert "6 parameters; plan by steady, seed 0" in out
    assert re.search(r"truncated normal +3 +\d+,\d+ ", out)
    assert "0.weight" not in out
    assert len(out.splitlines()) < 10


def test_plan_prints_every_parameter_on_request(run, net):
    code, out, err = run("plan", net, "--all")
    assert code == 0
    assert err == ""
    for name in ("0.weight", "0.bias", "2.weight", "2.bias", "4.weight", "4.bias"):
        assert name in out
    assert "6 parameters" in out


def test_plan_as_json_is_the_plan_and_nothing_else(run, net, tmp_path):
    code, out, _ = run("plan", net, "--json", "-o", tmp_path / "plan.json", "--seed", "7")
    assert code == 0
    assert plans.Plan.model_validate_json(out) == plans.Plan.load(tmp_path / "plan.json")
    assert json.loads(out)["seed"] == 7


def test_a_function_of_ones_own_builds_on_real_tensors(run, net):
    code, out, err = run("plan", net.replace(":build", ":tokens"), "--all")
    assert (code, err) == (0, "")
    assert "0.weight" in out


@pytest.mark.parametrize("suffix", ["safetensors", "pt"])
def test_init_writes_the_weights_that_initialize_draws(run, net, tmp_path, suffix):
    file = tmp_path / f"weights.{suffix}"
    code, out, err = run("init", net, "-o", file, "--seed", 3, "--method", "kaiming")
    assert (code, err) == (0, "")
    assert f"written to {file}" in out.replace("\n", "")
    assert list(tmp_path.glob("weights*")) == [file]
    (tmp_path / "other").touch()
    assert file.stat().st_mode == (tmp_path / "other").stat().st_mode  # as any file of the user's
    written = torch.load(file) if suffix == "pt" else load_file(file)
    namespace = runpy.run_path(net.rpartition(":")[0])
    seed_all(3)
    model, args = namespace["build"]()
    wp.initialize_(model, *args, method="kaiming", seed=3)
    assert written.keys() == model.state_dict().keys()
    assert "to load them: model.load_state_dict(" in out
    assert all(torch.equal(written[name], tensor) for name, tensor in model.state_dict().items())
    model.load_state_dict(written)


def test_init_refuses_other_files_before_the_model_is_built(run, net, tmp_path, monkeypatch):
    monkeypatch.setattr("wellposed.zoo.load", None)
    code, out, err = run("init", net, "-o", tmp_path / "weights.bin")
    assert (code, out) == (2, "")
    assert "ends in .safetensors or .pt" in err


def test_a_plan_that_is_not_there_is_named_before_the_model_is_built(run, net, monkeypatch):
    monkeypatch.setattr("wellposed.zoo.load", None)
    for command in ("check", "explain", "report"):
        code, out, err = run(command, net, "--plan", "nope.json", columns=300)
        assert (code, out) == (2, "")
        assert "error: --plan nope.json: No such file or directory; give a file that 'wellposed plan MODEL -o" in err


def test_further_options_have_their_names_everywhere(run, net, tmp_path):
    plans_ = []
    for words in (["-O", "zeros=write"], ["--zeros", "write"], ["--zeros=write"]):
        code, out, _ = run("plan", net, "--json", *words)
        assert code == 0
        plans_.append(out)
    assert plans_[0] == plans_[1] == plans_[2]
    code, _, err = run("plan", net, "--methd", "kaiming")
    assert code == 2
    assert "'methd' is no option of steady or plan; did you mean 'method'?" in err


def test_options_reach_the_method(run, net, tmp_path):
    file = tmp_path / "plan.json"
    options = ["--target-variance", "2.5", "--distribution", "uniform", "--only", "0.*", "--skip", "*.bias"]
    code, _, _ = run("plan", net, "-o", file, *options)
    assert code == 0
    plan = plans.Plan.load(file)
    assert plan.prescriptions["0.weight"].distribution == "uniform"
    assert plan.prescriptions["0.weight"].signal_after == pytest.approx(0.3 * 2.5)  # of a function that bends
    assert {name for name, said in plan.prescriptions.items() if said.action == "write"} == {"0.weight"}


def test_further_options_reach_the_method(run, net, tmp_path):
    code, _, err = run("plan", net, "-m", "kaiming", "-O", "mode=fan_out", "-o", tmp_path / "out.json")
    assert (code, err) == (0, "")
    assert plans.Plan.load(tmp_path / "out.json").options["mode"] == "fan_out"


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (["plan", "{net}", "--method", "autoinnit"], "autoinit"),
        (["plan", "{net}", "--distribution", "normall"], "normal"),
        (["plan", "{net}", "--target-variance", "-1"], "variance"),
        (["plan", "{net}", "--only", "no_such.*"], "no_such"),
        (["plan", "{net}", "--option", "mode"], "NAME=VALUE"),
        (["plan", "{net}x"], "buildx"),
        (["plan", "{folder}/missing.py:build"], "missing.py"),
        (["plan", "{folder}/net.py:broken"], "received: 0: float32[2, 5]"),
        (["plan", "{net}", "-o", "{folder}/no/such/folder/plan.json"], "no/such/folder"),
        (["check", "{net}", "--plan", "{folder}/missing.json"], "missing.json"),
        (["check", "{net}", "--plan", "{folder}/net.py"], "JSON"),
        (["ops", "--tag", "exactly"], "exact"),
    ],
)
def test_bad_usage_is_exit_code_two_with_a_short_message(run, net, tmp_path, argv, message):
    words = [word.format(net=net, folder=tmp_path) for word in argv]
    code, out, err = run(*words)
    assert code == 2
    assert out == ""
    assert err.startswith("error: ")
    assert "Traceback" not in err
    assert message in " ".join(err.split())


@pytest.mark.parametrize("argv", [["plann", "x"], ["plan"], ["plan", "x", "--nope"], ["check", "x", "--draws", "0"]])
def test_wrong_words_are_exit_code_two(run, argv):
    code, out, err = run(*argv)
    assert code == 2
    assert out == ""
    assert "Traceback" not in err


def test_check_agrees_on_a_wide_tanh_net(run, net):
    code, out, err = run("check", net, "--draws", "4")
    assert (code, err) == (0, ""), out
    assert "4 passes, the model's own weights: all as predicted" in " ".join(out.split())
    code, out, err = run("check", net, "--draws", "4", "--method", "autoinit")
    assert (code, err) == (0, ""), out
    assert "4 passes, 4 weight draws of the plan: all as predicted" in " ".join(out.split())


def test_check_asks_what_the_function_asks(run, net):
    """The command and the call check the same weights by default, and come to the same figures."""
    torch.manual_seed(3)
    model, args, kwargs = zoo.load(net)
    called = checks.check(model, *args, draws=3, seed=3, **kwargs)
    _, out, _ = run("check", net, "--draws", "3", "--seed", "3", "--json")
    assert json.loads(out) == json.loads(called.to_json())


def test_check_looks_at_gradients_too(run, net):
    code, out, err = run("check", net, "--draws", "4", "--backward", "--json")
    verdict = json.loads(out)
    assert (code, err, verdict["ok"]) == (0, "", True)
    assert {node["direction"] for node in verdict["nodes"]} == {"forward", "backward"}
    _, out, _ = run("check", net, "--draws", "4", "--backward")
    assert "gradients, 4 passes" in " ".join(out.split())


def test_check_takes_a_saved_plan_and_prints_json(run, net, tmp_path):
    run("plan", net, "-o", tmp_path / "plan.json")
    code, out, _ = run("check", net, "--plan", tmp_path / "plan.json", "--draws", "3", "--json")
    verdict = json.loads(out)
    assert (code, verdict["ok"], verdict["draws"]) == (0, True, 3)


def test_tolerance_reaches_the_check(run, net):
    code, _, err = run("check", net, "--tolerance", "-1")
    assert code == 2
    assert "tolerance" in err


def test_a_failing_check_is_exit_code_one(run, net, monkeypatch):
    def signal(moment):
        return Signals((Signal("0", "0", "linear.default", (32, 256), 0.0, moment, "exact"),))

    off = compare(signal(1.0), signal(4.0), draws=4, weight_draws=4)
    monkeypatch.setattr(checks, "check", lambda *_, **__: off)
    code, out, _ = run("check", net)
    assert code == 1
    assert "first off: 0 (linear.default)" in " ".join(out.split())
    code, out, _ = run("check", net, "--json")
    assert code == 1
    assert json.loads(out)["first"] == "0"


@pytest.mark.slow
def test_ops_lists_the_registry(run):
    code, out, _ = run("ops", "--json")
    assert code == 0
    rules = registry.operators()
    assert len(rules) > 100
    assert [(row["operator"], row["tag"]) for row in json.loads(out)] == [
        (str(op).removeprefix("aten."), rule.tag) for op, rule in rules.items()
    ]


def test_ops_filters_by_name_and_tag(run):
    code, out, _ = run("ops", "conv", "--tag", "exact", "--json")
    assert code == 0
    rows = json.loads(out)
    assert "conv2d.default" in {row["operator"] for row in rows}
    assert all("conv" in row["operator"] and row["tag"] == "exact" for row in rows)


@pytest.mark.parametrize("columns", [40, 60, 100])
@pytest.mark.parametrize("command", ["plan", "check", "ops"])
def test_output_fits_the_terminal(run, net, command, columns):
    argv = {"plan": ["plan", net], "check": ["check", net, "--draws", "2"], "ops": ["ops"]}[command]
    code, out, _ = run(*argv, columns=columns)
    assert code == 0
    assert out
    assert max(cell_len(line) for line in out.splitlines()) <= columns


def demo_in_a_process(folder, *words, before=""):
    code = f"{before}from wellposed.cli import main; main(['demo', *{words!r}])"
    environment = {"PYTHONPATH": str(ROOT / "src"), "COLUMNS": "80", "OMP_NUM_THREADS": "1", "HOME": str(folder)}
    command = [sys.executable, "-c", code]
    return subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)


@pytest.mark.slow
def test_demo_small_runs_without_the_model_libraries(tmp_path):
    blocked = "import sys; sys.modules.update(dict.fromkeys(('torchvision', 'timm', 'transformers'))); "
    done = demo_in_a_process(tmp_path, "--small", before=blocked)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stderr == ""
    assert " ".join(done.stdout.split()).count("all as predicted") == 2
    assert max(cell_len(line) for line in done.stdout.splitlines()) <= 80


@pytest.mark.slow
def test_demo_shows_a_real_resnet_and_a_llama(tmp_path):
    done = demo_in_a_process(tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "ResNet-50, torchvision" in done.stdout
    assert "LlamaForCausalLM" in done.stdout
    assert " ".join(done.stdout.split()).count("all as predicted") == 2


def test_demo_says_what_is_missing(monkeypatch, capsys):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "torchvision" else object())
    names = [name for name, _ in demo._cases(streams.out(), small=False)]
    assert all("plain PyTorch" in name for name in names)
    assert "torchvision not installed" in capsys.readouterr().out


def test_demo_fails_when_a_check_fails(run, monkeypatch):
    monkeypatch.setattr(demo, "_show_case", lambda *_: False)
    assert run("demo", "--small")[0] == 1


def test_explain_prints_what_enters_and_leaves(run, net):
    code, out, err = run("explain", net, "2", "-m", "autoinit", columns=100)
    words = " ".join(out.split())
    assert (code, err) == (0, "")
    for said in (
        "Sequential: 2 (linear.default)",
        "as predicted: off by",
        "linear: fan-in 256, fan-out 256; outputs along axis 0 of 2.weight; sums axis 1 of 1 with axis 1 of 2.weight",
        "2.weight as weight",
        "truncated normal, std",
        "rule on measured inputs",
        "8 passes, weights drawn 8 ×",
    ):
        assert said in words
    assert all(cell_len(line) <= 100 for line in out.splitlines())


def test_explain_as_json_and_under_the_models_own_weights(run, net):
    code, out, _ = run("explain", net, "1", "--draws", "3", "--json")
    told = json.loads(out)
    assert code == 0
    assert (told["node"], told["draws"], told["weight_draws"]) == ("1", 3, 1)
    assert told["entering"][0]["measured"]["tag"] == "measured"


def test_explain_without_a_node_takes_the_first_that_is_off(run, net):
    code, out, _ = run("explain", net, "--tolerance", "0", "--json", "-m", "kaiming")
    assert code == 0
    assert json.loads(out)["finding"]


def test_explain_refuses_in_a_line(run, net):
    code, out, err = run("explain", net, "22", columns=200)
    assert (code, out) == (2, "")
    assert "no node '22'; did you mean '2'" in err
