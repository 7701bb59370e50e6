"""What the tests of the command line share."""

import pytest

from wellposed.cli import main


@pytest.fixture
def run(monkeypatch, capsys):
    """Run the command line; return its exit code, standard output and standard error."""

    def run(*argv, columns=120):
        monkeypatch.setenv("COLUMNS", str(columns))
        with pytest.raises(SystemExit) as exit_:
            main([str(word) for word in argv])
        captured = capsys.readouterr()
        return exit_.value.code or 0, captured.out, captured.err

    return run
