"""Weights that are drawn with what they make: encoders met by several inputs, picked neighbours, powers, codebooks."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

import wellposed as wp
from wellposed.signals.sampling import drawn_nodes, joint_draws
from wellposed.structure.meetings import codebook_picks

Made = tuple[nn.Module, tuple[Tensor, ...]]


def dense(*widths: int, activation: type[nn.Module] = nn.ReLU) -> nn.Sequential:
    layers = [layer for pair in pairwise(widths) for layer in (nn.Linear(*pair), activation())]
    return nn.Sequential(*layers[:-1])


class Towers(nn.Module):
    """Two inputs through one encoder, and what is made of both results."""

    def __init__(self, meet: Callable[[Tensor, Tensor], Tensor], activation: type[nn.Module] = nn.ReLU) -> None:
        super().__init__()
        self.encoder, self.meet = dense(20, 64, 64, 32, activation=activation), meet

    def forward(self, a: Tensor, b: Tensor) -> Tensor:
        return self.meet(self.encoder(a), self.encoder(b))


class LateInteraction(nn.Module):
    """Similarities of the tokens of two texts, of unequal lengths."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(100, 32)
        self.layers = nn.Sequential(nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, 32), nn.LayerNorm(32))
        self.out = nn.Linear(32, 16, bias=False)

    def encoded(self, tokens: Tensor) -> Tensor:
        embedded = self.embedding(tokens)
        return functional.normalize(self.out(embedded + self.layers(embedded)), dim=-1)

    def forward(self, query: Tensor, document: Tensor) -> Tensor:
        return (self.encoded(query) @ self.encoded(document).transpose(1, 2)).amax(-1).sum(-1)


class CrossCorrelation(nn.Module):
    """A template that is searched for in a picture."""

    def __init__(self) -> None:
        super().__init__()
        convolutions = (nn.Conv2d(3, 16, 3, 2), nn.BatchNorm2d(16), nn.ReLU(), nn.Conv2d(16, 16, 3))
        self.features = nn.Sequential(*convolutions)
        self.of_template, self.of_picture = nn.Conv2d(16, 16, 1), nn.Conv2d(16, 16, 1)

    def forward(self, template: Tensor, picture: Tensor) -> Tensor:
        z, x = self.of_template(self.features(template)), self.of_picture(self.features(picture))
        return functional.conv2d(x.reshape(1, -1, *x.shape[2:]), z, groups=len(z))


class EdgeConvolution(nn.Module):
    """The largest of what a layer makes of a point and each of its nearest neighbours."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Conv2d(6, 32, 1, bias=False), nn.BatchNorm2d(32), nn.LeakyReLU(0.2))
        self.head = nn.Linear(32, 5)

    def forward(self, x: Tensor) -> Tensor:
        near = torch.cdist(x, x).topk(8, largest=False).indices
        places = near[..., None].expand(-1, -1, -1, 3)
        neighbours = x[:, None].expand(-1, x.shape[1], -1, -1).gather(2, places)
        own = x[:, :, None].expand_as(neighbours)
        edges = torch.cat([neighbours - own, own], -1).permute(0, 3, 1, 2)
        return self.head(self.layers(edges).amax(-1).transpose(1, 2))


class Powers(nn.Module):
    """A hypergraph's incidence that every layer multiplies by, forth and back."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList([nn.Linear(8, 32), nn.Linear(32, 32), nn.Linear(32, 32)])

    def forward(self, x: Tensor, incidence: Tensor) -> Tensor:
        for layer in self.layers:
            x = layer(x)
            x = functional.relu(x + incidence @ (incidence.t() @ x))
        return x


class Quantised(nn.Module):
    """Residuals of a signal to the nearest rows of two codebooks in turn."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder, self.decoder = dense(20, 64, 16), nn.Linear(16, 20)
        self.books = nn.ParameterList(torch.randn(32, 16) for _ in range(2))

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        rest = z = self.encoder(x)
        for book in self.books:
            rest = rest - book[torch.cdist(rest, book).argmin(-1)]
        return self.decoder(z - rest), rest.square().mean()


class Codes(nn.Module):
    """Codes that are looked up in an embedding, by how near rows of one length are to what one encoder made."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder, self.codes, self.decoder = dense(20, 64, 8), nn.Embedding(64, 8), nn.Linear(8, 20)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        z = self.encoder(x)
        rows, table = functional.normalize(z), functional.normalize(self.codes.weight)
        distances = rows.square().sum(1, keepdim=True) - 2.0 * rows @ table.t() + table.square().sum(1)
        found = self.codes((-distances).max(1)[1])
        return self.decoder(z + (found - z).detach()), functional.mse_loss(z, found.detach())


class Retrieval(nn.Module):
    """What a layer makes of the differences between a query and the nearest of the keys that its encoder made."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder = nn.Sequential(dense(10, 64, 32), nn.LayerNorm(32))
        self.layer = nn.Linear(32, 32)

    def forward(self, x: Tensor, candidates: Tensor) -> Tensor:
        query, keys = self.encoder(x), self.encoder(candidates)
        near = keys[torch.cdist(query, keys).topk(8, largest=False).indices]
        return self.layer(query[:, None] - near)


class Neighbourhood(nn.Module):
    """The mean, over a point's neighbours, of what a layer makes of points."""

    def __init__(self) -> None:
        super().__init__()
        self.features, self.out = nn.Linear(2, 32), nn.Linear(32, 8)

    def forward(self, x: Tensor) -> Tensor:
        near = torch.cdist(x, x).topk(8, largest=False).indices
        return self.out(self.features(x)[torch.arange(len(x))[:, None, None], near].mean(2))


