"""The commands ``prepare``, ``lr``, ``score`` and ``refine``: what they print, and with which exit code."""

import json

import pytest
import torch
from rich.cells import cell_len
from torch import nn

import wellposed as wp
from wellposed import zoo

FILE = """
import torch
from torch import nn

made = []


def loss(model, batch):
    return nn.functional.cross_entropy(model(batch[0]), batch[1])


def batches():
    generator = torch.Generator().manual_seed(0)
    pairs = []
    for _ in range(6):
        labels = torch.randint(0, 4, (16,), generator=generator)
        pairs.append((nn.functional.one_hot(labels, 12).float() + torch.randn(16, 12, generator=generator), labels))
    return pairs


def net(depth=1):
    layers = [nn.Linear(12, 16), nn.ReLU()]
    for _ in range(depth):
        layers += [nn.Linear(16, 16), nn.ReLU()]
    return nn.Sequential(*layers, nn.Linear(16, 4))


def base():
    torch.manual_seed(0)
    return net(), (torch.zeros(8, 12),)


def deep():
    torch.manual_seed(0)
    return net(6), (torch.zeros(8, 12),)


def linear():
    return nn.Linear(12, 4), (torch.zeros(8, 12),)


def training():
    made.append(None)
    torch.manual_seed(len(made))
    return net(2), loss, batches()


def training_of_a_function():
    return net, loss, batches()


def wrong():
    return net(), loss


def mlp(width):
    return nn.Sequential(nn.Linear(12, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU(), nn.Linear(width, 4))


def family():
    return mlp, loss, 5 * batches()


def family_by_seed():
    return mlp, loss, lambda seed: 5 * (batches()[seed:] + batches()[:seed])


def no_family():
    return net(2), loss, batches()
"""


@pytest.fixture
def file(tmp_path):
    (tmp_path / "train.py").write_text(FILE)
    return str(tmp_path / "train.py")


@pytest.mark.slow
def test_lr_multiplies_the_base(run, file):
    code, out, err = run("lr", f"{file}:deep", "--base", f"{file}:base", "--base-rate", "0.1", "--json")
    assert (code, err) == (0, "")
    rows = {row["rule"]: row for row in json.loads(out)}
    assert set(rows) == {"kernel", "maximal_update", "ntk", "paths", "signed"}
    deep, base = (zoo.load(f"{file}:{name}") for name in ("deep", "base"))
    for rule, row in rows.items():
        rates = [wp.rates.relative(model, *args, rule=rule).value for model, args, _ in (deep, base)]
        assert row["ratio"] == pytest.approx(rates[0] / rates[1])
        assert row["rate"] == pytest.approx(0.1 * row["ratio"])
    # One path of 7 or 2 activations: (343 / 8)^(-1/2), arXiv 2402.17440, eq. 8.
    assert rows["paths"]["ratio"] == pytest.approx((343 / 8) ** -0.5)


def test_lr_shows_the_rules_side_by_side_in_narrow_terminals(run, file):
    code, out, _ = run("lr", f"{file}:base", columns=60)
    assert code == 0
    assert max(cell_len(line) for line in out.splitlines()) <= 60
    for word in ("kernel", "maximal_update", "ntk", "paths", "--base"):
        assert word in out


def test_lr_goes_on_where_one_rule_has_nothing_to_say(run, file):
    code, out, _ = run("lr", f"{file}:linear", "--json")  # no activation on any path
    rows = {row["rule"]: row for row in json.loads(out)}
    assert code == 0
    assert "error" in rows["paths"]
    assert rows["ntk"]["relative"] > 0
    code, out, err = run("lr", f"{file}:linear", "--rule", "paths")
    assert (code, out) == (2, "")
    assert err.startswith("error: ")


@pytest.mark.slow
def test_lr_find_trains(run, file):
    argv = ["lr", f"{file}:training", "--find", "-O", "seeds=2", "-O", "steps=6", "-O", "grid=[0.03,0.1,0.3]"]
    code, out, _ = run(*argv, "-O", "widen=0", "--json")
    assert code == 0
    rate = wp.rates.Rate.model_validate_json(out)
    assert 0.03 <= rate.value <= 0.3
    assert [point.rate for point in rate.curve] == [0.03, 0.1, 0.3]
    assert all(len(point.losses) == 2 for point in rate.curve)
    code, out, _ = run(*argv, "-O", "widen=0", columns=80)
    assert code == 0
    assert "learning rate" in out
    assert max(cell_len(line) for line in out.splitlines()) <= 80


