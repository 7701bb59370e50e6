"""The code in README and documentation runs as it stands.

Python blocks of one document run in order in one namespace, in an empty folder; a block with ``title="net.py"`` is
written to that file first. A text block that immediately follows a Python block shows what that block prints. In
console blocks every line after ``$`` that calls wellposed runs, and the lines below it are what it prints. ``...``
stands for lines that are not shown, and a printed line that is too long for the page may be shown on several. Bash
blocks hold the commands of installation, whose targets and extras must exist.
"""

import contextlib
import importlib.util
import io
import itertools
import re
import shlex
import sys
import tomllib
from pathlib import Path
from types import ModuleType

import pytest
import torch
from tests.versions import PINNED

import wellposed as wp
from wellposed import checks, methods, zoo
from wellposed.operators import views
from wellposed.signals.registry import ADJOINTS, RULES
from wellposed.signals.rules import backward  # registers the backward rules, which are else loaded when needed

ROOT = Path(__file__).resolve().parents[2]
DOCUMENTS = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]
FENCE = re.compile(r"^```(?P<language>\w+)(?: +title=\"(?P<title>[^\"]+)\")?\n(?P<code>.*?)^```$", re.M | re.S)
WRAPPED = 6
LONGEST = 120
NUMBER = re.compile(r"(?<![\w.])[+-]?\d+(?:\.(?P<decimals>\d+))?(?:e(?P<exponent>[+-]?\d+))?(?![\w.]*\w)")


def blocks(document):
    """Return the fenced blocks, each with ``prints``: the text block that follows it with nothing between."""
    text = document.read_text(encoding="utf-8")
    found = list(FENCE.finditer(text))
    return [
        {
            **match.groupdict(),
            "prints": after["code"]
            if after and after["language"] == "text" and not text[match.end() : after.start()].strip()
            else None,
        }
        for match, after in itertools.zip_longest(found, found[1:])
    ]


def differences(shown, printed):
    """Return what differs between shown and printed lines; ``...`` alone stands for any lines.

    Runs of blanks count as one, and up to `WRAPPED` shown lines may be one printed line. The last digit of a number
    with decimals may differ by one: another processor rounds otherwise.
    """
    lines, rest = printed.splitlines(), shown.splitlines()
    start, anywhere = 0, False
    while rest:
        if rest[0].strip() == "...":
            rest, anywhere = rest[1:], True
            continue
        candidates = range(start, min(len(lines) if anywhere else start + 1, len(lines)))
        matches = (
            (position, count)
            for count in range(1, min(WRAPPED, len(rest)) + 1)
            for position in candidates
            if same_line(" ".join(rest[:count]), lines[position])
        )
        position, count = next(matches, (None, 0))
        if position is None:
            return f"shown:   {rest[0]}\nprinted: {lines[start] if start < len(lines) else 'nothing more'}"
        start, rest, anywhere = position + 1, rest[count:], False
    return None if anywhere or start == len(lines) else f"printed, and not shown: {lines[start]}"


def same_line(shown, printed):
    if [*NUMBER.sub("#", shown).split()] != [*NUMBER.sub("#", printed).split()]:
        return False
    return all(
        abs(float(a[0]) - float(b[0])) <= 1.01 * last_digit(a)
        for a, b in zip(NUMBER.finditer(shown), NUMBER.finditer(printed), strict=True)
    )


def last_digit(number):
    if number["decimals"] is None:
        return 0.0
    return 10.0 ** (int(number["exponent"] or 0) - len(number["decimals"]))


# Shared between the package's own modules.
NOT_FOR_USERS = {"log2_ratio"}


def documents_with(*languages):
    found = [path for path in DOCUMENTS if any(block["language"] in languages for block in blocks(path))]
    return pytest.mark.parametrize("document", found, ids=[str(path.relative_to(ROOT)) for path in found])


def write_titled(document, folder):
    for block in blocks(document):
        if block["title"]:
            (folder / block["title"]).write_text(block["code"])


@pytest.fixture
def registries():
    """Pages register rules and views of their own; other tests do not know these."""
    assert backward.shape  # all of them are registered before the tables are kept
    tables = (RULES._rules, ADJOINTS._rules, views._VIEWS)
    before = [dict(table) for table in tables]
    yield
    for table, entries in zip(tables, before, strict=True):
        table.clear()
        table.update(entries)


