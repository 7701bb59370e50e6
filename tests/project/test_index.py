"""What an index of packages shows: the README, without what lies beside it in the repository."""

import re
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
README = (ROOT / "README.md").read_text(encoding="utf-8")
CODE = re.compile(r"^```.*?^```", re.MULTILINE | re.DOTALL)


@pytest.fixture(scope="module")
def shown():
    pytest.importorskip("hatchling", reason="hatchling is not installed: pip install 'wellposed[dev]'")
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(ROOT)
        patch.delitem(sys.modules, "hatch_build", raising=False)
        import hatch_build

        return hatch_build.shown(README)


def test_no_picture_and_no_link_leads_to_a_file_beside_it(shown):
    targets = re.findall(r"\]\(([^)]*)\)", shown)
    assert targets
    assert all(target.startswith("https://") for target in targets)


def test_the_words_of_pictures_and_links_stay(shown):
    pictures = re.findall(r"!\[([^\]]+)\]", README)
    assert pictures
    assert all(f"(Picture: {words}.)" in shown for words in pictures)
    assert "More limitations." in shown


def test_commands_are_those_of_who_has_no_clone(shown):
    assert 'pip install ".' in README
    assert 'pip install "wellposed[zoo]"' in shown
    assert '".[' not in shown
    assert "clone" not in shown


def test_code_is_as_it_was(shown):
    python = [block for block in CODE.findall(README) if block.startswith("```python")]
    assert python
    assert all(block in shown for block in python)


def test_the_package_takes_it():
    """Read as a build does it."""
    metadata = pytest.importorskip("hatchling.metadata.core", reason="pip install 'wellposed[dev]'")
    manager = pytest.importorskip("hatchling.plugin.manager").PluginManager()
    project = metadata.ProjectMetadata(str(ROOT), manager)
    assert project.core.readme.rstrip().endswith("under `docs/`.")
    assert project.core.readme_content_type == "text/markdown"
