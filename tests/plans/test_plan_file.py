"""Plans as data: files, comparison, tables, and what a prescription cannot say."""

import io
import json
import os
import threading
from pathlib import Path

import pydantic
import pytest
import torch
from rich.console import Console

from wellposed.errors import PlanFileError
from wellposed.plans import (
    Centering,
    Constant,
    Default,
    Drawn,
    Kept,
    Plan,
    Prescription,
    Rescaled,
    Tied,
    keep,
)

VERSION_1 = Path(__file__).parent / "version_1"
"""Plans as they were saved while one class held every field of every kind."""


def weight(**changes):
    fields = {
        "name": "0.weight",
        "shape": (4, 3),
        "distribution": "normal",
        "std": 0.5,
        "output_axis": 0,
        "role": "weight",
        "op": "0 (linear.default)",
        "fan_in": 3,
        "fan_out": 4,
        "reason": "variance 1/fan_in = 1/3 (eq. 16)",
    }
    return Drawn(**(fields | changes))


def plan(*prescriptions, **changes):
    fields = {"method": "lecun", "options": {"gain": 1.0}, "seed": 3, "model": "Net", "warnings": ("mind the gap",)}
    said = prescriptions or (weight(), keep("1.scale", (), "nobody uses it"))
    return Plan(**(fields | changes), prescriptions={p.name: p for p in said})


def test_a_plan_comes_back_equal(tmp_path):
    centred = Centering(name="0.bias", shape=(4,), weight="0.weight", value=0.4, reason="c")
    tied = Tied(name="head", shape=(4, 3), tied_to="0.weight", reason="one tensor")
    before = plan(weight(std=0.1 + 0.2), centred, tied)
    before.save(tmp_path / "plan.json")
    after = Plan.load(tmp_path / "plan.json")
    assert after == before
    assert isinstance(after.prescriptions["0.weight"].shape, tuple)
    assert list(after.prescriptions) == list(before.prescriptions)


KINDS = {
    "normal": Drawn,
    "truncated_normal": Drawn,
    "uniform": Drawn,
    "orthogonal": Drawn,
    "constant": Constant,
    "centering": Centering,
    "rescale": Rescaled,
    "keep": Kept,
    "default": Default,
    "tied": Tied,
}


@pytest.mark.parametrize("file", sorted(path.stem for path in VERSION_1.glob("*.json")))
def test_files_of_version_1_load_and_are_saved_alike(file, tmp_path):
    made = Plan.load(VERSION_1 / f"{file}.json")
    stated = json.loads((VERSION_1 / f"{file}.json").read_text())["prescriptions"]
    assert type(list(made.prescriptions.values())[-1]) is KINDS[file]
    for name, fields in stated.items():
        assert isinstance(made.prescriptions[name], Prescription)
        for field, value in fields.items():
            read = getattr(made.prescriptions[name], field)
            assert (list(read) if isinstance(read, tuple) else read) == value
    made.save(tmp_path / "again.json")
    assert (tmp_path / "again.json").read_bytes() == (VERSION_1 / f"{file}.json").read_bytes()


def test_every_kind_of_prescription_has_a_file_of_version_1():
    assert {path.stem for path in VERSION_1.glob("*.json")} == set(KINDS)


@pytest.mark.parametrize(
    ("file", "words"),
    [
        ("normal", "normal, mean 0.1, std 0.5774"),
        ("truncated_normal", "truncated normal, std 0.5774"),
        ("orthogonal", "orthogonal, std 0.5774"),
        ("constant", "constant 0.5"),
        ("centering", "-0.3989 × sums of 0.weight"),
        ("rescale", "rescaled to rms 0.25"),
        ("keep", "keep"),
        ("default", "default"),
        ("tied", "tied to 0.weight"),
    ],
)
def test_every_kind_says_how_in_a_few_characters(file, words):
    assert list(Plan.load(VERSION_1 / f"{file}.json").prescriptions.values())[-1].how == words


