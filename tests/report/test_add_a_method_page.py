"""The pages on adding a method and a claim: their blocks of Python run in order, and what they promise of a row is so."""

import re
from pathlib import Path

import method_examples
import pytest

from specdec_lib import generate, methods, paths
from specdec_lib.report import plots
from specdec_lib.report.claims import rules
from tests.families import build, prompt

pytestmark = pytest.mark.skipif(paths.ROOT is None, reason="an installed package has no pages")
PAGE = (paths.ROOT or Path()) / "book" / "add-a-method.md"


@pytest.fixture(scope="module")
def page():
    """What the blocks of the page leave behind, and what they print."""
    text = PAGE.read_text(encoding="utf-8").replace("smollm2", "pocket")  # the fixture instead of the book's model
    blocks = re.findall(r"^```python\n(.*?)^```", text, re.DOTALL | re.MULTILINE)
    assert len(blocks) == 4
    lines: list[str] = []
    scope: dict = {"print": lambda *words: lines.append(" ".join(map(str, words)))}
    table = dict(methods.METHODS)
    try:
        for block in blocks:
            exec(compile(block, f"{PAGE.name}: {block.splitlines()[0]}", "exec"), scope)
        yield scope, lines
    finally:
        methods.METHODS.clear()
        methods.METHODS.update(table)


def test_the_page_and_its_drafter_decode_losslessly_and_it_prints_numbers_of_every_method(page):
    scope, lines = page
    assert scope["fast"].tokens == scope["plain"].tokens and scope["fast"].stats["tokens_per_forward"] > 1
    assert re.fullmatch(r"\d\.\d\d tokens per forward pass", lines[0])
    assert [line.partition(":")[0] for line in lines[-3:]] == ["PLD", "SpecDec", "Followers"]
    assert all(line.endswith(" tokens per pass") for line in lines[-3:])
    model, start = build("llama-gqa"), prompt(3, 20)
    drafted = generate(model, start, scope["Followers"](), max_new_tokens=24)
    assert drafted.tokens == generate(model, start, max_new_tokens=24).tokens


def test_a_row_is_drawn_compared_and_shown_without_another_line(page):
    named = set(re.findall(r"`(\w+)=", PAGE.read_text(encoding="utf-8")))
    assert named - {"capture"} <= set(methods.Method.__dataclass_fields__) and "state" in named
    assert all("Followers" in methods.compared_in(chapter) for chapter in methods.COMPARISONS)
    assert (plots.color("Followers"), plots.marker("Followers")) == ("#17becf", "p")
    assert methods.slug("Followers") == "followers" and methods.exact(["Followers", "SpecDec"]) == ("Followers",)
    examples = method_examples.Examples(page[0]["target"], None, page[0]["tokenizer"], max_new_tokens=24)
    assert examples.drafted("Followers").path and examples.drafted("Followers").own


def test_the_blocks_of_the_page_on_claims_judge_its_claim(tmp_path, monkeypatch, capsys):
    text = (paths.root() / "book" / "add-a-claim.md").read_text(encoding="utf-8")
    (claim,) = re.findall(r"^```yaml\n(.*?)^```", text, re.DOTALL | re.MULTILINE)
    (tmp_path / "my_claim.yml").write_text(claim, encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    scope: dict = {}
    for block in re.findall(r"^```python\n(.*?)^```", text, re.DOTALL | re.MULTILINE):
        exec(compile(block, "add-a-claim.md", "exec"), scope)
    assert list(scope["judged"].verdict) == [rules.HOLDS] and "my-claim   holds" in capsys.readouterr().out
    assert scope["number"].low <= scope["number"].value <= scope["number"].high
    # Every field that claims have is explained, and every one that is explained exists.
    named = set(re.findall(r"^\| `(\w+)` \|", text, re.MULTILINE)) | set(re.findall(r"`(\w+)` \(", text))
    assert named | {"note", "headline"} == set(rules.Claim.__dataclass_fields__) - {"partly_how"}
