"""Which activations of models of different depth are compared."""

import pytest
import torch
from torch import nn

import wellposed as wp
from wellposed.rates.alignment import Layout, aligned, layout


def names(count):
    return ["read", *(f"blocks.{i}.{part}" for i in range(count) for part in ("up", "down")), "head"]


def plain(found):
    return Layout(dict.fromkeys(found, "linear"), dict.fromkeys(found, 0), frozenset())


def test_blocks_are_matched_by_their_share_of_the_depth():
    found = {place.names[0]: place for place in aligned([plain(names(3)), plain(names(5)), plain(names(9))])}
    assert list(found) == names(3)
    assert found["blocks.0.up"].names == ("blocks.0.up",) * 3
    assert found["blocks.1.up"].names == ("blocks.1.up", "blocks.2.up", "blocks.4.up")
    assert found["blocks.2.down"].names == ("blocks.2.down", "blocks.4.down", "blocks.8.down")
    assert found["head"].names == ("head",) * 3
    assert [place.repeated for place in found.values()] == [False] + [True] * 6 + [False]


def test_a_place_between_two_blocks_is_interpolated():
    (first, middle, last) = aligned([plain([f"b.{i}" for i in range(3)]), plain([f"b.{i}" for i in range(4)])])
    assert middle.nodes[1] == (("b.1", pytest.approx(0.5)), ("b.2", pytest.approx(0.5)))
    assert (first.names[1], last.names[1]) == ("b.0", "b.3")


def test_numbers_that_do_not_differ_stay():
    """Of a sequence within each block, the second layer is compared with the second, not with the first."""
    models = [plain([f"b.{i}.mlp.{j}" for i in range(count) for j in (0, 2)]) for count in (2, 4)]
    pairs = {place.names for place in aligned(models)}
    expected = {(0, 0, 0), (0, 0, 2), (1, 3, 0), (1, 3, 2)}
    assert pairs == {(f"b.{small}.mlp.{j}", f"b.{large}.mlp.{j}") for small, large, j in expected}


def test_layers_of_a_flat_sequence_are_told_apart_by_operator():
    def net(depth):
        layers = [part for _ in range(depth) for part in (nn.Linear(4, 4), nn.Tanh())]
        return layout(wp.trace(nn.Sequential(*layers, nn.Linear(4, 2)), torch.zeros(3, 4)))

    pairs = [place.names for place in aligned([net(2), net(4)])]
    assert pairs == [("0", "0"), ("1", "1"), ("2", "4"), ("3", "7"), ("4", "8")]


def test_a_part_that_one_model_lacks_is_not_compared():
    assert [place.names for place in aligned([plain(["a", "b"]), plain(["b", "c"])])] == [("b", "b")]


class Block(nn.Module):
    def __init__(self, parallel=False):
        super().__init__()
        self.norm, self.up, self.down, self.mix = nn.LayerNorm(4), nn.Linear(4, 8), nn.Linear(8, 4), nn.Linear(4, 4)
        self.drop, self.parallel = nn.Dropout(0.1), parallel

    def forward(self, x):
        h = self.norm(x)
        if self.parallel:
            return x + self.mix(h) + self.drop(self.down(self.up(h).relu()))
        x = x + self.mix(h)
        return x + self.drop(self.down(self.up(self.norm(x)).relu()))


@pytest.mark.parametrize("parallel", [False, True])
def test_ends_of_branches_and_sums_that_are_passed(parallel):
    model = nn.Sequential(nn.Linear(4, 4), *[Block(parallel) for _ in range(3)], nn.Linear(4, 2))
    found = layout(wp.trace(model, torch.zeros(2, 4)))
    assert found.ends == {f"{i}.{part}" for i in (1, 2, 3) for part in ("mix", "down", "drop")}
    assert found.sums == 6
    assert found.passed["0"] == found.passed["1.up"] - (0 if parallel else 1) == 0
    assert found.passed["4"] == 6


def test_a_sum_that_is_no_skip_ends_no_branch():
    class Two(nn.Module):
        def __init__(self):
            super().__init__()
            self.one, self.other = nn.Linear(4, 4), nn.Linear(4, 4)

        def forward(self, x):
            return self.one(x) + self.other(x)

    found = layout(wp.trace(Two(), torch.zeros(2, 4)))
    assert not found.ends
    assert found.sums == 0


def test_places_of_blocks_are_shares_of_the_way():
    """Block 1 of 2 has passed half of the sums, as block 2 of 4 has; the sum after it all, as that after block 3."""
    models = [
        layout(wp.trace(nn.Sequential(nn.Linear(4, 4), *[Block(True) for _ in range(n)]), torch.zeros(2, 4)))
        for n in (2, 4)
    ]
    found = {place.names[0]: place.names[1] for place in aligned(models)}
    assert found["1.up"] == "1.up"
    assert found["2.up"] == "3.up"
    assert found["1:add#2"] == "2:add#2"
    assert found["2:add#2"] == "4:add#2"
