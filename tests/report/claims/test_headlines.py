"""The figure "What reproduces", the figures of the claims, and sentences that presume a verdict: what they show of a run."""

from __future__ import annotations

import csv
import re
import xml.etree.ElementTree as ET

import nbformat
import pytest

from specdec_lib import paths
from specdec_lib.report.build import headlines
from specdec_lib.report.claims import ledger, pictures, rules
from specdec_lib.report.display import forest
from tests.report.claims.test_claims_page import HEADER, NUMBERS, ROW, build, executed, write

ROWS = [
    ROW
    | {
        "id": "faster",
        "exact": "",
        "ours": {"speed": "speed here", "gpu": "speed at the GPU's price"},
        "test": [["speed", ">", 1]],
        "headline": [
            {"label": "Speed-up", "published": ["rest-speed"], "ours": {"speed": "here", "gpu": "gpu"}},
            {"label": "Speed-up, not printed", "ours": {"gpu": "gpu"}},
        ],
    },
    ROW
    | {
        "id": "slower",
        "paper": "dresd",
        "published": [],
        "exact": "",
        "ours": {"share": "share"},
        "threshold": "0.5 is half.",
        "test": [["share", "<", 0.5]],
    },
    ROW
    | {"id": "counted", "paper": "dresd", "published": [], "ours": {"wrong": "faults"}, "test": [["wrong", "==", 0]]},
]
SPEED = {"value": 1.5, "low": 1.25, "high": 1.75}
RECORDED = {"speed": SPEED, "gpu": None, "share": {"value": 0.25, "low": 0.2, "high": 0.4}, "wrong": 0}
PAGE = """
Page
====

.. what-reproduces::

   As *published* and as here.

.. what-reproduces-table::

.. claims-forest::

.. holds-if:: faster: holds or holds in part; counted: holds

   It is faster, by hand.
"""


@pytest.fixture
def project(tmp_path, monkeypatch):
    """A repository with the rows above; gives what runs it with recorded values."""
    (tmp_path / "book" / "notebooks").mkdir(parents=True)
    (tmp_path / "published").mkdir()
    for paper, lines in NUMBERS.items():
        text = "\n".join([HEADER, *lines]) + "\n"
        (tmp_path / "published" / f"{paper}.csv").write_text(text, encoding="utf-8")
    write(tmp_path, ROWS)
    monkeypatch.setattr(paths, "CLAIMS", tmp_path / "claims.yml")
    monkeypatch.setattr(paths, "PUBLISHED", tmp_path / "published")
    monkeypatch.setattr(paths, "root", lambda: tmp_path)

    def run(**changed):
        values = {name: value for name, value in (RECORDED | changed).items() if value is not None}
        nbformat.write(executed(values), tmp_path / "book" / "notebooks" / "07_speed.ipynb")
        return tmp_path

    run()
    return run


def rows_of(run, **changed):
    run(**changed)
    return ledger.headlines(ledger.whole_ledger())


def places(svg):
    """Where the marks of a drawing stand, by their kind, with the ends of their intervals."""
    found = {}
    for group in ET.fromstring(svg).iter("{http://www.w3.org/2000/svg}g"):
        kind = group.get("class", "").removeprefix("mark ")
        if kind != group.get("class", ""):
            line, path = group.find("{*}line"), group.find("{*}path")
            x = float(re.match(r"translate\(([\d.]+)", path.get("transform"))[1])
            found.setdefault(kind, []).append((float(line.get("x1")), x, float(line.get("x2"))))
    return found


@pytest.mark.parametrize("layout", ["wide", "phone"])
def test_a_mark_stands_where_its_number_is_and_moves_with_it(project, layout):
    shape = {"wide": forest.WIDE, "phone": forest.PHONE}[layout]

    def expected(values):
        return [pictures.TIMES.at(v, shape.strip, shape.strip_width) for v in values]

    for low, value, high in ((1.25, 1.5, 1.75), (0.5, 0.6, 0.75)):
        rows = rows_of(project, speed={"value": value, "low": low, "high": high})
        (mark,) = places(pictures.reproduces_alone(rows)[layout])["here"]
        assert mark == pytest.approx(expected((low, value, high)), abs=0.06)
    # An axis of ratios: twice as much is as far from 1 as half as much, and 1 is the dashed line.
    start, one, end = expected((0.5, 1, 2))
    assert one - start == pytest.approx(end - one)


