"""Watching a hand-written loop: what is logged is what direct computation gives, and the training has the same bits."""

import importlib
import math
import sys
import warnings

import pytest
import torch
from tests.integrations.nets import Net, Record, Stubborn, X, Y, loss_of, mlp, same, state_of
from torch import nn

import wellposed as wp
from wellposed.errors import OptionError, PlanError, TraceError
from wellposed.integrations import watch
from wellposed.rates import CollapsedRatesWarning


def train(model, optimizer, steps, start=0, accumulate=1):
    for step in range(start, start + steps):
        optimizer.zero_grad()
        for part in range(accumulate):
            rows = torch.arange(8) + 8 * ((step * accumulate + part) % 3)
            (loss_of(model, X[rows], Y[rows]) / accumulate).backward()
        optimizer.step()


def sgd(model, lr=0.1):
    return torch.optim.SGD(model.parameters(), lr=lr, momentum=0.9)


# ---- nothing changes ------------------------------------------------------------------------------------------------


def trained(watched):
    torch.manual_seed(3)
    model = Net()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    watcher = watch(model, optimizer, Record(), every=2, nodes="*") if watched else None
    train(model, optimizer, 5)
    if watcher is not None:
        watcher.remove()
    return state_of(model), torch.get_rng_state(), model, optimizer


def test_a_training_has_the_same_bits_with_and_without():
    with_, without = trained(True), trained(False)
    assert same(with_[0], without[0])
    assert torch.equal(with_[1], without[1])


def test_nothing_is_left_behind():
    _, _, model, optimizer = trained(True)
    assert not any(module._forward_pre_hooks or module._forward_hooks for module in model.modules())
    assert not optimizer._optimizer_step_pre_hooks
    assert not optimizer._optimizer_step_post_hooks


def test_initialised_in_the_first_call_as_by_hand():
    torch.manual_seed(3)
    model, other = Net(), Net()
    plan = wp.initialize_(other, X[:8], seed=5, readout="zero", method="mup")
    torch.manual_seed(4)
    train(other, sgd(other), 3)
    torch.manual_seed(4)
    optimizer = sgd(model)
    with watch(model, optimizer, initialize="mup", seed=5, readout="zero") as watcher:
        train(model, optimizer, 3)
    assert watcher.plan.prescriptions == plan.prescriptions
    assert same(state_of(model), state_of(other))


# ---- what is logged -------------------------------------------------------------------------------------------------


def second_moments(model, x):
    found = {}

    def keep(name):
        return lambda _, __, output: found.__setitem__(name, float(output.double().square().mean()))

    handles = [module.register_forward_hook(keep(name)) for name, module in model.named_children()]
    with torch.no_grad():
        model(x)
    for handle in handles:
        handle.remove()
    return found


def test_signals_are_those_of_the_first_batch_at_the_weights_of_the_moment():
    model, record = mlp(), Record()
    optimizer = sgd(model)
    watch(model, optimizer, record, every=2)
    expected = []
    for step in range(5):
        expected.append(second_moments(model, X[:8]))
        train(model, optimizer, 1, start=step)
    assert record.steps == [0, 2, 4]
    for step in record.steps:
        for name, value in expected[step].items():
            assert record[step][f"signals/{name}"] == pytest.approx(value, rel=1e-6)
    assert record[4]["signals/4"] != record[2]["signals/4"]


def test_the_similarity_of_the_first_batch_is_logged():
    model, record = mlp(), Record()
    optimizer = sgd(model)
    watch(model, optimizer, record, every=2)
    with torch.no_grad():
        h = model[0](X[:8]).double()
    train(model, optimizer, 1)
    gram = h @ h.T
    expected = (gram.sum() - gram.trace()) / 7 / gram.trace()
    assert record[0]["similarity/0"] == pytest.approx(float(expected), rel=1e-4)
    assert {name.partition("/")[2] for name in record[0] if name.startswith("similarity/")} >= {"0", "4"}


def test_a_loop_may_use_the_memory_of_its_batch_again():
    model, record, batch = mlp(), Record(), X.clone()
    optimizer = sgd(model, lr=0.0)
    watch(model, optimizer, record, every=1)
    for _ in range(2):
        loss_of(model, batch).backward()
        optimizer.step()
        batch.mul_(3)
    assert record[1]["signals/0"] == record[0]["signals/0"]


