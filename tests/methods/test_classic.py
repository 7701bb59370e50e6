"""Baselines: stds against torch.nn.init where torch can say them, fans, roles, and what is left alone."""

import math

import pytest
import torch
from torch import nn
from torch.nn import functional
from torch.nn.utils import parametrizations

from wellposed import check, initialize_, plan, trace
from wellposed.errors import OptionError

IMAGE = torch.zeros(2, 3, 8, 8)


def only(said):
    """Return the plan's fields that set the numbers, for one parameter."""
    return said.distribution, said.std, said.fan_in, said.fan_out


# ---- fans and stds --------------------------------------------------------------------------------------------------

LAYERS = {
    "linear": (lambda: nn.Linear(20, 30), torch.zeros(2, 20)),
    "conv": (lambda: nn.Conv2d(3, 6, 3, padding=1), IMAGE),
    "conv1d": (lambda: nn.Conv1d(3, 6, 5), torch.zeros(2, 3, 9)),
    "conv3d": (lambda: nn.Conv3d(3, 6, 2), torch.zeros(2, 3, 4, 4, 4)),
}


@pytest.mark.parametrize("layer", LAYERS)
@pytest.mark.parametrize("mode", ["fan_in", "fan_out"])
def test_kaiming_has_the_std_of_torch(layer, mode):
    """torch draws; the reference is the std that its bounds say, which is exact."""
    build, x = LAYERS[layer]
    module = build()
    said = plan(module, x, method="kaiming", mode=mode).prescriptions["weight"]
    reference = torch.empty_like(module.weight)
    nn.init.kaiming_uniform_(reference, mode=mode, nonlinearity="relu")
    fan_in, fan_out = nn.init._calculate_fan_in_and_fan_out(module.weight)
    assert (said.fan_in, said.fan_out) == (fan_in, fan_out)
    assert said.std == pytest.approx(math.sqrt(2.0 / (fan_in if mode == "fan_in" else fan_out)), rel=1e-12)
    assert reference.abs().max() <= math.sqrt(3.0) * said.std * (1 + 1e-6)


@pytest.mark.parametrize("layer", LAYERS)
def test_xavier_and_lecun_have_the_std_of_their_fans(layer):
    build, x = LAYERS[layer]
    module = build()
    fan_in, fan_out = nn.init._calculate_fan_in_and_fan_out(module.weight)
    xavier = plan(module, x, method="xavier", gain=2.0, distribution="uniform").prescriptions["weight"]
    assert only(xavier) == ("uniform", pytest.approx(2.0 * math.sqrt(2.0 / (fan_in + fan_out))), fan_in, fan_out)
    lecun = plan(module, x, method="lecun").prescriptions["weight"]
    assert only(lecun) == ("normal", pytest.approx(1.0 / math.sqrt(fan_in)), fan_in, fan_out)


class Fused(nn.Module):
    def __init__(self):
        super().__init__()
        self.qkv = nn.Linear(12, 36)

    def forward(self, x):
        q, k, v = self.qkv(x).chunk(3, -1)
        return functional.scaled_dot_product_attention(q, k, v)


class Matrix(nn.Module):
    def __init__(self):
        super().__init__()
        self.w = nn.Parameter(torch.zeros(10, 40))

    def forward(self, x):
        return x @ self.w


class Scaled(nn.Module):
    """A weight that the forward pass multiplies by a constant (equalised learning rate)."""

    def __init__(self):
        super().__init__()
        self.w = nn.Parameter(torch.zeros(5, 10))

    def forward(self, x):
        return functional.linear(x, self.w * 0.5)


class Experts(nn.Module):
    def __init__(self):
        super().__init__()
        self.w = nn.Parameter(torch.zeros(4, 10, 6))

    def forward(self, x):
        return torch.bmm(x.expand(4, -1, -1), self.w)


@pytest.mark.parametrize(
    ("build", "x", "name", "fans"),
    [
        (Fused, torch.zeros(1, 5, 12), "qkv.weight", (12, 12)),
        (Matrix, torch.zeros(2, 10), "w", (10, 40)),
        (lambda: nn.Conv2d(8, 16, 3, groups=4), torch.zeros(1, 8, 5, 5), "weight", (18, 36)),
        (lambda: nn.Conv2d(8, 8, 3, groups=8), torch.zeros(1, 8, 5, 5), "weight", (9, 9)),
        (lambda: nn.ConvTranspose2d(8, 4, 3), torch.zeros(1, 8, 5, 5), "weight", (72, 36)),
        (Experts, torch.zeros(1, 3, 10), "w", (10, 6)),
    ],
)
def test_fans_come_from_the_contraction(build, x, name, fans):
    said = plan(build(), x, method="lecun").prescriptions[name]
    assert (said.fan_in, said.fan_out) == fans
    assert said.std == pytest.approx(fans[0] ** -0.5)