def test_the_file_is_readable(tmp_path):
    plan().save(tmp_path / "plan.json")
    text = (tmp_path / "plan.json").read_text()
    assert '\n      "std": 0.5,\n' in text
    assert json.loads(text)["schema_version"] == 1
    assert text.rstrip("\n") == plan().to_json()


def test_saving_replaces_the_file_whole_or_not_at_all(tmp_path, monkeypatch):
    path = tmp_path / "plan.json"
    plan().save(path)
    before = path.read_text()

    def broken(*_):
        raise OSError("disk full")

    monkeypatch.setattr(os, "replace", broken)
    with pytest.raises(OSError, match="disk full"):
        plan(seed=4).save(path)
    assert path.read_text() == before
    assert os.listdir(tmp_path) == ["plan.json"]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("{", "not JSON .*corrupt"),
        ("\x00", "not JSON"),
        ("[]", "expected a plan .*found something else"),
        ('{"kind": "other.thing"}', "found kind 'other.thing'"),
        ('{"kind": "wellposed.plan", "schema_version": 99}', "schema version 99 is newer .*reads up to 2; upgrade"),
        ('{"kind": "wellposed.plan", "schema_version": 1}', "method: Field required"),
    ],
)
def test_files_that_are_no_plan_are_refused(tmp_path, content, message):
    path = tmp_path / "plan.json"
    path.write_text(content)
    with pytest.raises(PlanFileError, match=message) as error:
        Plan.load(path)
    assert str(path) in str(error.value)


@pytest.mark.parametrize(
    ("path", "value", "message"),
    [
        (("prescriptions", "0.weight", "std"), -1.0, "prescriptions.0.weight.std"),
        (("prescriptions", "0.weight", "std"), None, "prescriptions.0.weight.std: Input should be a valid number"),
        (("prescriptions", "0.weight", "std"), "big", "prescriptions.0.weight.std"),
        (("prescriptions", "0.weight", "distribution"), "gaussian", "0.weight: distribution should be one of 'normal'"),
        (("prescriptions", "0.weight", "name"), "0.wait", "is for '0.wait'"),
        (("prescriptions", "0.weight", "colour"), "red", "colour"),
        (("prescriptions", "0.weight", "output_axis"), 2, "not an axis"),
        (("prescriptions", "0.weight", "action"), "keep", "prescriptions.0.weight.action: Input should be 'write'"),
        (("prescriptions", "0.weight", "constant"), 1.0, "prescriptions.0.weight.constant: Extra inputs"),
        (("prescriptions", "0.weight", "channel_std"), [1.0], "one number of at least 0 for each index along it"),
        (("prescriptions", "1.scale", "tied_to"), "0.weight", "prescriptions.1.scale.tied_to: Extra inputs"),
        (("seed",), "many", "seed"),
    ],
)
def test_damaged_files_say_where(tmp_path, path, value, message):
    content = json.loads(plan().to_json())
    at = content
    for key in path[:-1]:
        at = at[key]
    at[path[-1]] = value
    (tmp_path / "plan.json").write_text(json.dumps(content))
    with pytest.raises(PlanFileError, match=message):
        Plan.load(tmp_path / "plan.json")


@pytest.mark.skipif(os.name != "posix", reason="file modes")
def test_saved_files_have_the_mode_of_any_new_file(tmp_path):
    plan().save(tmp_path / "plan.json")
    (tmp_path / "other").touch()
    assert (tmp_path / "plan.json").stat().st_mode == (tmp_path / "other").stat().st_mode


def test_a_missing_file_is_a_missing_file(tmp_path):
    with pytest.raises(FileNotFoundError):
        Plan.load(tmp_path / "none.json")


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_prescriptions_hold_finite_numbers(bad):
    with pytest.raises(pydantic.ValidationError, match="finite"):
        weight(std=bad)


