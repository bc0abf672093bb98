"""The picture of a choice between occurrences."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from specdec_lib.chapters.ch04_pld_plus.occurrences import Choice
from specdec_lib.report.display import occurrences
from tests.experiments.made import made_up


@given(st.lists(st.text("ab \n", max_size=12), max_size=8), st.integers(1, 10))
def test_the_cells_hold_the_characters_of_their_piece(pieces, width):
    lines, cells = occurrences.layout(pieces, width)
    assert all(len(line) <= width for line in lines)
    for piece, own in zip(pieces, cells, strict=True):
        assert "".join(lines[row][column] for row, column in own) == piece.replace("\n", "")
    assert sum(map(len, lines)) == sum(map(len, cells))


class Letters:
    @staticmethod
    def decode(tokens):
        return "".join("\n" if t == 0 else chr(96 + t) for t in tokens)


def test_the_legend_says_what_was_accepted_and_the_text_is_drawn():
    recording = made_up([1, 2, 3, 0, 1, 4, 5, 0], [1, 4, 5, 6])
    choice = Choice(recording, 8, (1, 5), ([2, 3], [4, 5]), (0, 2))
    figure = occurrences.picture(choice, Letters(), ("PLD", "PLD+ (h)"), coming=3)
    labels = [text.get_text() for text in figure.legends[0].get_texts()]
    assert labels == [
        "PLD: 0 of 2 drafted tokens accepted",
        "PLD+ (h): 2 of 2 drafted tokens accepted",
        "last token written",
    ]
    drawn = [text.get_text() for text in figure.axes[0].texts]
    assert "".join(t for t in drawn if len(t) == 1) == "abcadeadef"
    assert len(figure.axes[0].patches) == 2 + 1 + 1 + 1 + 0
