"""The page on adding a claim: its blocks run in order on the claim that it shows."""

from __future__ import annotations

import re

import pytest

from specdec_lib import paths
from specdec_lib.report.claims import rules

pytestmark = pytest.mark.skipif(paths.ROOT is None, reason="an installed package has no pages")


def test_the_blocks_of_the_page_judge_its_claim(tmp_path, monkeypatch, capsys):
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