@pytest.mark.parametrize(
    ("kind", "fields", "message"),
    [
        (Drawn, {"distribution": "normal"}, "std"),
        (Drawn, {"distribution": "constant", "std": 1.0}, "distribution"),
        (Drawn, {"distribution": "orthogonal", "std": 1.0}, "needs output_axis, and mean 0"),
        (Constant, {"constant": 1.0, "std": 1.0}, "std"),
        (Centering, {"weight": "w"}, "value"),
        (Kept, {"tied_to": "w"}, "tied_to"),
        (Tied, {}, "tied_to"),
    ],
)
def test_what_does_not_go_together_cannot_be_built(kind, fields, message):
    with pytest.raises(pydantic.ValidationError, match=message):
        kind(name="w", shape=(2, 2), reason="test", **fields)


def test_a_prescription_is_made_as_one_of_its_kinds():
    with pytest.raises(TypeError, match="Drawn, Constant, Centering, Rescaled, Kept, Default or Tied"):
        Prescription(name="w", shape=(), action="keep", distribution="keep", reason="test")


def test_a_changed_prescription_refuses_what_its_kind_does_not_have():
    assert weight().changed(std=0.25) == weight(std=0.25)
    with pytest.raises(pydantic.ValidationError, match="constant"):
        weight().changed(constant=0.0)


def test_plans_cannot_be_changed():
    made = plan()
    with pytest.raises(pydantic.ValidationError, match="frozen"):
        made.seed = 1
    with pytest.raises(pydantic.ValidationError, match="frozen"):
        made.prescriptions["0.weight"].std = 1.0


@pytest.mark.parametrize(
    ("other", "message"),
    [
        ({"tied_to": "nowhere"}, "refers to 'nowhere', which the plan does not hold"),
        ({"tied_to": "1.scale"}, "another shape"),
    ],
)
def test_ties_lead_to_a_tensor_of_the_same_shape(other, message):
    tied = Tied(name="t", shape=(4, 3), reason="one tensor", **other)
    with pytest.raises(pydantic.ValidationError, match=message):
        plan(weight(), keep("1.scale", (), "x"), tied)


def test_centering_needs_a_weight_with_an_output_axis():
    centred = Centering(name="b", shape=(4,), weight="0.weight", value=1.0, reason="c")
    with pytest.raises(pydantic.ValidationError, match="no output_axis"):
        plan(weight(output_axis=None), centred)


def test_equal_plans_do_not_differ():
    difference = plan().diff(plan())
    assert not difference
    assert str(difference) == "the plans are equal"


def test_differences_name_parameter_and_field():
    left = plan(weight(), keep("a", (1,), "x"))
    right = plan(weight(std=0.25, fan_in=6), keep("b", (2,), "x"), seed=4)
    difference = left.diff(right)
    assert difference
    assert (difference.only_left, difference.only_right) == (("a",), ("b",))
    assert str(difference).splitlines() == [
        "- a",
        "+ b",
        "plan: seed: 3 -> 4",
        "0.weight: std: 0.5 -> 0.25",
        "0.weight: fan_in: 3 -> 6",
    ]


@pytest.mark.parametrize("width", [40, 60, 80, 200])
def test_the_table_fits_the_terminal_and_names_every_parameter(width):
    long = weight(name="encoder.layers.11.attention.projection.parametrizations.weight.original0")
    console = Console(width=width, record=True, file=io.StringIO())
    console.print(plan(long, keep("1.scale", (), "nobody uses it")).table())
    lines = console.export_text().splitlines()
    assert max(len(line) for line in lines) <= width
    text = "".join(line.split("│")[1].strip() if "│" in line else "" for line in lines)
    assert long.name in text
    assert "1.scale" in text


def test_a_plan_holds_no_tensors():
    def walk(value):
        assert not isinstance(value, torch.Tensor | torch.nn.Module)
        for inner in value.values() if isinstance(value, dict) else value if isinstance(value, list) else ():
            walk(inner)

    walk(plan().model_dump(mode="json"))


