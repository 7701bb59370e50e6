"""What messages say of extras works where the package came from."""

import json

import pytest

from wellposed import extras


@pytest.fixture(autouse=True)
def fresh():
    extras.installing.cache_clear()
    yield
    extras.installing.cache_clear()


@pytest.mark.parametrize(
    ("origin", "command"),
    [
        (None, "pip install 'wellposed[keras]'"),
        ({"url": "file:///a%20b/tree", "dir_info": {}}, "pip install '/a b/tree[keras]'"),
        ({"url": "file:///tree", "dir_info": {"editable": True}}, "pip install -e '/tree[keras]'"),
        ({"url": "file:///d/wellposed-0.1.0-py3-none-any.whl", "archive_info": {}},
         "pip install '/d/wellposed-0.1.0-py3-none-any.whl[keras]'"),
        ({"url": "https://host/w.git", "vcs_info": {"vcs": "git"}}, "pip install 'wellposed[keras] @ git+https://host/w.git'"),
    ],
)  # fmt: skip
def test_the_command_installs_from_where_the_package_came(monkeypatch, origin, command):
    class Installed:
        def read_text(self, name):
            assert name == "direct_url.json"
            return None if origin is None else json.dumps(origin)

    monkeypatch.setattr(extras.metadata, "distribution", lambda name: Installed())
    monkeypatch.setattr(extras.Path, "exists", lambda path: True)
    assert extras.installing("keras") == command


def test_a_tree_that_is_gone_is_not_named(monkeypatch):
    """As that in which a package of conda was built."""

    class Built:
        def read_text(self, name):
            return json.dumps({"url": "file:///nowhere/work", "dir_info": {}})

    monkeypatch.setattr(extras.metadata, "distribution", lambda name: Built())
    assert extras.installing("keras") == "pip install 'wellposed[keras]'"


def test_without_an_installation_it_is_the_clone(monkeypatch):
    def missing(name):
        raise extras.metadata.PackageNotFoundError(name)

    monkeypatch.setattr(extras.metadata, "distribution", missing)
    assert extras.installing("jax") == "pip install '.[jax]' in a clone of wellposed"
