"""Trainings in JAX: searched by the protocol of `wellposed.rates`, prepared with Optax; what is given as models, keys
and batches; bad input told.
"""

from __future__ import annotations

import warnings
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from tests.frontends.jax_models import MLP, jax, jnp, linen, nnx, normal

import wellposed as wp
import wellposed.jax as wj
from wellposed.errors import DivergedError, InputError, OptionError, PlanError, RateError
from wellposed.frontends.jax.preparing import course_of
from wellposed.plans import draw
from wellposed.rates.grid import default_grid
from wellposed.rates.schedule import schedule_factor

optax = pytest.importorskip("optax", reason="Optax is not installed: pip install 'wellposed[jax]'")
cross_entropy = optax.softmax_cross_entropy_with_integer_labels


def apply(params: Any, x: Any) -> Any:
    x = jnp.tanh(x @ params["first"]["kernel"] + params["first"]["bias"])
    return x @ params["second"]["kernel"] + params["second"]["bias"]


def tree(seed: int = 5) -> Any:
    first, second = normal(6, 16, seed=seed) / 2, normal(16, 3, seed=seed + 1) / 4
    return {"first": {"kernel": first, "bias": np.zeros(16, "float32")},
            "second": {"kernel": second, "bias": np.zeros(3, "float32")}}  # fmt: skip


def batches(count: int = 10) -> list[tuple[np.ndarray, np.ndarray]]:
    x = normal(count, 16, 6, seed=1)
    return [(part, part[:, :3].argmax(1)) for part in x]


def prepared(params: Any = None, loss: Any = cross_entropy, given: Any = None, function: Any = apply, **options: Any):
    given = batches() if given is None else given
    return wj.prepare(function, tree() if params is None else params, loss, given, **{"progress": False, **options})


def same(one: Any, other: Any) -> bool:
    return all(jax.tree.leaves(jax.tree.map(np.array_equal, one, other)))


@pytest.fixture(scope="module")
def start() -> Any:
    return prepared(steps=500, weight_decay=0.1)


def trained(params: Any, optimizer: Any, steps: int) -> tuple[Any, list[float]]:
    """The parameters after some steps as Optax's guide takes them, and the loss before each."""

    @jax.jit
    def step(params, state, batch):
        loss, slope = jax.value_and_grad(lambda p: cross_entropy(apply(p, batch[0]), batch[1]).mean())(params)
        updates, state = optimizer.update(slope, state, params)
        return optax.apply_updates(params, updates), state, loss

    state, losses = optimizer.init(params), []
    for index in range(steps):
        params, state, loss = step(params, state, batches()[index % 10])
        losses.append(float(loss))
    return params, losses


# ---- one search in two frameworks -----------------------------------------------------------------------------------


@pytest.mark.slow
def test_the_search_is_that_of_torch(start):
    """The same plan, groups, schedule and batches, trained by torch on the same function."""
    function = wj.Function(apply, tree())
    plan = wj.plan(function, batches()[0][0])
    assert start.plan == plan

    def build(module: Any, lr: float) -> torch.optim.Optimizer:
        return torch.optim.AdamW(plan.param_groups(module, lr, "adamw", 0.1))

    theirs = wp.rates.find_max_lr(
        wj.module(function),
        lambda module, batch: torch.nn.functional.cross_entropy(module(batch[0]), batch[1]),
        [tuple(map(torch.tensor, batch)) for batch in batches()],
        optimizer=build,
        initialize=plan,
        training_steps=500,
        grid=default_grid("adamw"),  # and not around what is known without a training
        schedule="warmup_cosine",
        vectorize=False,
        progress=False,
    )
    assert start.rate.value == pytest.approx(theirs.value, rel=1e-3)
    assert [point.rate for point in start.rate.curve] == pytest.approx([point.rate for point in theirs.curve])
    for ours, other in zip(start.rate.curve, theirs.curve, strict=True):
        assert ours.mean == (None if other.mean is None else pytest.approx(other.mean, rel=1e-3))
    ours, other = start.rate.conditions, theirs.conditions
    assert (ours.optimizer, ours.batch_size, ours.steps, ours.training_steps, ours.schedule) == (
        (other.optimizer, other.batch_size, other.steps, other.training_steps, other.schedule)
    )