def test_the_figure_says_published_ours_and_verdict_in_text(project):
    svg = pictures.reproduces_alone(rows_of(project))["wide"]
    texts = [node.text for node in ET.fromstring(svg).iter("{http://www.w3.org/2000/svg}text")]
    assert {"REST", "Speed-up", "1.50 (1.25–1.75)", "● holds", "published", "this machine"} <= set(texts)
    assert "<title>published 2.36</title>" in svg
    assert "REST, Speed-up: published 2.36, here 1.50 (1.25–1.75) at this machine, holds" in svg
    other = pictures.reproduces_alone(rows_of(project, speed={"value": 0.8, "low": 0.7, "high": 0.9}))["wide"]
    assert "○ does not hold here" in other and "● holds" not in other


def test_a_number_that_is_missing_is_named_and_not_drawn(project):
    rows = rows_of(project)
    assert pictures.lacking(rows) == [
        "REST: Speed-up (published GPU price)",
        "REST: Speed-up, not printed",
    ]
    svg = pictures.reproduces_alone(rows)["wide"]
    assert set(places(svg)) == {"here"} and "not printed" not in svg and "published GPU price" not in svg
    given = rows_of(project, gpu={"value": 2.0, "low": 1.9, "high": 2.1})
    assert pictures.lacking(given) == [] and set(places(pictures.reproduces_alone(given)["wide"])) == {"here", "gpu"}
    none = rows_of(project, speed=None)
    assert pictures.reproduces(none) == ""
    assert "No headline has a number yet" in pictures.reproduces_alone(none)["wide"]


def test_no_letter_is_smaller_than_nine_pixels_on_a_phone():
    # A phone of 320 px leaves a page about 290 of them.
    assert forest.PHONE.font * 290 / forest.PHONE.width >= 9
    assert forest.PHONE_WITHOUT_NUMBERS.font * 290 / forest.PHONE_WITHOUT_NUMBERS.width >= 9


def test_the_page_has_the_dark_colours_of_the_figures():
    css = (paths.ROOT / "book" / "assets" / "custom.css").read_text(encoding="utf-8")
    for name, (_, dark) in forest.COLORS.items():
        assert f"--chart-{name}: {dark};" in css


@pytest.mark.parametrize("place, ground", [(0, "#ffffff"), (1, "#15191e")], ids=["light", "dark"])
def test_every_mark_and_letter_stands_out_from_the_ground(place, ground):
    """The ratio of luminances of WCAG: 4.5 for letters, 3 for marks; the published bar has neighbours of its own."""

    def luminance(color):
        parts = [int(color[i : i + 2], 16) / 255 for i in (1, 3, 5)]
        linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in parts]
        return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]

    def contrast(color):
        one, two = sorted((luminance(color), luminance(ground)))
        return (two + 0.05) / (one + 0.05)

    least = {"ink": 4.5, "quiet": 4.5, "blue": 3, "orange": 3, "green": 3, "pink": 3, "published": 2.5}
    assert {name: bar for name, bar in least.items() if contrast(forest.COLORS[name][place]) < bar} == {}


def test_a_condition_is_drawn_as_far_ahead_as_its_claimed_side_is(project):
    project()
    entries = {entry.claim.id: entry for entry in ledger.whole_ledger()}
    rows, rest = pictures.directions(list(entries.values()))
    assert [row.href for row in rows] == ["#claim-faster", "#claim-slower"] and rest == [entries["counted"]]
    (fast,), (slow,) = (row.marks for row in rows)
    assert (fast.value, fast.low, fast.high, fast.kind) == (1.5, 1.25, 1.75, "true")
    # "share < 0.5" with 0.25 [0.2, 0.4] is ahead by 0.5 / 0.25.
    assert (slow.value, slow.low, slow.high) == pytest.approx((2.0, 1.25, 2.5))
    assert [row.verdict for row in rows] == ["● holds", "● holds"]
    project(share={"value": 0.5, "low": 0.4, "high": 0.8})
    (_, row), _ = pictures.directions(ledger.whole_ledger())
    assert row.marks[0].kind == "open" and row.marks[0].low < 1 < row.marks[0].high


@pytest.mark.parametrize(
    "value, wide",
    [
        ({"value": 2.0, "low": 1.9, "high": 2.06}, 0.04),
        ({"value": -1.0, "low": -1.01, "high": -0.99}, 0.01),
        (None, None),
    ],
)
def test_how_far_an_interval_reaches_to_either_side(value, wide):
    assert headlines.spread(value) == (wide and pytest.approx(wide))