def test_signals_use_the_modes_of_the_training_and_leave_running_statistics():
    model, record = Net(), Record()
    model.drop.eval()
    optimizer = sgd(model)
    watch(model, optimizer, record, every=3)
    train(model, optimizer, 3)
    before = state_of(model)
    expected = second_moments(model, X[:8])["norm"]  # of the batch, in training mode
    model.load_state_dict(before)
    train(model, optimizer, 1, start=3)
    assert record[3]["signals/norm"] == pytest.approx(expected, rel=1e-6)
    assert "signals/add" in record[3]  # the last operator of the model's own code


def test_the_prediction_is_that_of_the_weights_at_the_start_on_that_batch():
    model, record = mlp(), Record()
    optimizer = sgd(model)
    watcher = watch(model, optimizer, record, initialize="autoinit", every=1)
    train(model, optimizer, 2)
    reference = mlp()
    watcher.plan.apply_(reference)
    predicted = wp.propagate(wp.trace(reference, X[:8]), inputs=wp.Input.from_batch(X[:8]))
    for signal in predicted:
        assert record[0][f"predicted/{signal.name}"] == signal.second_moment
        assert watcher.predicted[signal.name] == signal
    assert not any(name.startswith("predicted/") for name in record[1])


def test_chosen_nodes_alone_are_logged():
    model, record = Net(), Record()
    optimizer = sgd(model)
    watch(model, optimizer, record, nodes=["h*", "relu"])
    train(model, optimizer, 1)
    assert {name for name in record[0] if name.startswith("signals/")} == {"signals/relu", "signals/head"}


def test_updates_are_logged_relative_to_their_weights():
    model, record = mlp(), Record()
    nn.init.zeros_(model[4].weight)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    watch(model, optimizer, record)
    before = state_of(model)
    train(model, optimizer, 1)
    for name, parameter in model.named_parameters():
        step, old = 0.1 * parameter.grad.double(), before[name].double()
        rms = float(step.square().mean().sqrt())
        assert record[0][f"update_rms/{name}"] == pytest.approx(rms, rel=1e-3)  # W − (W − lr g) rounds at W's size
        if name == "4.weight":
            assert f"updates/{name}" not in record[0]  # ‖W‖ is 0
        else:
            assert record[0][f"updates/{name}"] == pytest.approx(float(step.norm() / old.norm()), rel=1e-3)


def test_frozen_parameters_are_neither_written_nor_listed():
    model, record = mlp(), Record()
    model[2].weight.requires_grad_(False)
    kept = model[2].weight.clone()
    optimizer = sgd(model)
    watch(model, optimizer, record, initialize="autoinit")
    train(model, optimizer, 1)
    assert torch.equal(model[2].weight, kept)
    assert "updates/2.weight" not in record[0]


def test_a_plan_is_written_at_once_but_for_what_is_frozen():
    model, reference = mlp(), mlp()
    plan = wp.initialize_(reference, X)
    model[0].bias.requires_grad_(False)
    kept = model[0].bias.clone()
    watcher = watch(model, sgd(model), initialize=plan)
    assert watcher.plan is plan
    assert torch.equal(model[0].bias, kept)
    assert torch.equal(model[0].weight, reference[0].weight)


def test_rates_are_logged_relative_to_the_first_group():
    model, record = mlp(), Record()
    groups = [{"params": model[0].parameters(), "lr": 0.2}, {"params": model[2:].parameters(), "lr": 0.05, "name": "b"}]
    optimizer = torch.optim.SGD(groups)
    watch(model, optimizer, record)
    train(model, optimizer, 1)
    assert {name: record[0][name] for name in record[0] if name.startswith("rates")} == {"rates/0": 1, "rates/b": 0.25}


def test_rates_over_the_plan_show_what_a_scheduler_collapses():
    model, record = mlp(), Record()
    plan = wp.initialize_(model, X, method="mup")
    optimizer = torch.optim.AdamW(plan.param_groups(model, 1e-3, "adamw"))
    watch(model, optimizer, record, every=1)
    train(model, optimizer, 1)
    names = [group["name"] for group in optimizer.param_groups]
    assert len({record[0][f"rates/{name}"] for name in names}) > 1
    assert [record[0][f"rates_over_plan/{name}"] for name in names] == pytest.approx([1.0] * len(names), rel=1e-12)
    for group in optimizer.param_groups:
        group["lr"] = 1e-3
    with pytest.warns(CollapsedRatesWarning, match="should be in the ratio"):
        train(model, optimizer, 1)
    assert [record[1][f"rates/{name}"] for name in names] == [1.0] * len(names)
    over = [record[1][f"rates_over_plan/{name}"] for name in names]
    asked = [group["lr_multiplier"] for group in optimizer.param_groups]
    assert over == pytest.approx([asked[0] / multiplier for multiplier in asked], rel=1e-12)


