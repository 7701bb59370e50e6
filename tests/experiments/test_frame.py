"""The frame: finding experiments, settings, journals, results, and what is bad input."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
from experiments.cli import app
from experiments.errors import ExperimentError
from experiments.journal import Journal, run_key
from experiments.papers import best, page
from experiments.registry import Experiment, Judgement, experiment, experiments, find
from experiments.results import Result, found, path_of, read, write
from experiments.settings import FOLDER, as_plain, load_settings
from typer.testing import CliRunner

import wellposed as wp
from experiments import engine, registry

ROOT = Path(__file__).resolve().parents[2]


class Counting(Experiment):
    """An experiment that notes which units it ran."""

    title, source, claim, paper, use, reversal = "Counting", "none", "numbers go up", "1", "Count.", "more"
    ran: list[int]

    def __init__(self):
        self.ran = []
        self.fails_at = None

    def units(self, settings):
        return [{"n": n} for n in range(3)]

    def run(self, settings, unit, data):
        if unit["n"] == self.fails_at:
            raise KeyboardInterrupt
        self.ran.append(unit["n"])
        return {"value": unit["n"] * settings.seed, "far": float("inf")}

    def judge(self, settings, rows):
        return Judgement(f"{len(rows)} rows", "agrees", "They do.")

    def draw(self, settings, rows, figure):
        figure.subplots().plot([row["value"] for row in rows])


@pytest.fixture
def counting(monkeypatch, tmp_path):
    """Register `Counting` as A0, with settings at smoke and laptop scale."""
    for scale in ("smoke", "laptop"):
        (tmp_path / "a0").mkdir(exist_ok=True)
        text = "seed: 2\ndata: {source: synthetic, train: 1, test: 1, side: 8}\n"
        (tmp_path / "a0" / f"{scale}.yaml").write_text(text)
    monkeypatch.setattr("experiments.settings.FOLDER", tmp_path)
    experiments()
    monkeypatch.setattr(registry, "_EXPERIMENTS", dict(registry._EXPERIMENTS))
    experiment("A0")(Counting)
    return find("a0")


@pytest.fixture
def run(tmp_path):
    """Run A0 with folders of the test's own."""

    def run(scale="laptop", **options):
        folders = {"journals": tmp_path / "journals", "results": tmp_path / "results"}
        return engine.run("A0", scale, **folders, say=lambda text: None, **options)

    return run


def test_a_run_gives_rows_of_units_and_findings_as_strict_json(counting, run, tmp_path):
    result = run()
    assert result.rows == [{"n": n, "value": 2 * n, "far": "inf"} for n in range(3)]
    assert result == read(path_of("A0", "laptop", tmp_path / "results"))
    assert result.environment["wellposed"] == wp.__version__
    assert result.settings["seed"] == 2
    assert result.data == "synthetic"


def test_a_finished_run_is_not_repeated_unless_asked(counting, run):
    run()
    run()
    assert counting.ran == [0, 1, 2]
    run(again=True)
    assert counting.ran == [0, 1, 2] * 2


def test_other_settings_or_data_are_run_anew(counting, run):
    run()
    assert run(overrides=["seed=3"]).rows[2]["value"] == 6
    assert run(overrides=["seed=3"], data="elsewhere/other").data == "other"
    assert counting.ran == [0, 1, 2] * 3


def test_a_killed_run_goes_on_with_the_first_missing_unit(counting, run):
    counting.fails_at = 2
    with pytest.raises(KeyboardInterrupt):
        run()
    counting.fails_at = None
    result = run()
    assert counting.ran == [0, 1, 2]
    assert [row["n"] for row in result.rows] == [0, 1, 2]


def test_a_line_cut_off_by_a_kill_is_dropped(tmp_path):
    header = {"experiment": "A0", "scale": "smoke"}
    journal = Journal(tmp_path, header)
    journal.add({"n": 0}, {"value": 1}, 0.5)
    journal.add({"n": 1}, {"value": 2}, 0.5)
    journal.path.write_bytes(journal.path.read_bytes()[:-5])
    again = Journal(tmp_path, header)
    assert {"n": 0} in again
    assert {"n": 1} not in again
    again.add({"n": 1}, {"value": 3}, 0.5)
    assert Journal(tmp_path, header).row({"n": 1}) == {"n": 1, "value": 3}


def test_a_result_of_another_version_is_kept_marked_and_not_mixed(counting, run, tmp_path, monkeypatch):
    monkeypatch.setattr(wp, "__version__", "0.0.9")
    old = run()
    monkeypatch.undo()
    (tmp_path / "a0").exists()
    monkeypatch.setattr("experiments.settings.FOLDER", tmp_path)
    monkeypatch.setattr(registry, "_EXPERIMENTS", registry._EXPERIMENTS | {"A0": counting})
    assert not old.current
    assert "made by wellposed 0.0.9" in page(tmp_path / "results", tmp_path)
    new = run()
    assert counting.ran == [0, 1, 2] * 2  # its journal was not taken either
    assert new.current
    results = tmp_path / "results"
    assert read(path_of("A0", "laptop", results, version="0.0.9")) == old
    assert best(found(results), "A0") == new
    assert "made by wellposed" not in page(results, tmp_path)


def test_smoke_results_lie_beside_the_journals_and_are_not_shown(counting, tmp_path):
    engine.run("A0", "smoke", journals=tmp_path / "journals", say=lambda text: None)
    assert path_of("A0", "smoke", tmp_path / "journals").exists()
    assert not path_of("A0", "smoke").exists()
    assert best(found(tmp_path / "journals"), "A0") is None


