"""The declared fields of a state: what the copying methods keep, and what is written from the declarations."""

from __future__ import annotations

import importlib.util
from dataclasses import fields
from pathlib import Path

import numpy as np
import pytest
import torch

from wellposed.signals.distributions.declared import declarations
from wellposed.signals.distributions.making import make_state
from wellposed.signals.distributions.state import PARTS, Blocks, Masked, State
from wellposed.signals.distributions.views import permute

ROOT = Path(__file__).parents[2]
_spec = importlib.util.spec_from_file_location("fields_script", ROOT / "scripts/fields.py")
assert _spec is not None
assert _spec.loader is not None
script = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(script)

IN_PARTS = {name: part for part, kind in PARTS.items() for name in declarations(kind)}
KINDS = (State, *PARTS.values())
DECLARED = {name: said for kind in KINDS for name, said in declarations(kind).items() if name != "serial"}
VERBS = {"moments": State.with_moments, "function": State.changed, "axes": State.amended}


@pytest.mark.parametrize("path", [pytest.param(path, id=path.name) for path in script.written()])
def test_what_is_written_from_the_declarations_is_up_to_date(path):
    assert path.read_text(encoding="utf-8") == script.written()[path], "run scripts/fields.py"


def test_a_block_that_is_missing_is_an_error():
    with pytest.raises(ValueError, match="fields"):
        script.replaced("no block", script.TABLE, "")


def test_every_field_of_a_state_is_declared():
    own = set(declarations(State)) | set(PARTS)
    assert own == {item.name for item in fields(State)}
    hidden = {item.name for kind in PARTS.values() for item in fields(kind) if item.init}
    assert hidden == set(IN_PARTS)


@pytest.mark.parametrize("name", DECLARED)
def test_a_field_is_read_from_its_part_and_survives_what_it_is_declared_to_survive(name):
    """A marker in the place of the field's value: copies hold it, or what the field is where nothing is known."""
    said, marker = DECLARED[name], object()
    state = make_state((2, 3)).amended(**{name: marker})
    assert name not in IN_PARTS or getattr(getattr(state, IN_PARTS[name]), name) is marker
    assert getattr(state, name) is marker
    for change in ("moments", "function"):
        made = VERBS[change](state)
        assert (getattr(made, name) is marker) == (change in said.survives), change
        assert getattr(VERBS[change](state, **{name: 3}), name) == 3
    assert getattr(state.amended(), name) is marker


@pytest.mark.parametrize("change", VERBS)
def test_a_part_that_is_given_is_kept_whole(change):
    state = make_state((2, 3), gauss=True)
    for part in PARTS:
        given = getattr(make_state((2, 3)), part)
        assert getattr(VERBS[change](state, **{part: given}), part) is given


def test_a_copy_stands_for_another_tensor_unless_it_is_amended():
    state = make_state((2, 3))
    assert state.amended(tag="assumed").serial == state.serial
    assert state.changed().serial > state.serial
    assert state.with_moments().serial > state.serial


def test_an_unknown_field_is_refused():
    with pytest.raises(KeyError, match="no_such"):
        make_state((2,)).changed(no_such=1)


def test_views_rewrite_the_fields_that_survive_no_change_of_axes():
    rewritten = {"axes", "attention", "blocks"}
    assert {name for name, said in DECLARED.items() if "axes" not in said.survives} == rewritten
    part, mask = make_state((2, 3)), torch.arange(6).reshape(2, 3) > 2
    whole = make_state((4, 3)).amended(blocks=Blocks((part, part), 0))
    turned = permute(whole, (1, 0))
    assert turned.axes == ((1,), (0,))
    assert (turned.blocks.axis, [block.shape for block in turned.blocks]) == (1, [(3, 2)] * 2)
    masked = permute(part.amended(attention=Masked(mask, part)), (1, 0)).masked
    assert masked.mask.equal(mask.T)
    assert masked.scores.shape == (3, 2)
    np.testing.assert_array_equal(masked.scores.mean, part.mean)