def page_of(root):
    text, warnings, failed = build(root, PAGE)
    left = [line for line in warnings.splitlines() if line and "unknown document" not in line]
    return text, left, failed


def test_the_page_shows_figure_missing_rows_table_and_file(project):
    text, warnings, _ = page_of(project())
    assert not warnings
    assert text.count('class="mark here"') == 2  # wide and phone
    assert "As <em>published</em> and as here." in text
    named = "No number yet: </span>REST: Speed-up (published GPU price); REST: Speed-up, not printed."
    assert named in text
    assert "1.50 [1.25, 1.75]" in text and "0.64 times" in text and "claims.html#claim-faster" in text
    table = text[text.index('class="headlines') :]
    cells = re.findall(r"(?s)<td.*?</td>", table[table.index("<tbody") : table.index("</tbody")])
    said = [" ".join(re.sub(r"<[^>]+>", " ", cell).split()) for cell in cells]
    assert said == [
        *("REST Speed-up", "2.36", "1.50 [1.25, 1.75] this machine , ± 17%", "0.64 times", "holds"),
        *("no number yet published GPU price", "no number yet"),
        *("REST Speed-up, not printed", "not published", "no number yet published GPU price", "not published", "holds"),
    ]
    assert re.search(r"DReSD, decided without an interval or not decided: </span><a [^>]*#claim-counted", text)
    (file,) = (project() / "html" / "_downloads").rglob("reproduces.csv")
    first = next(csv.DictReader(file.open(encoding="utf-8")))
    assert (first["published_low"], first["value"], first["low"], first["direction"]) == (
        "2.36",
        "1.5",
        "1.25",
        "holds",
    )


def test_a_sentence_that_a_run_falsifies_is_marked_at_its_place(project):
    text, _, _ = page_of(project())
    assert "It is faster, by hand." in text and "This run does not show it" not in text
    text, warnings, _ = page_of(project(speed={"value": 1.1, "low": 0.9, "high": 1.3}))
    assert not warnings and text.count("This run does not show it") == 1
    note = re.sub(r"<[^>]+>", "", text[text.index("It is faster, by hand.") :])
    assert "The text above presumes that faster holds or holds in part. In this run: not resolved." in note
    text, _, _ = page_of(project(speed=None, wrong=1))
    note = re.sub(r"<[^>]+>", "", text)
    assert (
        "In this run: no number yet." in note
        and "presumes that counted holds. In this run: does not hold here." in note
    )


@pytest.mark.parametrize(
    "argument, message",
    [("lost: holds", "there is no claim 'lost'"), ("faster: true", "'true' is no verdict")],
)
def test_a_sentence_that_presumes_nothing_known_ends_the_build(project, argument, message):
    _, warnings, failed = build(project(), f"Page\n====\n\n.. holds-if:: {argument}\n\n   Words.\n")
    assert failed and message in warnings


@pytest.mark.parametrize(
    "headline, message",
    [
        ({"label": "x", "ours": {"speed": "cheap"}}, "priced by 'cheap'"),
        ({"label": "x", "ours": {"lost": "here"}}, "'lost' is used and has no words"),
        ({"label": "", "ours": {"speed": "here"}}, "expected a text under 'label'"),
        ({"label": "x", "ours": {"speed": "here"}, "published": "rest-speed"}, "one or two expressions"),
        ({"label": "x"}, "expected 'label', 'ours'"),
    ],
)
def test_a_headline_of_another_form_is_refused(project, headline, message):
    write(project(), [ROWS[0] | {"headline": [headline]}])
    with pytest.raises(rules.ClaimError, match=message):
        rules.load_claims()


@pytest.mark.skipif(paths.ROOT is None, reason="needs a checkout")
def test_every_paper_has_headlines_and_every_price_is_used():
    claims = rules.load_claims(paths.ROOT / "data" / "claims.yml")
    found = [(claim.paper, headline) for claim in claims for headline in claim.headline]
    assert {paper for paper, _ in found} == set(rules.PAPERS)
    assert {price for _, headline in found for price in headline.ours.values()} == set(rules.PRICES)