# ---- what is returned -----------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_parameters_are_the_plans_and_those_given_stay():
    given = tree()
    start = prepared(given, steps=100, budget=120)
    assert same(given, tree())
    drawn = draw(start.plan)
    assert np.array_equal(start.params["first"]["kernel"], drawn["first/kernel"].numpy())
    assert jax.tree.structure(start.params) == jax.tree.structure(given)


@pytest.mark.slow
def test_the_transformation_trains_at_the_rate_and_schedule(start):
    _, losses = trained(start.params, start.optimizer, 500)
    assert np.mean(losses[-10:]) < 0.2 * losses[0]
    short = prepared(steps=40, weight_decay=0.1, schedule="cosine", clip=0.5)
    plain = optax.adamw(
        optax.cosine_decay_schedule(short.rate.value, 40), weight_decay=0.1,
        mask=lambda params: jax.tree.map(lambda leaf: leaf.ndim > 1, params),
    )  # fmt: skip
    by_hand, _ = trained(short.params, optax.chain(optax.clip_by_global_norm(0.5), plain), 40)
    ours, _ = trained(short.params, short.optimizer, 40)
    for one, other in zip(jax.tree.leaves(ours), jax.tree.leaves(by_hand), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-3, atol=1e-5)


@pytest.mark.parametrize("name", ["warmup_cosine", "warmup_linear", "cosine", "linear", "constant"])
def test_schedules_are_those_of_the_search(name):
    made, (_, factor) = course_of(name, 0.3, 200), schedule_factor(name)
    for step in (0, 1, 10, 20, 21, 100, 199):
        rate = made if name == "constant" else float(made(step))
        assert rate == pytest.approx(0.3 * factor(step / 200), abs=1e-6)


def test_a_schedule_of_ones_own_must_be_one_that_jax_traces():
    made = course_of(lambda done: 1 - done**2, 0.3, 200)
    assert float(jax.jit(made)(100)) == pytest.approx(0.3 * 0.75)
    with pytest.raises(OptionError, match=r"JAX cannot trace the schedule .* write it with jax.numpy"):
        course_of(lambda done: 1.0 if done < 0.5 else 0.1, 0.3, 200)


@pytest.mark.slow
def test_a_page_says_what_was_chosen_and_why(start):
    page = " ".join(str(start).split())
    for told in (
        "Start of apply, for 500 steps", "steady, seed 0; in start.params",
        "adamw: 2 arrays with decay 0, 2 arrays with decay 0.1", "the best lies between", "start.optimizer follows it",
        "gradients of 4 batches at the start have norms from",
    ):  # fmt: skip
        assert told in page
    assert max(map(len, str(start).splitlines())) <= 100
    assert not [text for text in start.warnings if "looks trained" in text]


@pytest.mark.slow
def test_rates_of_groups_are_searched_and_told():
    start = prepared(method="mup", optimizer="sgd", budget=120)
    assert "times the rate" in str(start)
    like = prepared(optimizer=lambda rate, weight_decay=0.0: optax.sgd(rate, momentum=0.9), family="sgd", budget=120)
    assert like.rate.conditions.optimizer == "sgd"


@pytest.mark.slow
def test_a_search_that_was_killed_goes_on(tmp_path):
    first = prepared(budget=120, journal=tmp_path / "notes.jsonl")
    lines = (tmp_path / "notes.jsonl").read_text().splitlines()
    again = prepared(budget=120, journal=tmp_path / "notes.jsonl")
    assert again.rate == first.rate
    assert (tmp_path / "notes.jsonl").read_text().splitlines() == lines
    with pytest.raises(RateError, match="another search: weights was"):
        prepared(budget=120, seed=1, journal=tmp_path / "notes.jsonl")


# ---- modules of NNX -------------------------------------------------------------------------------------------------


