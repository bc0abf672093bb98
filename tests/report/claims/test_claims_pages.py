"""What the pages show of the claims: numbers in prose, the table and the figure."""

import re

import pandas as pd
import pytest

from specdec_lib import paths
from specdec_lib.report import numbers
from specdec_lib.report.build import directives
from specdec_lib.report.claims import pictures, rules, table
from specdec_lib.report.numbers import Number
from tests.report.book_build.test_opening import build

pytestmark = pytest.mark.skipif(paths.ROOT is None, reason="needs a checkout")
CLAIMS = {claim.id: claim for claim in rules.load_claims()}
CHAPTER = {"speed": Number(1.5, 1.25, 1.75), "share": Number(0.25), "count": Number(1234)}
CHAPTER |= {"alone": Number(1.2, words="no interval"), "missing": Number(None, words="not available")}
NUMBERS = {"03": CHAPTER}


def shown(folder, page, monkeypatch, judged):
    """The text of a page of MyST, and the warnings."""
    # As in the other tests of this process: Sphinx keeps who reads .md.
    extensions = ["myst_nb", "specdec_lib.report.build.directives"]
    settings = f"extensions = {extensions}\nmyst_enable_extensions = ['colon_fence']\n"
    monkeypatch.setattr(directives, "current_claims", lambda: judged)
    html, warnings = build(folder, settings, lambda source: (source / "index.md").write_text(page, encoding="utf-8"))
    return re.sub(r"\s+", " ", re.sub(r"<[^>]+>", "", html)), warnings


def test_numbers_stand_in_prose_with_their_intervals_and_one_that_is_not_there_is_a_warning(tmp_path, monkeypatch):
    page = (
        "# Page\n\nA {num}`03/speed:.2f`, b {num}`03/speed.value:.1f`, c {num}`03/share:.0%`, d {num}`03/count:,d`, "
        "e {num}`03/missing:.2f`, f {num}`03/alone:.1f`, g {published}`rest-t1-he-greedy-7b`."
    )
    text, warnings = shown(tmp_path, page, monkeypatch, (NUMBERS, None))
    assert warnings == ""
    # The last is from the file.
    assert "A 1.50 (1.25\u2060–\u20601.75), b 1.5, c 25%, d 1,234, e not available, f 1.2, g 2.36." in text
    page = "# Page\n\n{num}`03/sped:.2f` {num}`03/speed:q` {published}`rest`"
    told = shown(tmp_path / "other", page, monkeypatch, (NUMBERS, None))[1]
    assert [words for words in ("did you mean speed", "format", "no published number") if words not in told] == []


# A claim in the table and in the figure ------------------------------------------------------------------------------

RANGE = "rest-t1-he-greedy-13b to rest-t1-he-greedy-7b"
ROW = rules.Claim(
    id="faster", paper="REST, Table 1", says="It is <fast>.", why="A small store.", note="Read this.",
    holds=["03/speed > 1", "03/slow > 1"], rule="Holds if it is faster.",
    published={"03/speed": "rest-t1-he-greedy-7b"},
    headline=[{"label": "Speed-up", "published": RANGE, "03/speed": "here", "03/slow": "gpu"}],
)  # fmt: skip


def judged_with(slow):
    tables = {"03": CHAPTER | ({"slow": slow} if slow else {})}
    return rules.judge([ROW], tables), tables


@pytest.mark.parametrize("slow, verdict, said", [
    (Number(1.2, 1.1, 1.3), rules.HOLDS, ["03/slow &gt; 1: 1.2 (1.1"]),
    (Number(1.0, 0.9, 1.1), rules.UNRESOLVED, ["03/slow &gt; 1: 1 (0.9", "; not resolved"]),
    (Number(1.1, 0.9, 1.4, prompts=10), rules.UNRESOLVED, ["; not resolved; 40 prompts instead of 10 would decide",
        "<b>To decide.</b> About 40 prompts would decide this claim, if the estimate stays."]),
    (Number(1.1, 1.0, 1.2, prompts=10), rules.UNRESOLVED, ["; not resolved; slightly more than 10 prompts would decide"]),
    (Number(1.001, 0.9, 1.1, prompts=10), rules.UNRESOLVED, ["; not resolved; 100,000 prompts instead of 10 would decide",
        "About 100,000 prompts would decide"]),
    (Number(0.8, 0.7, 0.9), rules.FAILS, ["; false"]),
    (Number(None, words="not available"), rules.UNTESTABLE, ["not available; no number", "are not at hand"]),
    (CHAPTER["alone"], rules.UNTESTABLE, ["no number", "rests on one prompt"]),
    (None, rules.NO_NUMBER, ["no number yet; no number"]),
])  # fmt: skip
def test_a_row_of_the_table_says_numbers_verdict_and_reason(slow, verdict, said):
    html = table.to_html(*judged_with(slow))
    said = [*said, f"<summary><b>{verdict}</b>", 'id="claim-faster"', "It is &lt;fast&gt;.", "<b>Note.</b> Read this."]
    assert [words for words in said if words not in html] == []
    # The published 2.36 is not ours, which needs a reason, unless there is nothing to explain yet.
    assert "published 2.36, ours 1.5 (1.25" in html and "ours is 0.64 times that" in html
    assert ("<b>Why.</b> A small store." in html) == (verdict not in (rules.NO_NUMBER, rules.UNTESTABLE))


