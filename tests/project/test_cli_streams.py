"""What standard output and error are given where their encodings lack characters."""

import pytest

from wellposed.cli.streams import _plain, prepare_streams


@pytest.mark.parametrize(
    ("text", "ascii_", "latin"),
    [
        ("2.4×10⁻¹⁰", "2.4x10^-10", None),
        ("E[x²] ± 1", "E[x^2] +- 1", "E[x²] ± 1"),
        ("▁█…‖x‖", "18...|x|", "18...|x|"),
        ("日", "?", "?"),
        ("plain", "plain", "plain"),
    ],
)
def test_the_nearest_characters_stand_for_those_that_are_missing(text, ascii_, latin):
    prepare_streams()
    assert text.encode("ascii", "wellposed.plain").decode("ascii") == ascii_
    if latin is not None:
        assert text.encode("latin-1", "wellposed.plain").decode("latin-1") == latin


def test_bytes_that_are_no_text_are_an_error_still():
    with pytest.raises(UnicodeDecodeError):
        _plain(UnicodeDecodeError("ascii", b"\xff", 0, 1, "no"))