class Noisy(nnx.Module):
    def __init__(self, rngs: Any) -> None:
        self.first = nnx.Linear(6, 16, rngs=rngs)
        self.norm, self.drop = nnx.BatchNorm(16, rngs=rngs), nnx.Dropout(0.1, rngs=rngs)
        self.head = nnx.Linear(16, 3, rngs=rngs)

    def __call__(self, x: Any) -> Any:
        return self.head(self.drop(nnx.relu(self.norm(self.first(x)))))


def nnx_loss(model: Any, batch: Any) -> Any:
    loss = cross_entropy(model(batch[0]), batch[1]).mean()
    return loss, {"logged": loss}


def arrays_of(model: Any, kind: Any) -> dict[str, np.ndarray]:
    return {
        "/".join(map(str, path)): np.array(leaf[...]) for path, leaf in nnx.to_flat_state(nnx.state(model, kind))
        if not jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key)
    }  # fmt: skip


@pytest.mark.slow
def test_a_module_is_written_and_its_states_stay():
    model = Noisy(nnx.Rngs(0))
    before = {kind: arrays_of(model, kind) for kind in (nnx.BatchStat, nnx.RngState)}
    start = wj.prepare_(model, nnx_loss, batches(), steps=60, progress=False)
    assert start.written
    assert "steady, seed 0; written" in str(start)
    assert all(same(arrays_of(model, kind), held) for kind, held in before.items())
    drawn = draw(start.plan)
    assert same({name: arrays_of(model, nnx.Param)[name] for name in drawn}, {n: t.numpy() for n, t in drawn.items()})
    model.train()
    optimizer = nnx.Optimizer(model, start.optimizer, wrt=nnx.Param)

    @nnx.jit
    def trained(model: Any, optimizer: Any, batch: Any) -> Any:
        (loss, _), slope = nnx.value_and_grad(nnx_loss, has_aux=True)(model, batch)
        optimizer.update(model, slope)
        return loss

    losses = [float(trained(model, optimizer, batches()[step % 10])) for step in range(60)]
    assert np.mean(losses[-5:]) < 0.6 * losses[0]
    with pytest.raises(PlanError, match=r"looks trained.*nothing was written: method='own' keeps the weights"):
        wj.prepare_(model, nnx_loss, batches(), steps=60, progress=False)


# ---- losses and batches ---------------------------------------------------------------------------------------------


def own_loss(model: Any, batch: Any) -> Any:
    return cross_entropy(model(batch["x"]), batch["y"]).mean()


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["jax", "iterator", "one batch", "mapping", "torch", "loader"])
def test_batches_may_be_given_in_every_way(kind):
    pairs = [tuple(map(torch.tensor, batch)) for batch in batches()]
    given = {
        "jax": [tuple(map(jnp.asarray, batch)) for batch in batches()], "iterator": iter(batches()),
        "one batch": tuple(map(jnp.asarray, batches()[0])), "mapping": dict(zip("xy", batches()[0], strict=True)),
        "torch": pairs, "loader": torch.utils.data.DataLoader(pairs, batch_size=None, shuffle=True),
    }[kind]  # fmt: skip
    loss = own_loss if kind == "mapping" else cross_entropy
    start = prepared(loss=loss, given=given, budget=80)
    assert start.rate.conditions.batch_size == 16
    assert "int" in start.rate.conditions.inputs


def diverging(params: Any, x: Any) -> Any:
    return apply(params, jnp.sqrt(-(x**2) - 1))


