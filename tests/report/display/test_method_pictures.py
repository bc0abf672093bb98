"""The pictures of the method pages show what the drafters do, and stay within their frames."""

import json

import matplotlib.pyplot as plt
import method_examples
import pytest

from specdec_lib import load_model
from specdec_lib.drafters.pass_costs import CURVES
from specdec_lib.report import plots
from specdec_lib.report.appearance import APPEARANCES
from specdec_lib.report.build import directives
from specdec_lib.report.display import method_pictures
from tests.report.display.test_stepper_data import output


@pytest.fixture(autouse=True)
def style():
    with plt.rc_context(plots.STYLE):
        yield


@pytest.fixture(scope="module")
def examples():
    model, tokenizer = load_model("pocket")
    return method_examples.Examples(model, load_model("pocket-draft")[0], tokenizer, max_new_tokens=24)


@pytest.mark.parametrize("name", ["PLD", "DReSD", "Token Recycling"])
def test_a_picture_holds_what_one_pass_accepted_and_the_first_that_it_rejected(name, examples):
    shown, decode = examples.drafted(name), examples.tokenizer.decode
    emitted = [*(shown.words[node] for node in shown.path), shown.own]
    steps = [step for run in examples.runs(name) for step in run.steps]
    step = next(step for step in steps if [decode([token]) for token in step.tokens] == emitted)
    assert len(shown.parents) + shown.hidden <= step.drafted
    rejected = len(shown.parents) - len(shown.path)
    assert rejected <= 12 and all(depth <= len(shown.path) + 1 for depth in shown.tree.depths)
    assert shown.path == tuple(shown.tree.path(shown.path[-1]))


def test_a_page_is_kept_and_read_with_its_own_methods_and_plain_decoding(examples, tmp_path, monkeypatch):
    monkeypatch.setattr(method_pictures, "FOLDER", tmp_path)
    with pytest.raises(FileNotFoundError, match="make examples ARGS=pld"):
        method_pictures.read("pld")
    method_examples.main(["pld"], target="pocket", draft="none")
    shown, viewer = method_pictures.read("pld")
    assert len(viewer.data["examples"]) == 4
    for example in viewer.data["examples"]:
        assert [own["method"] for own in example["runs"]] == ["PLD", "plain"]
        assert len({output(viewer.data, own) for own in example["runs"]}) == 1, "greedy decoding is lossless"
    assert shown.root and shown.path and viewer.static in viewer.to_html()


@pytest.mark.parametrize("page", ["one-verifier", *(APPEARANCES[name].page for name in ("PLD", "DReSD", "One tree"))])
def test_no_word_of_a_picture_leaves_it(page):
    figure = method_pictures.PICTURES[page]()
    figure.draw_without_rendering()
    words = [word for ax in figure.axes for word in (*ax.texts, ax.title)]
    words = [word for word in [*words, *figure.legends[0].get_texts()] if word.get_text()]
    for word in words:
        box = word.get_window_extent()
        assert box.x0 >= -2 and box.y0 >= -2 and box.x1 <= figure.bbox.x1 + 2 and box.y1 <= figure.bbox.y1 + 2
    assert words and not plt.get_fignums()


def test_every_picture_says_what_was_decoded_and_is_drawn_alike_each_time(tmp_path, monkeypatch):
    shown = method_pictures.verifier_tree()
    assert [shown.words[node] for node in shown.path] == ["mat", "while"] and shown.own == "she"
    assert len(set(shown.parents)) < len(shown.parents), "it branches"
    kept = {path.stem: json.loads(path.read_text("utf-8")) for path in method_pictures.FOLDER.glob("*.json")}
    assert set(kept) == set(method_pictures.PICTURES) and all(one["target"] for one in kept.values())
    curve = CURVES["cpu"].curve(512)
    runs = [own for one in kept.values() for example in one["stepper"]["examples"] for own in example["runs"]]
    for step in (step for own in runs for step in own["steps"]):
        assert step["c"][0] == round(float(curve[step["w"] - 1]), 4), "the costs are the library's"
    some = {name: method_pictures.PICTURES[name] for name in ("pld", "dresd")}
    monkeypatch.setattr(method_pictures, "PICTURES", some)
    first, second = tmp_path / "a", tmp_path / "b"
    for folder in (first, second):
        folder.mkdir()
        directives.draw_methods(folder)
    for file in (f"{page}.{kind}" for page in some for kind in ("svg", "html")):
        assert (first / file).read_bytes() == (second / file).read_bytes()
