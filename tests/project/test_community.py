"""What outside contributors expect: workflows, hooks, forms, the citation. Held against the files that they repeat."""

import re
import tomllib
from pathlib import Path

import pytest
import yaml
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from packaging.version import Version

import wellposed

ROOT = Path(__file__).resolve().parents[2]
WORKFLOWS = {
    path.name: yaml.safe_load(path.read_text(encoding="utf-8"))
    for path in sorted((ROOT / ".github/workflows").glob("*.yml"))
}
FORMS = sorted((ROOT / ".github/ISSUE_TEMPLATE").glob("[0-9]*.yml"))
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
CONSTRAINTS = dict(
    line.split("==") for line in (ROOT / "constraints.txt").read_text().splitlines() if line and line[0] != "#"
)
TARGETS = re.findall(r"^([a-z]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.M)
CITATION = yaml.safe_load((ROOT / "CITATION.cff").read_text(encoding="utf-8"))


def steps(workflow):
    return [step for job in WORKFLOWS[workflow]["jobs"].values() for step in job["steps"]]


def commands(workflow):
    return [line.strip() for step in steps(workflow) for line in step.get("run", "").splitlines()]


def triggers(workflow):
    return WORKFLOWS[workflow][True]  # `on` is a boolean in YAML 1.1


def lower_bound(requirement):
    (bound,) = [part.version for part in Requirement(requirement).specifier if part.operator == ">="]
    return Version(bound)


def required(name, extra=None):
    requirements = PROJECT["dependencies"] if extra is None else PROJECT["optional-dependencies"][extra]
    (found,) = [text for text in requirements if Requirement(text).name == name]
    return found


def test_the_three_workflows_are_there():
    assert set(WORKFLOWS) == {"ci.yml", "docs.yml", "release.yml"}


@pytest.mark.parametrize("workflow", WORKFLOWS)
def test_workflows_run_targets_and_scripts_that_exist(workflow):
    for command in commands(workflow):
        words = command.split()
        if words[0] == "make":
            assert set(words[1:]) <= set(TARGETS), command
        elif "/" in words[0] and not words[0].startswith(".venv/"):
            assert (ROOT / words[0]).stat().st_mode & 0o111, command


@pytest.mark.parametrize("workflow", WORKFLOWS)
def test_jobs_have_few_rights_and_an_end(workflow):
    assert WORKFLOWS[workflow]["permissions"] == {"contents": "read"}
    for name, job in WORKFLOWS[workflow]["jobs"].items():
        assert job["timeout-minutes"] <= 120, name
        for step in job["steps"]:
            if "uses" in step:
                assert re.fullmatch(r"[\w./-]+@(v\d+|release/v\d+)", step["uses"]), step["uses"]
            if step.get("uses", "").startswith("actions/checkout@"):
                assert step["with"]["persist-credentials"] is False


def test_ci_runs_what_is_promised():
    jobs = WORKFLOWS["ci.yml"]["jobs"]
    assert {"push", "pull_request"} <= set(triggers("ci.yml"))
    assert [step["run"] for step in jobs["check"]["steps"] if "run" in step] == [".ci/run"]
    assert "make installed" in commands("ci.yml")


def test_ci_runs_on_every_python_of_the_classifiers():
    pythons = WORKFLOWS["ci.yml"]["jobs"]["check"]["strategy"]["matrix"]["python"]
    classified = [text.rpartition(" ")[2] for text in PROJECT["classifiers"]]
    assert pythons == [version for version in classified if re.fullmatch(r"3\.\d+", version)]
    assert SpecifierSet(PROJECT["requires-python"]) == SpecifierSet(f">={pythons[0]}")
    others = [
        step["with"]["python-version"]
        for workflow in WORKFLOWS
        for step in steps(workflow)
        if "python-version" in step.get("with", {})
    ]
    assert set(others) <= {*pythons, "${{ matrix.python }}"}


def test_ci_runs_on_the_oldest_torch_the_newest_and_a_nightly_build():
    job = WORKFLOWS["ci.yml"]["jobs"]["torch"]
    rows = {row["torch"]: row for row in job["strategy"]["matrix"]["include"]}
    assert set(rows) == {"oldest", "newest", "nightly"}
    assert job["continue-on-error"] == "${{ matrix.torch == 'nightly' }}"

    torch, torchvision = map(Requirement, rows["oldest"]["install"].split())
    for pinned, promised in ((torch, required("torch")), (torchvision, required("torchvision", "zoo"))):
        assert pinned.name == Requirement(promised).name
        (version,) = [Version(part.version) for part in pinned.specifier]
        assert version.release[:2] == lower_bound(promised).release[:2]
        assert Requirement(promised).specifier.contains(version)
    oldest_python = WORKFLOWS["ci.yml"]["jobs"]["check"]["strategy"]["matrix"]["python"][0]
    assert rows["oldest"]["python"] == oldest_python
    for name in ("newest", "nightly"):
        assert rows[name]["install"].startswith("--upgrade ")


def test_the_page_on_stability_names_the_same_versions():
    page = (ROOT / "docs/stability.md").read_text(encoding="utf-8")
    rows = {cells[0]: cells for cells in (re.split(r" *\| *", line.strip("| ")) for line in page.splitlines())}
    assert rows["Python"][1] == str(SpecifierSet(PROJECT["requires-python"])).removeprefix(">=")
    assert rows["torch"][1] == str(lower_bound(required("torch")))
    named = re.search(r"those modules \((.*?)\)", " ".join(page.split()))[1]
    modules = [name.removeprefix("wellposed.") for name in re.findall(r"`([\w.]+)`", named)]
    assert {name for name in modules if name != "extend"} <= set(wellposed.__all__)


def test_docs_are_built_and_published_from_the_main_branch():
    assert triggers("docs.yml")["push"]["branches"] == ["main"]
    assert "make docs" in commands("docs.yml")
    (upload,) = [step for step in steps("docs.yml") if step.get("uses", "").startswith("actions/upload-pages")]
    assert upload["with"]["path"] == "site"


def test_a_release_is_a_tag_that_was_tested_and_needs_no_token():
    assert triggers("release.yml") == {"push": {"tags": ["v*"]}}
    jobs = WORKFLOWS["release.yml"]["jobs"]
    assert {".ci/run", "make installed", "make dist"} <= set(commands("release.yml"))
    assert jobs["publish"]["needs"] == "build"
    assert jobs["publish"]["permissions"] == {"id-token": "write"}
    assert "secrets." not in (ROOT / ".github/workflows/release.yml").read_text(encoding="utf-8")


def test_hooks_format_with_the_ruff_that_is_pinned():
    hooks = yaml.safe_load((ROOT / ".pre-commit-config.yaml").read_text(encoding="utf-8"))
    (ruff,) = [repo for repo in hooks["repos"] if "ruff" in repo["repo"]]
    assert ruff["rev"] == f"v{CONSTRAINTS['ruff']}"
    assert [hook["id"] for hook in ruff["hooks"]] == ["ruff-check", "ruff-format"]


@pytest.mark.parametrize("path", FORMS, ids=[path.stem for path in FORMS])
def test_form_asks_what_is_needed(path):
    form = yaml.safe_load(path.read_text(encoding="utf-8"))
    assert form["name"]
    assert form["description"]
    questions = [item for item in form["body"] if item["type"] != "markdown"]
    ids = [item["id"] for item in questions]
    assert len(set(ids)) == len(ids)
    assert any(item.get("validations", {}).get("required") for item in questions)
    asked = path.read_text(encoding="utf-8")
    if "feature" not in path.stem:
        assert "wellposed --version" in asked
        assert "wellposed ops" in asked
    if "prediction" in path.stem:
        assert "wellposed check" in asked


def test_there_is_a_form_for_each_kind():
    assert [path.stem for path in FORMS] == ["1-bug", "2-prediction", "3-feature"]


def test_citation_is_of_this_version_and_the_papers_of_the_readme():
    assert CITATION["version"] == wellposed.__version__
    assert CITATION["license"] == PROJECT["license"]
    assert CITATION["authors"] == PROJECT["authors"]
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    sources = readme[readme.index("Built on AutoInit") :]
    cited = {reference["url"]: reference for reference in CITATION["references"]}
    assert list(cited) == re.findall(r"https://arxiv\.org/abs/[\d.]+", sources)
    for reference in cited.values():
        before = " ".join(sources[: sources.index(reference["url"])].split())
        names = [author["family-names"] for author in reference["authors"]]
        listed = f"{', '.join(names[:-1])} & {names[-1]}"
        assert listed in before
        assert f"{listed}, {reference['collection-title']}" in before


def test_the_recipe_for_conda_is_of_this_version_and_asks_for_the_same():
    recipe = yaml.safe_load((ROOT / "conda/recipe.yaml").read_text(encoding="utf-8"))
    assert recipe["context"]["version"] == wellposed.__version__
    assert recipe["about"]["license"] == PROJECT["license"]
    assert recipe["about"]["license_file"] == PROJECT["license-files"]
    asked = {need.name: str(need.specifier) for need in map(Requirement, PROJECT["dependencies"])}
    asked["pytorch"] = asked.pop("torch")
    python, *needs = (text.split() for text in recipe["requirements"]["run"])
    assert python == ["python", PROJECT["requires-python"]]
    assert dict(needs) == asked
    (entry,) = recipe["build"]["python"]["entry_points"]
    assert dict([entry.split(" = ")]) == PROJECT["scripts"]


def test_the_recipe_for_conda_is_read_by_its_builder():
    builder = pytest.importorskip("rattler_build", reason="it is not installed: pip install 'wellposed[dev]'")
    (variant,) = builder.Stage0Recipe.from_file(str(ROOT / "conda/recipe.yaml")).render(builder.VariantConfig())
    read = variant.recipe.to_dict()
    assert (read["package"]["version"], read["build"]["noarch"]) == (wellposed.__version__, "python")
    assert read["tests"][0]["python"]["imports"] == ["wellposed"]


@pytest.mark.slow
def test_what_the_extra_for_tests_names_is_used():
    plugins = {"pytest-timeout": "timeout = ", "pytest-xdist": "-n $(WORKERS)"}
    imported = {"pyyaml": "yaml", "import-linter": "importlinter", "hydra-core": "hydra"}
    imported["tensorflow-cpu"] = "tensorflow"
    setup = (ROOT / "pyproject.toml").read_text(encoding="utf-8") + (ROOT / "Makefile").read_text(encoding="utf-8")
    sources = "\n".join(
        path.read_text(encoding="utf-8")
        for folder in ("tests", "experiments")
        for path in (ROOT / folder).rglob("*.py")
    )
    for text in PROJECT["optional-dependencies"]["test"]:
        name = Requirement(text).name
        if name in plugins:
            assert plugins[name] in setup, name
        else:
            module = imported.get(name, name)
            assert re.search(rf"\b(import|from) {module}\b|[\"']{module}[\"']", sources), f"nothing uses {name}"