def test_constant_factors_of_the_forward_pass_are_divided_out():
    said = plan(Scaled(), torch.zeros(2, 10), method="lecun").prescriptions["w"]
    assert said.std == pytest.approx(2.0 / math.sqrt(10))
    assert "the model multiplies it by 0.5" in said.reason


def test_weight_norm_gets_the_gain_that_gives_its_weights_the_std():
    model = parametrizations.weight_norm(nn.Linear(50, 400))
    made = initialize_(model, torch.zeros(2, 50), method="kaiming")
    gain = made.prescriptions["parametrizations.weight.original0"]
    assert (gain.distribution, gain.role) == ("constant", "scale")
    assert made.prescriptions["parametrizations.weight.original1"].std == pytest.approx(math.sqrt(2.0 / 50))
    rms = model.weight.square().mean().sqrt().item()
    assert rms == pytest.approx(math.sqrt(2.0 / 50), rel=1e-5)


@pytest.mark.parametrize("method", ["autoinit", "kaiming", "topology"])
def test_the_direction_of_a_weight_norm_is_drawn_anew(method):
    model = nn.Sequential(parametrizations.weight_norm(nn.Linear(50, 40)), nn.ReLU(), nn.Linear(40, 3))
    direction = model[0].parametrizations.weight.original1
    before, x = direction.detach().clone(), torch.randn(64, 50)
    made = plan(model, x, method=method)
    assert made.prescriptions["0.parametrizations.weight.original1"].action == "write"
    kept = plan(model, x, method=method, skip="*original1").prescriptions["0.parametrizations.weight.original1"]
    assert kept.action == "keep"
    made.apply_(model)
    assert abs(float(torch.corrcoef(torch.stack([before.flatten(), direction.detach().flatten()]))[0, 1])) < 0.1
    lengths = model[0].parametrizations.weight.original0.detach().flatten()
    drawn = direction.detach().norm(dim=1)
    assert abs(drawn.mean() - lengths.mean()) < 4 * drawn.std() / len(drawn) ** 0.5
    assert check(model, x, plan=made, draws=16).ok


@pytest.mark.parametrize(
    ("build", "x", "blocks"),
    [
        (lambda: nn.Linear(20, 30), torch.zeros(2, 20), lambda w: [w]),
        (lambda: nn.Conv2d(8, 4, 3, groups=2), torch.zeros(1, 8, 5, 5), lambda w: w.flatten(1).chunk(2)),
        (Fused, torch.zeros(1, 5, 12), lambda w: w.chunk(3)),
        (Experts, torch.zeros(1, 3, 10), list),
        (
            lambda: nn.ConvTranspose2d(8, 4, 2, groups=2),
            torch.zeros(1, 8, 5, 5),
            lambda w: [part.transpose(0, 1).flatten(1) for part in w.chunk(2)],
        ),
    ],
)
def test_orthogonal_blocks_are_orthonormal_times_the_gain(build, x, blocks):
    model = build()
    initialize_(model, x, method="orthogonal", gain=1.5)
    for part in blocks(next(p for p in model.parameters() if p.ndim > 1).detach()):
        small = part @ part.T if part.shape[0] <= part.shape[1] else part.T @ part
        torch.testing.assert_close(small, 2.25 * torch.eye(small.shape[0]), atol=1e-5, rtol=0)


# ---- roles ----------------------------------------------------------------------------------------------------------


