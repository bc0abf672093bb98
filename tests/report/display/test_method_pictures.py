"""The pictures of the method pages show what the drafters do, and stay within their frames."""

from __future__ import annotations

import matplotlib.pyplot as plt
import pytest

from specdec_lib.methods import METHODS
from specdec_lib.report import plots
from specdec_lib.report.build import book
from specdec_lib.report.display import method_examples, method_pictures


@pytest.fixture(autouse=True)
def style():
    with plt.rc_context(plots.STYLE):
        yield


def test_the_tree_of_the_verifier_is_walked_along_the_targets_words():
    shown = method_examples.verifier()
    assert [shown.words[node] for node in shown.path] == ["mat", "while"] and shown.own == "she"
    assert len(set(shown.tree.parents)) < len(shown.tree), "it branches"


@pytest.mark.parametrize("name", ["PLD", "DReSD", "Token Recycling"])
def test_a_picture_holds_what_one_pass_accepted_and_the_first_that_it_refused(name):
    shown, (run, _) = method_examples.drafted(name), method_examples._continued(name)
    decode = method_examples.pocket().tokenizer.decode
    emitted = [*(shown.words[node] for node in shown.path), shown.own]
    (step, *_) = [step for step in run.steps if [decode([token]) for token in step.tokens] == emitted]
    assert len(shown.tree) + shown.hidden <= step.drafted
    refused = len(shown.tree) - len(shown.path)
    assert refused <= 12 and all(depth <= len(shown.path) + 1 for depth in shown.tree.depths)
    assert shown.path == tuple(shown.tree.path(shown.path[-1]))


@pytest.mark.parametrize("page", ["one-verifier", *(METHODS[name].page for name in ("PLD", "DReSD", "One tree"))])
def test_no_word_of_a_picture_leaves_it(page):
    figure = method_pictures.PICTURES[page]()
    figure.draw_without_rendering()
    words = [word for ax in figure.axes for word in (*ax.texts, ax.title)]
    words = [word for word in [*words, *figure.legends[0].get_texts()] if word.get_text()]
    for word in words:
        box = word.get_window_extent()
        assert box.x0 >= -2 and box.y0 >= -2 and box.x1 <= figure.bbox.x1 + 2 and box.y1 <= figure.bbox.y1 + 2
    assert words and not plt.get_fignums()


def test_pictures_are_drawn_once_and_alike(tmp_path, monkeypatch):
    monkeypatch.setattr(
        method_pictures, "PICTURES", {name: method_pictures.PICTURES[name] for name in ("pld", "dresd")}
    )
    first, second = tmp_path / "a", tmp_path / "b"
    assert book.draw_pictures(first) and book.draw_pictures(second)
    written = (first / "pld.svg").stat().st_mtime_ns
    assert not book.draw_pictures(first) and (first / "pld.svg").stat().st_mtime_ns == written
    for page in method_pictures.PICTURES:
        for kind in ("svg", "html"):
            assert (first / f"{page}.{kind}").read_bytes() == (second / f"{page}.{kind}").read_bytes()