def test_score_is_gradcosine_of_the_first_batch(run, file):
    code, out, _ = run("score", f"{file}:training", "-D", "4", "-r", "0.5", "--by", "layer", "--json")
    assert code == 0
    told = zoo.load_training(f"{file}:training")
    expected = wp.gradients.gradcosine(
        told.make(), told.loss_fn, told.batches[0], sub_batches=4, overlap=0.5, by="layer"
    )
    found = json.loads(out)
    assert found["count"] == 4
    assert set(found["parts"]) == set(expected.parts)
    code, out, _ = run("score", f"{file}:training", "--samples", columns=60)
    assert code == 0
    assert "16 samples" in out
    assert "GradCosine" in out
    assert max(cell_len(line) for line in out.splitlines()) <= 60


def test_refine_writes_a_plan_that_fits_the_model(run, file, tmp_path):
    saved = tmp_path / "plan.json"
    code, out, _ = run(
        "refine", f"{file}:training", "--method", "nio", "--start", "kaiming", "-O", "iterations=3", "-o", saved
    )
    assert code == 0
    assert "before" in out
    assert "GradCosine" in out
    plan = wp.Plan.load(saved)
    assert plan.method == "kaiming+nio"
    assert len(plan.figures["history"]["GC"]) == 3
    model = nn.Sequential(*zoo.load_training(f"{file}:training").make())
    plan.apply_(model)
    std = plan.prescriptions["0.weight"].std
    assert float(model[0].weight.detach().std()) == pytest.approx(std, rel=0.2)


def test_refine_by_default_brings_the_gradient_norm_to_its_bound(run, file):
    code, out, _ = run("refine", f"{file}:training", "-O", "gamma=1.0", "--json")
    assert code == 0
    figures = json.loads(out)["figures"]
    assert figures["after"]["norm"] == pytest.approx(1.0, rel=0.02)


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (["lr", "{file}:base", "--rule", "path"], "paths"),
        (["lr", "{file}:base", "--base-rate", "0.1"], "--base"),
        (["lr", "torchvision:resnet18", "--find"], "path/to/file.py:function"),
        (["score", "{file}:wrong"], "(model, loss_fn, batches)"),
        (["score", "{file}:training", "-D", "17"], "16 sample(s) cannot be split into 17"),
        (["score", "{file}:training", "--by", "layers"], "'layer'"),
        (["refine", "{file}:training", "--method", "niio"], "nio"),
        (["refine", "{file}:training", "-O", "gamma=-1"], "gamma"),
        (["refine", "{file}:training", "--start", "autoinnit"], "autoinit"),
    ],
)
def test_bad_usage_is_exit_code_two_with_a_short_message(run, file, argv, message):
    code, out, err = run(*[word.format(file=file) for word in argv])
    assert code == 2
    assert out == ""
    assert err.startswith("error: ")
    assert "Traceback" not in err
    assert message in " ".join(err.split())


def test_a_training_file_makes_models_anew(file):
    told = zoo.load_training(f"{file}:training")
    first, second = told.make(), told.make()
    assert not torch.equal(first[0].weight, second[0].weight)
    told = zoo.load_training(f"{file}:training_of_a_function")
    assert told.make() is not told.make()


@pytest.mark.slow
def test_prepare_prints_a_page_and_writes_the_plan(run, file, tmp_path):
    options = ("--optimizer", "sgd", "--steps", "300", "-O", "clip=0.5")
    code, out, _ = run("prepare", f"{file}:training", *options, "-o", str(tmp_path / "plan.json"))
    told = " ".join(out.split())
    assert code == 0
    assert "for 300 steps" in told
    assert "to a global norm of 0.5" in told
    assert "not written yet" in told
    assert wp.Plan.load(tmp_path / "plan.json").method == "steady"
    code, out, _ = run("prepare", f"{file}:training", *options, "--json")
    found = json.loads(out)
    assert (code, found["clip"], found["warmup"]) == (0, 0.5, 30)
    assert found["rate"]["value"] == found["groups"][0]["lr"]
    code, _, err = run("prepare", f"{file}:training", "-m", "xavier", "-O", "foo=1")
    assert (code, "'foo' is no option of prepare or xavier" in " ".join(err.split())) == (2, True)