class Roles(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(7, 6)
        self.position = nn.Parameter(torch.randn(4, 6))
        self.layer_norm = nn.LayerNorm(6)
        self.group_norm = nn.GroupNorm(2, 4)
        self.rms_norm = nn.RMSNorm(6)
        self.unlucky = nn.ParameterDict({"gamma": torch.zeros(6), "weight": torch.zeros(6)})
        self.rnn = nn.GRU(6, 6, batch_first=True)
        self.fc = nn.Linear(6, 7)
        self.idle = nn.Linear(2, 2)

    def forward(self, tokens):
        x = self.layer_norm(self.embed(tokens) + self.position)
        x = self.rms_norm(self.group_norm(x))
        x = functional.layer_norm(x, (6,), self.unlucky["gamma"], self.unlucky["weight"])
        return self.fc(self.rnn(x)[0])


@pytest.mark.parametrize("method", ["lecun", "xavier", "kaiming", "orthogonal"])
def test_every_parameter_appears_once_with_its_role(method):
    model = Roles()
    made = plan(model, torch.zeros(2, 4, dtype=torch.long), method=method)
    assert list(made.prescriptions) == [name for name, _ in model.named_parameters()]
    said = made.prescriptions

    def constant(name):
        return said[name].action, said[name].role, said[name].constant

    for norm in ("layer_norm", "group_norm"):
        assert constant(f"{norm}.weight") == ("write", "gain", 1.0)
        assert constant(f"{norm}.bias") == ("write", "shift", 0.0)
    assert constant("rms_norm.weight") == ("write", "gain", 1.0)
    assert constant("unlucky.gamma") == ("write", "gain", 0.0)  # as the model sets it
    assert constant("unlucky.weight") == ("write", "shift", 0.0)
    assert constant("fc.bias") == ("write", "bias", 0.0)
    assert (said["fc.weight"].action, said["fc.weight"].role) == ("write", "weight")
    assert (said["embed.weight"].action, said["embed.weight"].role) == ("keep", "embedding")
    assert (said["rnn.weight_ih_l0"].action, said["rnn.weight_hh_l0"].role) == ("keep", "recurrent")
    assert "recurrent weights keep their default" in said["rnn.weight_hh_l0"].reason
    assert said["rnn.bias_ih_l0"].action == "keep"
    assert "recurrent layers keep their default" in said["rnn.bias_ih_l0"].reason
    assert said["idle.weight"].reason == "no operation of this pass uses it"
    assert f"{method} has no rule for its use in" in said["position"].reason
    assert all(one.reason for one in said.values())


class TiedReadout(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(7, 6)
        self.norm = nn.LayerNorm(6)
        self.head = nn.Linear(6, 7, bias=False)
        self.head.weight = self.embed.weight

    def forward(self, tokens):
        return self.head(self.norm(self.embed(tokens)))


def test_a_tied_readout_is_planned_by_its_sum_and_says_so():
    made = plan(TiedReadout(), torch.zeros(2, 4, dtype=torch.long), method="lecun").prescriptions
    assert only(made["embed.weight"]) == ("normal", pytest.approx(6**-0.5), 6, 7)
    assert made["embed.weight"].op.startswith("head (")
    assert (made["head.weight"].action, made["head.weight"].tied_to) == ("tied", "embed.weight")
    assert "head (linear" in made["head.weight"].reason


def test_default_records_what_the_model_did():
    model = nn.Sequential(nn.Linear(30, 20), nn.BatchNorm1d(20))
    before = [parameter.clone() for parameter in model.parameters()]
    made = initialize_(model, torch.zeros(4, 30), method="default")
    assert all(torch.equal(a, b) for a, b in zip(before, model.parameters(), strict=True))
    said = made.prescriptions["0.weight"]
    assert (said.action, said.distribution, said.fan_in) == ("keep", "default", 30)
    assert said.std == pytest.approx(model[0].weight.double().std(correction=0).item())
    assert made.prescriptions["1.weight"].mean == 1.0
    with torch.device("meta"):
        blank = nn.Linear(3, 3)
    on_meta = plan(blank, torch.zeros(2, 3), method="default").prescriptions["weight"]
    assert 0 < on_meta.std <= 1 / 3**0.5
    assert on_meta.reason.endswith("on meta: mean and std as it makes them")


@pytest.mark.parametrize(
    ("method", "option", "value", "message"),
    [
        ("kaiming", "distribution", "uniforn", "unknown distribution 'uniforn'; did you mean 'uniform'"),
        ("xavier", "distribution", "orthogonal", "unknown distribution 'orthogonal'"),
        ("kaiming", "mode", "fan_avg", "unknown mode 'fan_avg'; did you mean"),
        ("lecun", "gain", 0.0, "gain must be a finite number above 0, received 0.0"),
        ("orthogonal", "gain", float("nan"), "gain must be a finite number above 0, received nan"),
        ("xavier", "gain", "big", "gain must be a finite number above 0, received 'big'"),
    ],
)
def test_values_outside_their_range_are_refused(method, option, value, message):
    with pytest.raises(OptionError, match=message):
        plan(trace(nn.Linear(3, 3), torch.zeros(2, 3)), method=method, **{option: value})