def test_a_row_says_what_the_same_rule_makes_of_a_second_model():
    claim = ROW.model_copy(update={"holds": ROW.holds[:1], "second": {"03/": "04/second_"}})
    tables = {"03": CHAPTER, "04": {"second_speed": Number(0.9, 0.8, 0.95)}}
    html = table.to_html(rules.judge([claim], tables), tables)
    assert "the verdict is: does not hold here; the models disagree." in html
    assert "04/second_<wbr>speed &gt; 1: 0.9" in html
    assert "second model" not in table.to_html(rules.judge([claim], NUMBERS), NUMBERS).lower()


def test_how_sure_a_verdict_is_names_what_weighs_most_against_it():
    changed = ROW.model_copy(update={"changed": "x"})
    cases = [
        (changed, rules.HOLDS, {"faster"}, "turned"),
        (changed, rules.UNRESOLVED, (), "open"),
        (changed, rules.FAILS, (), "changed"),
        (ROW, rules.HOLDS, {"other"}, "kept"),
    ]
    assert [table.how_sure(claim, verdict, turned) for claim, verdict, turned, _ in cases] == [
        case[-1] for case in cases
    ]


def test_the_page_explains_each_claim_that_does_not_hold_and_no_other():
    text = (paths.root() / "book" / "claims.md").read_text(encoding="utf-8")
    explained = text.partition("## What did not reproduce")[2].partition("```")[0]
    listed = re.findall(r"^\d+\. \*\*.*?\*\* \((\d+)\)(.*?)(?=^\d+\.|\Z)", explained, re.DOTALL | re.MULTILINE)
    assert [int(count) for count, _ in listed] == [each.count("href=") for _, each in listed] and len(listed) == 3
    counted = [count for count, _ in listed]
    assert re.findall(r"^\| \d\. .*? \| (\d+) \|", explained, re.MULTILINE) == counted
    against = int(counted[0]) + int(counted[1])
    for page in ("claims", "intro", "what-reproduces"):
        words = " ".join(
            (paths.root() / "book" / f"{page}.md").read_text(encoding="utf-8").replace("\n> ", " ").split()
        )
        assert f"do not hold here, and {against} of them speak against a paper" in words, page
    speak_against = re.findall(r'href="#claim-([\w-]+)"', listed[0][1] + listed[1][1])
    changed = sum(bool(CLAIMS[claim].changed) for claim in speak_against)
    front = (paths.root() / "book" / "intro.md").read_text(encoding="utf-8")
    assert f"So have {changed} of the {against}:" in " ".join(text.replace("\n> ", " ").split())
    assert f"Of the {against} claims that speak against a paper {changed} have a rule that we changed" in " ".join(
        front.split()
    )
    judged = rules.judge(list(CLAIMS.values()), numbers.tables())
    assert sorted(re.findall(r'href="#claim-([\w-]+)"', explained)) == sorted(judged.id[judged.verdict == rules.FAILS])


def test_the_figure_draws_what_has_a_number_where_it_is_and_verdicts_are_counted_as_numbers():
    shown = rules.headlines(*judged_with(None))
    assert list(shown.key) == ["03/speed", "03/slow"] and list(shown.published) == [(2.27, 2.36)] * 2
    assert shown["size"][0] == pytest.approx(1.5 / 2.27) and shown.ours[1] is None
    (ax,) = pictures.reproduces(shown, {shown.claim[0]}).axes
    (container,) = ax.containers
    (segment,) = container.lines[2][0].get_segments()
    assert container.lines[0].get_xdata() == [1.5] and [x for x, _ in segment] == [1.25, 1.75]
    words = [text.get_text() for text in ax.texts]
    assert words == ["REST", "Speed-up", f"{rules.NO_NUMBER} *", "1.50 (1.25\u2060–\u20601.75)"]
    every = rules.headlines(rules.judge(list(CLAIMS.values()), NUMBERS), NUMBERS)
    assert set(every.cost) == set(rules.PASS_COSTS) == set(pictures._LOOKS) and set(every.paper) == set(rules.PAPERS)
    changed = ROW.model_copy(update={"changed": "x"})
    judged = pd.DataFrame(
        {
            "verdict": [rules.HOLDS, rules.PARTLY, rules.PARTLY, rules.FAILS, rules.FAILS],
            "agreement": ["", rules.AGREE, rules.UNDECIDED, "", ""],
            "claim": [ROW, ROW, changed, changed, ROW],
        }
    )
    found = {name: number.value for name, number in rules.counts(judged).items() if number.value}
    assert found == {
        "all": 5, "holds": 1, "holds_in_part": 2, "does_not_hold_here": 2, "changed": 2, "changed_and_failed": 1,
        "models_agree": 1, "models_undecided": 1,
    }  # fmt: skip