HOSTILE = {
    "nested": ("[" * 100_000, "not JSON"),
    "digits": ('{"kind": "wellposed.plan", "seed": ' + "9" * 10_000 + "}", "not JSON"),
    "twice": ('{"kind": "wellposed.plan", "seed": 1, "seed": 2}', "the key 'seed' stands twice"),
    "half a character": (r'{"kind": "wellposed.plan", "model": "\ud800"}', "not JSON .*surrogates not allowed"),
    "long": ('{"kind": "' + "x" * 10_000 + '"}', r"found kind 'x{20,40}…x{20,40}'; give a file"),
    "obeyed": (
        json.dumps({"kind": "wellposed.plan", "method": "", "seed": 0, "model": "", "prescriptions": {"\x1b[2J": 1}}),
        r"prescriptions\.\\x1b\[2J: ",
    ),
}


@pytest.mark.parametrize("what", HOSTILE)
def test_hostile_files_are_refused(tmp_path, what):
    text, message = HOSTILE[what]
    (tmp_path / "plan.json").write_text(text)
    with pytest.raises(PlanFileError, match=message):
        Plan.load(tmp_path / "plan.json")


def test_saving_onto_a_symbolic_link_follows_it(tmp_path):
    file, link = tmp_path / "there" / "plan.json", tmp_path / "plan.json"
    file.parent.mkdir()
    file.write_text("old")
    link.symlink_to(file)
    plan = Plan(method="t", seed=0, model="M", prescriptions={})
    plan.save(link)
    assert link.is_symlink()
    assert Plan.load(file) == plan


def test_a_mark_before_the_text_is_read_over(tmp_path):
    plan = Plan(method="t", seed=0, model="M", prescriptions={})
    (tmp_path / "plan.json").write_text(plan.to_json(), encoding="utf-8-sig")
    assert Plan.load(tmp_path / "plan.json") == plan


@pytest.mark.skipif(os.name != "posix", reason="file modes, pipes and links")
def test_saving_keeps_what_a_file_is(tmp_path):
    plan = Plan(method="t", seed=0, model="M", prescriptions={})
    (tmp_path / "plan.json").touch(mode=0o600)
    plan.save(tmp_path / "plan.json")
    assert (tmp_path / "plan.json").stat().st_mode & 0o777 == 0o600
    pipe, received = tmp_path / "pipe", []
    os.mkfifo(pipe)
    reader = threading.Thread(target=lambda: received.append(pipe.read_text()))
    reader.start()
    plan.save(pipe)
    reader.join()
    assert received == [plan.to_json() + "\n"]
    assert pipe.is_fifo()
    (tmp_path / "loop").symlink_to(tmp_path / "loop")
    with pytest.raises(OSError, match="symbolic links"):
        plan.save(tmp_path / "loop")


def test_names_may_be_as_long_as_the_file_system_has_them(tmp_path):
    plan = Plan(method="t", seed=0, model="M", prescriptions={})
    plan.save(tmp_path / ("x" * 250))
    assert Plan.load(tmp_path / ("x" * 250)) == plan
    assert len(list(tmp_path.iterdir())) == 1


def test_differences_show_nothing_that_a_terminal_obeys():
    left, right = (Plan(method=method, seed=0, model="M", prescriptions={}) for method in ("\x1b[2J\n", "\u202e"))
    assert str(left.diff(right)) == "plan: method: \\x1b[2J  -> \\u202e"


def test_a_bias_is_not_centred_on_a_bias_that_is_centred():
    bias = Centering(name="b", shape=(3,), weight="b", value=1.0, output_axis=0, reason="t")
    with pytest.raises(ValueError, match="'b' is centred on 'b', which is itself centred"):
        Plan(method="t", seed=0, model="M", prescriptions={"b": bias})


def test_a_name_with_a_nul_is_no_file(tmp_path):
    path = f"{tmp_path}/a\0b.json"
    for use in (plan().save, Plan.load):
        with pytest.raises(OSError, match=r"the name of a file holds no NUL: '.*a\\\\x00b.json'"):
            use(path)


def test_a_file_without_an_end_is_not_read_to_it():
    with pytest.raises(OSError, match=r"larger than 256 MiB, or without an end: '/dev/zero'"):
        Plan.load("/dev/zero")