@pytest.mark.parametrize(
    ("options", "error", "told"),
    [
        ({"given": []}, RateError, "not one batch"),
        ({"given": 3}, OptionError, "batches must be batches"),
        ({"given": [batches()[0][0]]}, RateError, r"scores outputs against targets.*not ndarray"),
        ({"loss": lambda model, batch: batch[0].sum()}, RateError, "does not call the model"),
        ({"loss": lambda model, batch: model(batch[0])}, RateError, r"must return one number.*an array \[16, 3\]"),
        ({"loss": lambda model, batch: 0 * model(batch[0]).sum()}, RateError, "the gradient of the loss is 0"),
        ({"params": {**tree(), "step": np.zeros((), int)}}, InputError, "'step' of the parameters is no array of fl"),
        ({"given": [(x * np.nan, y) for x, y in batches()]}, DivergedError, r"not finite \(0\): clean the data"),
        ({"function": diverging}, DivergedError, r"not finite arise at \S+ \(sqrt.default\)"),
        ({"optimizer": "adamww"}, OptionError, "unknown optimizer 'adamww'; did you mean"),
        ({"optimizer": optax.adamw}, OptionError, "is no name: say which optimizer its steps are like"),
        ({"steps": 0}, OptionError, "steps must be an integer of at least 1"),
        ({"clip": -1.0}, OptionError, "clip must be a finite number above 0"),
        ({"method": wj.plan(wj.Function(apply, tree()), batches()[0][0]), "only": "x"}, OptionError, "only= is for"),
        ({"schedule": "warm"}, OptionError, "no schedule 'warm'"),
    ],
)
def test_bad_input_is_told(options, error, told):
    with pytest.raises(error, match=told):
        prepared(**options)


def test_only_modules_are_written_to():
    with pytest.raises(InputError, match=r"writes into a module of Flax NNX, got function; a function of parameters"):
        wj.prepare_(apply, cross_entropy, batches())
    with pytest.raises(InputError, match=r"got Dense; a module of Linen is given as a function"):
        wj.prepare_(linen.Dense(3), cross_entropy, batches())


# ---- keys, zeros, modules of other libraries, positional arguments --------------------------------------------------


def test_a_key_is_a_seed():
    model, x = wj.Function(apply, tree()), batches()[0][0]
    plans = [wj.plan(model, x, seed=seed) for seed in (jax.random.key(3), jax.random.PRNGKey(3), jax.random.key(4))]
    assert plans[0] == plans[1]
    assert plans[0].seed != plans[2].seed
    assert wj.plan(model, x, seed=jnp.asarray(3)).seed == 3
    with pytest.raises(OptionError, match=r"seed is one key or one integer, received keys of shape \(2,\)"):
        wj.plan(model, x, seed=jax.random.split(jax.random.key(0)))


@pytest.mark.slow
def test_kernels_of_zeros_that_stay_are_said():
    zeros, x = jax.tree.map(np.zeros_like, tree()), batches()[0][0]
    with pytest.warns(UserWarning, match=r"2 kernels of zeros stay so, as gates: 'first/kernel', 'second/kernel'; zer"):
        wj.initialize(apply, zeros, x)
    assert "2 kernels of zeros stay so" in prepared(zeros, budget=80).warnings[0]
    gate = {**tree(), "second": {**tree()["second"], "kernel": np.zeros((16, 3), "float32")}}
    assert "1 kernel of zeros stays so" in prepared(gate, budget=80).warnings[0]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for setting in ("keep", "write"):
            wj.initialize(apply, zeros, x, zeros=setting)
        wj.initialize(apply, tree(), x)


@pytest.mark.slow
def test_modules_of_linen_and_equinox_come_with_their_recipe():
    x = batches()[0][0]
    for call in (wj.plan, wj.initialize_, wj.check):
        with pytest.raises(InputError, match=r"got Dense; a module of Linen is given as a function: .*net.apply"):
            call(linen.Dense(3), x)
    with pytest.raises(InputError, match=r"called as apply\(params, \*inputs\), got Dense; a module of Linen"):
        wj.initialize(linen.Dense(3), {}, x)
    equinox = pytest.importorskip("equinox")
    net = equinox.nn.MLP(6, 3, 16, 1, key=jax.random.key(0))
    with pytest.raises(InputError, match=r"got MLP; a module of Equinox is given as a function: .*equinox.partition"):
        wj.plan(net, x)
    with pytest.raises(InputError, match=r"got MLP; a module of Equinox"):
        wj.prepare(net, {}, cross_entropy, batches())
    params, rest = equinox.partition(net, equinox.is_inexact_array)
    wrapped = equinox.filter_jit(lambda p, x: jax.vmap(equinox.combine(p, rest))(x))
    assert wj.plan(wj.Function(wrapped, params), x).prescriptions