def test_a_single_group_has_no_rates_logged():
    model, record = mlp(), Record()
    optimizer = sgd(model)
    watch(model, optimizer, record)
    train(model, optimizer, 1)
    assert not any(name.startswith("rates") for name in record[0])


# ---- loops of all kinds ---------------------------------------------------------------------------------------------


def test_accumulated_gradients_count_as_one_step():
    model, record = mlp(), Record()
    optimizer = sgd(model)
    watch(model, optimizer, record, every=2)
    train(model, optimizer, 4, accumulate=3)
    assert record.steps == [0, 2]


def test_resumed_trainings_are_not_initialised_again():
    model, record = mlp(), Record()
    before = state_of(model)
    optimizer = sgd(model, lr=0.0)
    watcher = watch(model, optimizer, record, initialize="autoinit", every=5, step=7)
    train(model, optimizer, 6)
    assert watcher.plan is None
    assert same(state_of(model), before)
    assert record.steps == [10]
    plan = wp.plan(model, X)
    watch(model, optimizer, initialize=plan, step=7)
    assert same(state_of(model), before)


def test_two_optimizers_are_watched_together():
    model, record = mlp(), []
    optimizers = [sgd(model[0]), sgd(model[2:])]
    watch(model, optimizers, lambda figures, step: record.append((step, figures)), every=2)
    for _ in range(3):
        loss_of(model).backward()
        for optimizer in optimizers:
            optimizer.step()
    assert [step for step, _ in record] == [0, 0, 2, 2]
    first, second = record[0][1], record[1][1]
    assert "signals/4" in first
    assert {name for name in first if name.startswith("updates/")} == {"updates/0.weight", "updates/0.bias"}
    assert set(second) == {f"{kind}/{name}" for kind in ("updates", "update_rms") for name in (
        "2.weight", "2.bias", "4.weight", "4.bias")}  # fmt: skip


def test_an_optimizer_that_runs_the_model_itself():
    model, record = mlp(), Record()
    optimizer = torch.optim.LBFGS(model.parameters(), lr=0.1, max_iter=2)
    watcher = watch(model, optimizer, record, initialize="autoinit", every=1)
    reference = mlp()

    def closure():
        optimizer.zero_grad()
        loss = loss_of(model)
        loss.backward()
        return loss

    optimizer.step(closure)
    watcher.plan.apply_(reference)
    now, old = model[0].weight.detach(), reference[0].weight.detach()
    change = (now - old).norm() / old.norm()
    assert record[0]["updates/0.weight"] == pytest.approx(float(change), rel=1e-6)
    optimizer.step(closure)
    assert "signals/4" in record[1]
    assert "predicted/4" in record[1]


def test_calls_without_gradients_are_no_example():
    model, record = mlp(), Record()
    optimizer = sgd(model)
    watcher = watch(model, optimizer, record, initialize="autoinit")
    with torch.no_grad():
        model(X[:1])
    assert watcher.plan is None
    train(model, optimizer, 1)
    assert watcher.predicted["0"].shape == (8, 32)


@pytest.mark.filterwarnings("ignore")
def test_a_compiled_model_is_watched_alike():
    torch.manual_seed(0)
    model, plain = mlp(), mlp()
    plain.load_state_dict(model.state_dict())
    finals = []
    for net, run in ((plain, plain), (model, torch.compile(model, backend="eager"))):
        record, optimizer = Record(), sgd(net)
        watcher = watch(run, optimizer, record, initialize="autoinit", every=1)
        train(run, optimizer, 3)
        assert record.steps == [0, 1, 2]
        finals.append((state_of(net), record[2]["signals/4"], watcher.plan.prescriptions))
    assert same(finals[0][0], finals[1][0])
    assert finals[0][1:] == finals[1][1:]