@pytest.mark.parametrize("told", [{"overrides": ["seed=3"]}, {"data": "elsewhere/other"}])
def test_a_run_with_overrides_or_other_data_is_no_evidence_of_its_scale(counting, tmp_path, monkeypatch, told):
    monkeypatch.setattr(engine, "FOLDER", tmp_path / "kept")
    options = {"journals": tmp_path / "journals", "say": lambda text: None}
    engine.run("A0", "laptop", **options)
    engine.run("A0", "laptop", **options, **told)
    assert [path.name for path in (tmp_path / "kept").iterdir()] == ["a0-laptop.json"]
    assert read(tmp_path / "kept" / "a0-laptop.json").settings["seed"] == 2
    assert (tmp_path / "journals" / "a0-laptop.json").exists()


def test_a_repeated_run_begins_its_trainings_anew(counting, run, tmp_path, monkeypatch):
    monkeypatch.setattr(engine, "CHECKPOINTS", tmp_path)
    mine, other = (
        tmp_path / run_key("A0", as_plain(load_settings("A0", "laptop", told)), "synthetic", wp.__version__)
        for told in ((), ("seed=3",))
    )
    for folder in (mine, other):
        folder.mkdir()
    run(again=True)
    assert not mine.exists()
    assert other.exists()


def words(told):
    """Return a text without the semicolons that the page divides into items, and without their marks."""
    return " ".join(told.replace(";", " ").replace("- ", " ").split())


def test_the_page_holds_every_experiment_run_or_not(counting, run, tmp_path):
    run()
    text = page(tmp_path / "results", tmp_path)
    for name, row in experiments().items():
        assert f"| [{name}](#{name.lower()}) | {row.title}" in text
        assert words(f"Paper: {row.paper}") in words(text)
    assert "- Ours: 3 rows" in text
    assert "Outcome: **agrees**. They do." in text
    assert "Ours: not run at any scale" in text


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: find("A99"), "no experiment 'A99'; "),
        (lambda: engine.run("A3", "huge"), "no scale 'huge'; known: smoke, laptop, overnight, gpu, paper"),
        (lambda: engine.run("A3", "smoke", engine="slurm"), "no engine 'slurm'; known: local, ray"),
        (lambda: engine.run("A3", "smoke", overrides=["depht=3"]), "Could not override 'depht'"),
        (lambda: load_settings("A98", "gpu"), "A98 has no settings at scale 'gpu'; it has none"),
    ],
)
def test_bad_input_is_named(call, message):
    with pytest.raises(ExperimentError) as raised:
        call()
    assert message in str(raised.value)


def test_a_second_experiment_of_one_id_is_refused(counting):
    with pytest.raises(ExperimentError, match="A0 is registered twice"):
        experiment("A0")(Counting)


def test_a_file_that_holds_no_result_is_named(tmp_path):
    (tmp_path / "a0-laptop.json").write_text('{"rows": []}')
    with pytest.raises(ExperimentError, match=r"a0-laptop\.json holds no result"):
        found(tmp_path)


def test_a_result_is_written_in_one_move(tmp_path):
    result = Result("A0", "laptop", {}, "x", {"wellposed": wp.__version__}, "now", 1.0, [{"n": 1}])
    path = write(result, tmp_path)
    assert [file.name for file in tmp_path.iterdir()] == [path.name]
    assert json.loads(path.read_text())["rows"] == [{"n": 1}]


@pytest.mark.slow
def test_every_experiment_has_settings_at_every_scale():
    for name in experiments():
        files = {path.stem for path in (FOLDER / name.lower()).glob("*.yaml")}
        assert set(registry.SCALES) - {"overnight"} <= files, name  # where a size between decides something
        for scale in files.intersection(registry.SCALES):
            settings = load_settings(name, scale)
            assert {"source", "train", "test", "side"} <= set(settings.data)
            assert isinstance(settings.seed, int)


def test_a_result_of_settings_that_have_changed_is_marked(counting, run, tmp_path):
    run()
    folder, figures = tmp_path / "results", tmp_path / "figures"
    (tmp_path / "a0" / "laptop.yaml").write_text(
        "# Two of everything.\nseed: 2\ndata: {source: synthetic, train: 1, test: 1, side: 8}\n"
    )
    assert "- Scale (laptop): Two of everything." in page(folder, figures)
    (tmp_path / "a0" / "laptop.yaml").write_text(
        "# Three of everything.\nseed: 3\ndata: {source: synthetic, train: 1, test: 1, side: 8}\n"
    )
    assert "- Scale (laptop): with settings that have changed since." in page(folder, figures)


def test_the_command_line_says_what_is_wrong():
    done = CliRunner().invoke(app, ["run", "A3", "--scale", "huge"])
    assert done.exit_code == 1
    assert "no scale 'huge'" in done.stderr


@pytest.mark.slow
def test_listing_needs_no_heavy_library():
    code = (
        "import sys; from experiments.cli import app; app(['list'], standalone_mode=False); "
        "sys.exit(any(name in sys.modules for name in ('lightning', 'datasets', 'matplotlib', 'timm', 'ray')))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, env={"PYTHONPATH": "src"}, check=False, capture_output=True
    )
    assert done.returncode == 0, done.stderr