@pytest.mark.slow
def test_statistics_of_linen_are_no_parameters():
    """The recipe of the message holds for a module with norms."""

    class Net(linen.Module):
        @linen.compact
        def __call__(self, x):
            return linen.Dense(3)(linen.BatchNorm(use_running_average=True)(linen.Dense(8)(x)))

    net, x = Net(), batches()[0][0]
    variables = net.init(jax.random.key(0), x)
    with pytest.raises(
        InputError, match=r"parameters are wanted alone, got 'batch_stats' beside them: Net; .*net.apply"
    ):
        wj.initialize(net.apply, variables, x)
    start = wj.initialize(lambda params, x: net.apply({**variables, "params": params}, x), variables["params"], x)
    assert start.keys() == variables["params"].keys()
    dense = linen.Dense(3)
    assert wj.initialize(dense.apply, dense.init(jax.random.key(0), x), x).keys() == {"params"}


@pytest.mark.slow
def test_methods_of_a_plan_that_are_of_torch_name_those_of_jax():
    model = nnx.Linear(6, 3, rngs=nnx.Rngs(0))
    plan = wj.plan(model, batches()[0][0])
    with pytest.raises(
        InputError, match=r"plan.apply_ takes a torch.nn.Module, got Linear; for models of Keras and JAX"
    ):
        plan.apply_(model)
    with pytest.raises(
        InputError, match=r"got Linear; for models of JAX, wellposed.jax.transform\(plan, lr, optimizer\)"
    ):
        plan.param_groups(model, 1e-3)


def test_options_of_an_optimizer_belong_into_a_function_of_it():
    plan = wj.plan(wj.Function(apply, tree()), batches()[0][0])
    with pytest.raises(
        OptionError, match=r"takes no 'momentum': .* functools.partial\(optax.sgd, momentum=...\), with f"
    ):
        wj.transform(plan, 0.1, "sgd", momentum=0.9)
    made = wj.transform(plan, 0.1, partial(optax.sgd, momentum=0.9), family="sgd")
    assert made.init(tree()) is not None


def test_inputs_in_the_place_of_a_node_are_refused():
    with pytest.raises(
        OptionError, match=r"node is a name, or None .* received ndarray: inputs come after it, explain\("
    ):
        wj.explain(wj.Function(apply, tree()), batches()[0][0])


def test_inputs_are_described_by_their_places():
    model, x = wj.Function(apply, tree()), np.ones((8, 6), "float32")
    assert wj.plan(model, x, inputs={"0": 3 * x}).inputs == "0: measured on a batch, mean 3, variance 0"
    with pytest.raises(InputError, match="apply has no input 'x'; its inputs are '0'"):
        wj.plan(model, x, inputs={"x": x})
    with pytest.raises(
        InputError, match=r"not list; several are given by name, {'0': ...}, and lists of batches to ch"
    ):
        wj.plan(model, x, inputs=[x])


def test_the_optimizer_of_a_transformation_is_its_third_argument():
    plan = wj.plan(wj.Function(apply, tree()), batches()[0][0])
    state = wj.transform(plan, 1e-3, "sgd").init(tree())
    assert jax.tree.structure(state) == jax.tree.structure(wj.transform(plan, 1e-3, optimizer="sgd").init(tree()))


@pytest.mark.slow
def test_a_module_is_prepared_on_what_its_loss_calls_it_with():
    model = MLP(nnx.Rngs(0))

    def loss(model: Any, batch: Any) -> Any:
        return ((model(jnp.pad(batch[0], ((0, 0), (0, 18)))) ** 2).mean() - 1.0) ** 2

    before = arrays_of(model, nnx.Param)
    start = wj.prepare_(model, loss, batches(), method="own", budget=80, progress=False)
    assert "the model's own, as they are" in str(start)
    assert same(arrays_of(model, nnx.Param), before)
