"""The example of the glossary is what the library counts."""

from __future__ import annotations

import re

import pytest

from specdec_lib import paths
from specdec_lib.decoding.results import Generation, Step, metrics
from specdec_lib.decoding.tree import DraftTree

pytestmark = pytest.mark.skipif(paths.ROOT is None, reason="needs a checkout")


def test_the_example_has_the_numbers_that_the_library_gives_it():
    page = (paths.root() / "book" / "glossary.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| [123] \| (\d) \| (\d) \| (\d) \|", page, re.MULTILINE)
    steps = [
        Step(DraftTree.chain(range(int(drafted))), tuple(range(int(accepted))), (0,) * int(emitted), 0, 0, 0)
        for drafted, accepted, emitted in rows
    ]
    first = 1
    run = Generation([0] * (first + sum(len(step.tokens) for step in steps)), steps, "length", 1, 0)
    found = metrics([run])
    said = re.findall(r"\{term\}`(\w+)` is \$[^$]*?(\d+) / (\d+)\$", page)
    assert {name for name, *_ in said} == {
        "tokens_per_forward", "mean_accepted_drafts", "acceptance_rate", "discard_rate", "verification_rate"
    }  # fmt: skip
    for name, above, below in said:
        assert found[name] == pytest.approx(int(above) / int(below)), name