def test_autocast_is_part_of_what_is_measured():
    model, record = mlp(), Record()
    optimizer = sgd(model)
    watch(model, optimizer, record)
    with torch.autocast("cpu", torch.bfloat16):
        loss = loss_of(model)
        with torch.no_grad():
            expected = model(X).float().double().square().mean()
    loss.backward()
    optimizer.step()
    assert record[0]["signals/4"] == pytest.approx(float(expected), rel=1e-6)


# ---- what goes wrong ------------------------------------------------------------------------------------------------


def test_a_model_that_cannot_be_traced_trains_on_and_says_so():
    model, record = Stubborn(), Record()
    optimizer = sgd(model)
    watch(model, optimizer, record)
    with pytest.warns(UserWarning, match="signals are not watched.*not here"):
        train(model, optimizer, 1)
    train(model, optimizer, 1)
    assert set(record[0]) == {
        "updates/layer.weight", "updates/layer.bias", "update_rms/layer.weight", "update_rms/layer.bias"
    }  # fmt: skip


def test_but_it_is_not_trained_where_it_was_to_be_initialised():
    model = Stubborn()
    optimizer = sgd(model)
    watch(model, optimizer, initialize="autoinit")
    with pytest.raises(TraceError, match="not here"):
        train(model, optimizer, 1)


def test_a_step_without_a_call_of_the_model_is_an_error():
    model = mlp()
    optimizer = sgd(model)
    watch(model, optimizer, initialize="autoinit")
    loss_of(model[2:], torch.randn(24, 32)).backward()
    with pytest.raises(PlanError, match=r"was to be initialised \(autoinit\) at its first call"):
        optimizer.step()


def test_infinities_are_shown():
    model, record = mlp(), Record()
    optimizer = sgd(model)
    watch(model, optimizer, record, every=1)
    train(model, optimizer, 1)
    with torch.no_grad():
        model[2].weight.fill_(math.inf)
    train(model, optimizer, 1)
    assert not math.isfinite(record[1]["signals/4"])
    assert math.isnan(record[1]["updates/2.weight"])


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"every": 0}, "every must be an integer of at least 1, received 0"),
        ({"initialize": 3}, "a method's name, a Plan or None, received int"),
        ({"initialize": "autoint"}, "did you mean 'autoinit'"),
        ({"seed": 3}, "option 'seed' is for a method"),
    ],
)
def test_settings_that_cannot_be_meant_are_refused(settings, message):
    model = mlp()
    with pytest.raises(OptionError, match=message):
        watch(model, sgd(model), **settings)


def test_what_is_no_optimizer_is_refused_before_a_plan_is_written():
    model = mlp()
    before = state_of(model)
    with pytest.raises(OptionError, match="expected a torch optimizer, received str"):
        watch(model, ["sgd"], Record(), initialize=wp.plan(model, X))
    assert same(state_of(model), before)
    assert not model._forward_pre_hooks


def test_unknown_options_and_nodes_are_refused():
    model = mlp()
    optimizer = sgd(model)
    watch(model, optimizer, initialize="autoinit", gian=2)
    with pytest.raises(OptionError, match="'gian' is no option"):
        train(model, optimizer, 1)
    model = mlp()
    optimizer = sgd(model)
    watch(model, optimizer, Record(), nodes="5")
    with pytest.warns(UserWarning, match="nodes='5' matches no node of Sequential"):
        train(model, optimizer, 1)
    with pytest.raises(OptionError, match="expected a torch optimizer, received Linear"):
        watch(model, nn.Linear(2, 2), Record())


@pytest.mark.parametrize(("library", "extra"), [("lightning", "lightning"), ("transformers", "zoo")])
def test_a_missing_extra_is_named(library, extra, monkeypatch):
    monkeypatch.setitem(sys.modules, library, None)
    monkeypatch.delitem(sys.modules, f"wellposed.integrations.{library}", raising=False)
    message = rf"wellposed.integrations.{library} needs {library}: pip install .*\[{extra}\]"
    with pytest.raises(OptionError, match=message):
        importlib.import_module(f"wellposed.integrations.{library}")


def test_nothing_is_measured_without_a_log():
    model = mlp()
    optimizer = sgd(model)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        watcher = watch(model, optimizer, initialize="autoinit", every=1)
        train(model, optimizer, 2)
    assert watcher.predicted is watcher.measured is None