@pytest.mark.slow
@pytest.mark.usefixtures("registries")
@pytest.mark.filterwarnings("ignore:.*treespec.*:FutureWarning")  # Lightning's, about torch
@pytest.mark.filterwarnings("ignore:.*num_workers.*:UserWarning")  # Lightning's advice on loaders
@pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning")  # Keras', as it reads its own rates
@documents_with("python")
def test_python_blocks_run(document, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    write_titled(document, tmp_path)
    monkeypatch.setenv("COLUMNS", "100")
    if "torch.optim.Muon" in document.read_text(encoding="utf-8") and not hasattr(torch.optim, "Muon"):
        pytest.skip("this torch has no Muon")
    if "import keras" in document.read_text(encoding="utf-8") and importlib.util.find_spec("keras") is None:
        pytest.skip("Keras is not installed: pip install 'wellposed[keras]'")
    if "import jax" in document.read_text(encoding="utf-8") and importlib.util.find_spec("flax") is None:
        pytest.skip("Flax is not installed: pip install 'wellposed[jax]'")
    if "import transformers" in document.read_text(encoding="utf-8"):
        zoo.import_torchvision()  # which transformers imports, and which may have been built for another torch
    if "keras" in sys.modules:  # layers of tests before count in Keras' names, from which numbers are drawn
        sys.modules["keras"].utils.clear_session(free_memory=False)
    namespace = {"__name__": "__document__"}
    code = [block for block in blocks(document) if block["language"] == "python" and not block["title"]]
    for number, block in enumerate(code, 1):
        with contextlib.redirect_stdout(io.StringIO()) as printed:
            exec(compile(block["code"], f"{document.name}, block {number}", "exec"), namespace)
        if block["prints"] is not None and PINNED:  # another torch runs other operators, and draws other numbers
            wrong = differences(block["prints"], printed.getvalue())
            assert wrong is None, f"{document.name}, block {number}\n{wrong}\nall of it:\n{printed.getvalue()}"


@pytest.mark.slow
@documents_with("console")
def test_console_blocks_run(document, tmp_path, monkeypatch, run):
    monkeypatch.chdir(tmp_path)
    write_titled(document, tmp_path)
    for block in blocks(document):
        if block["language"] != "console":
            continue
        for part in re.split(r"^\$ ", block["code"], flags=re.M)[1:]:
            command, _, shown = part.partition("\n")
            program, *words = shlex.split(command)
            assert program == "wellposed", f"a console block runs wellposed only, found: {command}"
            code, printed, errors = run(*words, columns=100)
            assert code == 0, f"{command}\n{printed}{errors}"
            if shown.strip() and PINNED:
                wrong = differences(shown, printed)
                assert wrong is None, f"{command}\n{wrong}\nall of it:\n{printed}"


@documents_with("bash")
def test_installation_commands_exist(document):
    targets = re.findall(r"^([a-z]+):", (ROOT / "Makefile").read_text(), re.M)
    for block in blocks(document):
        if block["language"] != "bash":
            continue
        for line in filter(None, block["code"].splitlines()):
            words = shlex.split(line, comments=True)
            if words[0] == "make":
                assert set(words[1:]) <= set(targets), line
            elif words[:2] != ["pip", "install"]:  # its extras: the next test
                assert words[:2] in (["git", "clone"], ["wellposed", "demo"]) or words[0] == "cd", line


def test_extras_exist_wherever_they_are_named():
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    for document in DOCUMENTS:
        for names in re.findall(r"pip install[^`\n]*?\[([\w,]+)\]", document.read_text(encoding="utf-8")):
            assert set(names.split(",")) <= set(extras), f"{document.name}: {names}"


@pytest.mark.parametrize("name", ["README.md", *sorted(f"docs/{path.name}" for path in (ROOT / "docs").glob("*.md"))])
def test_lines_of_the_documents_are_short(name):
    for number, line in enumerate((ROOT / name).read_text(encoding="utf-8").splitlines(), 1):
        code = line.startswith("`") and line.endswith("`")  # a command is one line
        breakable = not line.startswith(("|", "![")) and not code and " " in line.strip()
        assert len(line) <= LONGEST or not breakable, f"{name}, line {number}: {len(line)} columns"


def test_figures_of_the_readme_stand_where_it_says():
    row = re.compile(r"^\|.*\|(.*)\| \[.*\]\((docs/results/.*)\) \|$", re.M)
    rows = row.findall((ROOT / "README.md").read_text(encoding="utf-8"))
    assert len(rows) == 3  # those that a newcomer asks for
    for figures, file in rows:
        text = (ROOT / file).read_text(encoding="utf-8")
        for number in re.findall(r"\d+(?:\.\d+)?", figures):
            assert re.search(rf"(?<![\d.]){re.escape(number)}(?!\d|\.\d)", text), f"{number} does not stand in {file}"


def test_every_fence_is_read():
    for document in DOCUMENTS:
        lines = document.read_text(encoding="utf-8").splitlines()
        fences = sum(line.startswith("```") for line in lines)
        assert fences == 2 * len(blocks(document)), f"{document.name}: a fence without a language, or unclosed"


def test_another_output_is_noticed():
    assert differences("a  1.25\n...\nlast 3\n", "a 1.24\nmore\nlast 3\n") is None
    assert differences("a 1.25\n", "a 1.23\n")
    assert differences("a 3\n", "a 4\n")
    assert differences("a -1.25\n", "a +1.25\n")
    assert differences("a 1.2e-05\n", "a 1.2e-04\n")
    assert differences("a\n", "a\nb\n")
    assert differences("a\nb\n", "a\n")
    assert differences("...\nb\n", "a\n")
    assert differences("a long\n  line 1\nb\n", "a long line 1\nb\n") is None
    assert differences("a long\nline 2\n", "a long line 1\n")
    assert differences("a long\n", "a long line\n")


def test_reference_has_every_public_name():
    documented = re.findall(r"^::: (wellposed[\w.]*)$", (ROOT / "docs/reference.md").read_text(), re.M)
    names = {name.rpartition(".")[2] for name in documented}
    for module in (wp, wp.gradients, wp.integrations, wp.rates, checks):
        missing = {
            name for name in module.__all__ if name not in names and not isinstance(getattr(module, name), ModuleType)
        }
        # What is not a function or class is described where it is used.
        missing = {name for name in missing if callable(getattr(module, name))}
        assert missing <= NOT_FOR_USERS, f"{module.__name__}: {sorted(missing)} not in docs/reference.md"


def test_every_option_of_every_method_is_described():
    text = (ROOT / "docs/plans.md").read_text(encoding="utf-8")
    for name in methods.methods():
        if not methods.find_method(name).__module__.startswith("wellposed."):
            continue  # one that another test has registered
        (row,) = re.findall(rf"^\| `{name}` \|.*", text, re.M)
        for option in methods.options_of(name):
            described = f"`{option}`" in row or f"`{option}=" in text
            assert described, f"option {option!r} of method {name!r} is not in docs/plans.md"


def test_needs_are_twenty_and_name_files_that_exist():
    rows = re.findall(r"^\| (\d+) \|.*\|(.*)\|$", (ROOT / "docs/needs.md").read_text(), re.M)
    assert [int(number) for number, _ in rows] == list(range(1, 21))
    for number, held in rows:
        files = re.findall(r"`([\w/.]+)`", held)
        assert files, f"need {number} names nothing that holds it"
        for file in files:
            assert (ROOT / file).is_file(), f"need {number}: {file}"


@pytest.mark.slow
def test_pictures_show_what_the_library_predicts():
    spec = importlib.util.spec_from_file_location("docs_images", ROOT / "scripts/docs_images.py")
    script = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(script)

    def lines(picture):
        return "\n".join(re.findall(r"<polyline.*", picture)).replace(",", " ")

    for name, drawn in script.pictures(draws=1).items():
        assert differences(lines((ROOT / "docs/images" / name).read_text(encoding="utf-8")), lines(drawn)) is None, name


@pytest.mark.parametrize("name", ["README.md", "CONTRIBUTING.md"])
def test_links_into_the_documentation_lead_somewhere(name):
    # mkdocs checks those between the pages.
    links = re.findall(r"\]\(((?!https?:)[^)#]+)(?:#([^)]+))?\)", (ROOT / name).read_text(encoding="utf-8"))
    assert links
    for path, anchor in links:
        assert (ROOT / path).exists(), path
        if anchor:
            headings = re.findall(r"^#+ (.*)$", (ROOT / path).read_text(encoding="utf-8"), re.M)
            slugs = {re.sub(r"\s+", "-", re.sub(r"[^\w\s-]", "", heading).strip().lower()) for heading in headings}
            assert anchor in slugs, f"{path}#{anchor}"