def squared_distance(a: Tensor, b: Tensor) -> Tensor:
    return torch.cdist(a, b.view(8, 8, 32).mean(1)).square()


def contrast(a: Tensor, b: Tensor) -> Tensor:
    both = functional.normalize(torch.cat([a, b]), dim=-1)
    return both @ both.t()


def pairs() -> tuple[Tensor, ...]:
    return torch.randn(64, 20), torch.randn(64, 20)


MODELS: dict[str, Callable[[], Made]] = {
    "cosine": lambda: (Towers(functional.cosine_similarity), pairs()),
    "products, summed": lambda: (Towers(lambda a, b: (a * b).sum(-1), nn.Tanh), pairs()),
    "distances to prototypes": lambda: (Towers(squared_distance), pairs()),
    "similarities within a batch": lambda: (Towers(contrast), pairs()),
    "late interaction": lambda: (LateInteraction(), (torch.randint(100, (4, 6)), torch.randint(100, (4, 10)))),
    "cross correlation": lambda: (CrossCorrelation(), (torch.randn(4, 3, 15, 15), torch.randn(4, 3, 31, 31))),
    "edge convolution": lambda: (EdgeConvolution(), (torch.randn(4, 32, 3),)),
    "powers": lambda: (Powers(), (torch.randn(16, 8), torch.rand(16, 10))),
    "codebooks": lambda: (Quantised(), (torch.randn(64, 20),)),
    "codes": lambda: (Codes(), (torch.randn(64, 20),)),
    "neighbours": lambda: (Neighbourhood(), (torch.randn(4, 64, 2),)),
    "retrieval": lambda: (Retrieval(), (torch.randn(16, 10), torch.randn(64, 10))),
}


def verdict(name: str) -> wp.checks.Verdict:
    torch.manual_seed(0)
    model, inputs = MODELS[name]()
    return wp.check(model, *inputs, plan=wp.plan(model, *inputs))


@pytest.mark.slow
@pytest.mark.parametrize("name", MODELS)
def test_signals_that_weights_decide_together_are_as_predicted(name: str) -> None:
    assert verdict(name).ok


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(MODELS.keys() - {"codebooks", "codes", "edge convolution"}))
def test_without_draws_of_the_weights_they_are_not(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(joint_draws, "draws_weights", lambda run, node: False)
    monkeypatch.setattr(drawn_nodes, "meets_itself", lambda run, node: False)
    assert not verdict(name).ok


@pytest.mark.slow
def test_a_plan_does_not_depend_on_what_was_drawn_before() -> None:
    torch.manual_seed(0)
    model, inputs = MODELS["cosine"]()
    graph = wp.trace(model, *inputs)
    assert wp.plan(graph).to_json() == wp.plan(graph).to_json()


def test_a_long_loop_of_wide_weights_is_left_to_the_rules() -> None:
    class Loop(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.cell = nn.Linear(256, 256)

        def forward(self, x: Tensor) -> Tensor:
            states = [x]
            for _ in range(12):
                states.append(torch.tanh(self.cell(states[-1])))
            return states[-1] @ states[-2].t()

    graph = wp.trace(Loop(), torch.randn(16, 256))
    plan = wp.plan(graph)
    assert wp.propagate(graph, weights=plan)["matmul"].tag != "sampled"


def test_scores_of_known_tokens_are_no_codebook() -> None:
    class Router(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embedding, self.gate = nn.Embedding(50, 32), nn.Linear(32, 8, bias=False)

        def forward(self, tokens: Tensor) -> Tensor:
            scores = self.gate(self.embedding(tokens)).sigmoid()
            return scores.gather(-1, scores.topk(3, -1).indices)

    assert not codebook_picks(wp.trace(Router(), torch.randint(50, (4, 12))))
    model, inputs = MODELS["codebooks"]()
    assert len(codebook_picks(wp.trace(model, *inputs))) == len(model.books)


def test_draws_are_kept_for_the_next_node_and_change_nothing(monkeypatch):
    """What lies before two nodes that meet themselves is drawn and run once, and the signals are those of two draws."""
    net = Towers(lambda a, b: (a @ b.T, (a + 1.0) @ b.T))
    graph, ran = wp.trace(net, torch.randn(8, 20), torch.randn(6, 20)), []
    run_one = joint_draws._one_by_one
    monkeypatch.setattr(joint_draws, "_one_by_one", lambda *given: ran.append(given[0].index) or run_one(*given))
    monkeypatch.setattr(joint_draws, "_at_once", lambda *given: None)
    kept = [(s.name, s.mean, s.var) for s in wp.propagate(graph)]
    once = len(ran)
    assert once == len(set(ran))
    monkeypatch.setattr(joint_draws, "_again", lambda run, key, make: make())
    assert [(s.name, s.mean, s.var) for s in wp.propagate(graph)] == kept
    assert len(ran) > 2 * once