@pytest.mark.skipif(paths.ROOT is None, reason="needs a checkout")
def test_the_page_has_three_sentences_a_paper_that_presume_a_verdict():
    text = (paths.ROOT / "book" / "what-reproduces.md").read_text(encoding="utf-8")
    parts = re.split(r"^### (.+)$", text.split("## The numbers")[0], flags=re.MULTILINE)[1:]
    known = {claim.id: claim.paper for claim in rules.load_claims(paths.ROOT / "data" / "claims.yml")}
    for name, part in zip(parts[::2], parts[1::2], strict=True):
        conditions = re.findall(r"^:::\{holds-if\} (.+)$", part, flags=re.MULTILINE)
        assert len(conditions) == 3, name
        for condition in ";".join(conditions).split(";"):
            claim, _, verdicts = condition.strip().partition(": ")
            assert ledger.PAPERS[known[claim]] == name
            assert set(verdicts.split(" or ")) <= set(ledger.VERDICTS)
    assert parts[::2] == list(ledger.PAPERS.values())


def real_blocks():
    """Every ``{holds-if}`` of the book: its file and number there, and its argument."""
    root = paths.ROOT / "book"
    sources = {path.relative_to(root).as_posix(): path.read_text(encoding="utf-8") for path in root.rglob("*.md")}
    for path in (paths.ROOT / "notebooks").glob("*.ipynb"):
        cells = nbformat.read(str(path), as_version=4).cells
        sources[path.name] = "\n".join(cell.source for cell in cells if cell.cell_type == "markdown")
    found = {}
    for name in sorted(sources):
        for i, argument in enumerate(re.findall(r"^:{3,}\{holds-if\} (.+)$", sources[name], flags=re.MULTILINE)):
            found[f"{name}-{i + 1}"] = argument
    return found


BLOCKS = real_blocks() if paths.ROOT else {}


def flips(argument):
    """Verdicts by claim that a block is tried with: those it presumes, then each claim with each verdict that it may not have,
    which is named."""
    parts = [part.strip().partition(": ") for part in argument.split(";")]
    allowed = {claim: verdicts.split(" or ") for claim, _, verdicts in parts}
    for one in range(max(map(len, allowed.values()))):
        yield {claim: verdicts[one % len(verdicts)] for claim, verdicts in allowed.items()}, None
    for claim, verdicts in allowed.items():
        for verdict in set(ledger.VERDICTS) - set(verdicts):
            held = {name: own[0] for name, own in allowed.items()}
            yield held | {claim: verdict}, (claim, verdict)


@pytest.fixture(scope="module")
def rendered(tmp_path_factory):
    """Every block of the book in every try of :func:`flips`, on one page; gives the text of each block's tries."""
    root = tmp_path_factory.mktemp("blocks")
    (root / "book").mkdir()
    claims = rules.load_claims(paths.ROOT / "data" / "claims.yml")
    tries = [(name, *one) for name, argument in BLOCKS.items() for one in flips(argument)]

    def entries(directive):
        verdicts = tries[int(directive.content[0].split()[1])][1]
        judged = (rules.Verdict(claim, verdicts.get(claim.id, rules.HOLDS), {}, ()) for claim in claims)
        return [ledger.Entry(verdict, (), (), None) for verdict in judged]

    lines = [f".. holds-if:: {BLOCKS[name]}\n\n   Try {i} of it.\n" for i, (name, _, _) in enumerate(tries)]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(headlines.HoldsIf, "entries", entries)
        text, warnings, _ = build(root, "Page\n====\n\n" + "\n".join(lines))
    assert [line for line in warnings.splitlines() if line and "unknown document" not in line] == []
    plain = re.sub(r"\s+", " ", re.sub(r"<[^>]+>", "", text))
    parts = re.split(r"Try \d+ of it\.", plain)[1:]
    found = {}
    for (name, _, flipped), part in zip(tries, parts, strict=True):
        found.setdefault(name, []).append((flipped, part))
    return found


@pytest.mark.parametrize("name", BLOCKS)
def test_every_sentence_of_the_book_that_presumes_a_verdict_is_noted_where_a_run_gives_another(rendered, name):
    noted = "This run does not show it"
    assert any(flipped is None for flipped, _ in rendered[name]) and any(flipped for flipped, _ in rendered[name])
    for flipped, part in rendered[name]:
        assert part.count(noted) == (flipped is not None), flipped
        if flipped:
            claim, verdict = flipped
            assert f"presumes that {claim} " in part and f"In this run: {verdict}." in part
