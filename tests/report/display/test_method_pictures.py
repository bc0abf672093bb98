"""What the pictures of the method pages show is what the drafters do, and what the descriptions say."""

from __future__ import annotations

import math

import matplotlib.pyplot as plt
import numpy as np
import pytest

from specdec_lib.report.build import book
from specdec_lib.report.display import figures, method_examples, method_pictures


@pytest.fixture(autouse=True)
def style():
    with plt.rc_context(figures.STYLE):
        yield


def test_the_tree_of_the_verifier_is_walked_along_the_targets_words():
    shown = method_examples.verifier()
    assert [shown.words[node] for node in shown.path] == ["mat", "while"] and shown.own == "she"
    assert len({shown.tree.parents[node] for node in range(len(shown.tree))}) < len(shown.tree), "it branches"
    for node, row in enumerate(shown.tree.mask()[1:]):
        assert set(row.nonzero()[0]) == {0, *(n + 1 for n in shown.tree.path(node))}


def test_pld_copies_what_followed_the_same_three_tokens_and_the_target_agrees():
    shown = method_examples.prompt_lookup()
    source, pieces = shown.sources["PLD"], shown.pieces
    assert pieces[source - 3 : source] == pieces[shown.end - 3 : shown.end]
    length = shown.accepted["PLD"]
    assert length == shown.lengths["PLD"] == 6
    assert pieces[source : source + length] == pieces[shown.end : shown.end + length]


def test_pld_plus_copies_from_the_occurrence_that_scores_higher_and_pld_does_not():
    shown = method_examples.prompt_lookup_plus()
    assert all(shown.pieces[place] == shown.pieces[shown.end - 1] for place in shown.candidates)
    for method, scores in shown.scores.items():
        assert shown.sources[method] == shown.candidates[int(np.argmax(scores))] + 1 == shown.candidates[1] + 1
        assert shown.accepted[method] > shown.accepted["PLD"] == 0
    assert shown.sources["PLD"] == shown.candidates[0] + 1


def test_rest_drafts_the_heaviest_nodes_of_what_follows_the_match():
    shown = method_examples.rest()
    context = "please open the file".split()
    matched = " ".join(context[-shown.matched :]) + " "
    following = [s.removeprefix(matched).split()[:3] for s in method_examples.SENTENCES if s.startswith(matched)]
    assert len(method_examples.SENTENCES) == 7, "as the caption says"
    assert shown.matched == 3 and not any(" ".join(context) in s for s in method_examples.SENTENCES)
    for node, weight in enumerate(shown.weights):
        path = [shown.words[n] for n in shown.tree.path(node)]
        assert weight == sum(text[: len(path)] == path for text in following)
    assert min(shown.weights[: shown.drafted]) >= max(shown.weights[shown.drafted :])
    assert max(shown.path) < shown.drafted < len(shown.tree)


def test_dresd_keeps_the_nearest_keys_that_the_last_token_follows():
    shown = method_examples.dresd()
    assert len(method_examples.LINES) == len(shown.nearest) == 8, "as caption and description say"
    similar = shown.keys @ shown.query
    left_out = np.delete(similar, list(shown.nearest))
    # Lines of the example repeat, so keys can be equally near up to rounding.
    assert len(set(shown.nearest)) == len(shown.nearest) and similar[list(shown.nearest)].min() >= left_out.max() - 1e-5
    assert shown.kept == tuple(row for row in shown.nearest if shown.following[row] == shown.last)
    assert 0 < len(shown.kept) < len(shown.nearest) and len(shown.drafts) == len(shown.kept)
    assert np.allclose(np.linalg.norm(shown.keys, axis=1), 1, atol=1e-5)


def test_the_refused_token_is_one_that_the_draft_model_gave_too_often():
    shown = method_examples.rejection()
    assert 2 <= shown.accepted < len(shown.words)
    assert shown.p[shown.accepted] < shown.q[shown.accepted]
    target, draft, left = (np.array(shown.rows[name]) for name in ("target", "draft model", "residual"))
    assert ((left > 0) == (target > draft)).all() and left[shown.shown.index(shown.own)] > 0
    scaled = left[left > 0] / (target - draft)[left > 0]
    assert np.allclose(scaled, scaled[0]), "the residual is proportional to what the target has more"


def test_specdec_pp_stops_at_the_first_crossing_with_one_token_unjudged():
    shown = method_examples.stopping()
    assert len(shown.acceptance) == len(shown.words) - 1 >= 2
    refusal = [1 - math.prod(shown.acceptance[: n + 1]) for n in range(len(shown.acceptance))]
    assert refusal[-1] > shown.threshold and max(refusal[:-1]) <= shown.threshold


@pytest.mark.parametrize("page", method_pictures.PICTURES)
def test_no_word_of_a_picture_leaves_it(page):
    figure = method_pictures.PICTURES[page]()
    figure.draw_without_rendering()
    words = [word for ax in figure.axes for word in (*ax.texts, ax.title, ax.xaxis.label, ax.yaxis.label)]
    words += [word for legend in figure.legends for word in legend.get_texts()]
    words = [word for word in words if word.get_text()]
    assert words
    for word in words:
        box = word.get_window_extent()
        assert box.x0 >= -2 and box.y0 >= -2 and box.x1 <= figure.bbox.x1 + 2 and box.y1 <= figure.bbox.y1 + 2
    assert not plt.get_fignums()


def test_pictures_are_drawn_once_and_alike(tmp_path, monkeypatch):
    monkeypatch.setattr(
        method_pictures, "PICTURES", {"one-verifier": method_pictures.verifier, "rest": method_pictures.rest}
    )
    first, second = tmp_path / "a", tmp_path / "b"
    assert book.draw_pictures(first) and book.draw_pictures(second)
    written = (first / "rest.svg").stat().st_mtime_ns
    assert not book.draw_pictures(first) and (first / "rest.svg").stat().st_mtime_ns == written
    for page in method_pictures.PICTURES:
        for kind in ("svg", "html"):
            assert (first / f"{page}.{kind}").read_bytes() == (second / f"{page}.{kind}").read_bytes()