def test_prepare_without_batches_trains_nothing(run, file):
    code, out, _ = run("prepare", "--static", f"{file}:base", "--steps", "200", "--json")
    found = json.loads(out)
    assert code == 0
    assert found["rate"]["interval"] == pytest.approx([found["rate"]["value"] / 8, found["rate"]["value"] * 8])
    code, _, err = run("prepare", "--static", f"{file}:base", "-O", "example=1")
    assert (code, "'example' is no option of prepare" in " ".join(err.split())) == (2, True)


@pytest.mark.slow
def test_compare_trains_from_every_start(run, file):
    options = ("--seeds", "2", "-O", "grid=[0.1, 0.3, 1.0]", "-O", "widen=0")
    code, out, _ = run("compare", f"{file}:training", *options)
    assert code == 0
    assert "own: loss" in out
    assert "steady: loss" in out
    code, out, _ = run("compare", f"{file}:training", *options, "--json")
    found = json.loads(out)
    assert code == 0
    assert [start["name"] for start in found["starts"]] == ["own", "steady"]
    assert all(start["mean"] == pytest.approx(sum(start["losses"]) / 2) for start in found["starts"])
    assert 0 <= found["pairs"][0]["p_value"] <= 1
    code, _, err = run("compare", f"{file}:training", "--start", "own")
    assert (code, "2 different starts" in err) == (2, True)


@pytest.mark.slow
def test_lr_checks_coordinates_over_sizes(run, file):
    options = ["-O", "optimizer=sgd", "-O", "lr=0.1", "-O", "seeds=8"]
    argv = ["lr", f"{file}:family", "--coordinates", "32,64,128", *options]
    code, out, err = run(*argv, "-O", 'way={"method": "mup", "base_width": 32}')
    assert (code, err) == (0, "")
    assert "ok: no change of" in out
    code, out, err = run(*argv, "-O", "way=autoinit", "-O", "axis=breadth", "--json")
    assert (code, err) == (1, "")
    told = json.loads(out)
    assert told["axis"] == "breadth"
    assert not told["ok"]
    assert any(row["off"] for row in told["coordinates"])


@pytest.mark.slow
def test_transfer_trains_a_family_and_draws_it(run, file, tmp_path):
    picture = tmp_path / "picture.svg"
    argv = ["transfer", f"{file}:family", "--sizes", "8,16", "--axis", "width", "-O", "widen=1", "-O", "refine=0"]
    code, out, err = run(*argv, "--way", "own", "--way", "mup:base_width=8", "-o", picture, columns=100)
    assert (code, err) == (0, "")
    assert "mup:base_width=8: best rate moves" in out
    assert "at the carried rate" in out
    assert "written to" in out
    assert max(cell_len(line) for line in out.splitlines()) <= 100
    assert picture.read_text().startswith("<svg ")
    code, out, err = run("transfer", f"{file}:family_by_seed", *argv[2:], "--way", "own", "--json")
    assert (code, err) == (0, "")
    told = wp.rates.TransferCheck.from_json(out)
    assert (told.axis, told.sizes, list(told.ways)) == ("width", (8, 16), ["own"])


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (["lr", "{}:family", "--coordinates", "8,x"], "--coordinates takes whole numbers, as in 64,128,256"),
        (["lr", "{}:family", "--coordinates", "8,16", "--find"], "--coordinates checks rates over sizes: leave out"),
        (
            ["lr", "{}:no_family", "--coordinates", "8,16"],
            "must return (model_fn, loss_fn, batches), with model_fn(size)",
        ),
        (["lr", "timm:resnet18", "--coordinates", "8,16"], "a family is named as path/to/file.py:function"),
        (["transfer", "{}:family", "--sizes", "8,x"], "--sizes takes whole numbers, as in 64,128,256; received '8,x'"),
        (["transfer", "{}:wrong", "--sizes", "8,16"], "must return (model_fn, loss_fn, batches)"),
        (["transfer", "{}:family", "--sizes", "8,16", "--way", "mup:x"], "--way takes METHOD or METHOD:NAME=VALUE"),
        (["transfer", "{}:family", "--sizes", "8,16", "--way", "own", "--way", "own"], "--way own was given twice"),
    ],
)
def test_what_is_no_family_is_refused(run, file, argv, message):
    code, out, err = run(*(part.format(file) for part in argv))
    assert (code, out) == (2, "")
    assert message in " ".join(err.split())
