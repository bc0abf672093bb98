"""What drafting is priced by."""

from __future__ import annotations

import pytest

from specdec_lib import DraftTree
from specdec_lib.decoding.results import Step
from specdec_lib.experiments.pass_costs import units
from specdec_lib.methods import METHODS

FORK = Step(DraftTree([1, 2, 3], [-1, -1, 1]), (1, 2), (2, 3, 5), 0, 0, 0)


@pytest.mark.parametrize(("method", "count"), [("PLD", 1), ("SpecDec", 3), ("EAGLE", 2)])
def test_drafting_is_counted_by_steps_tokens_or_levels(method, count):
    assert units(METHODS[method], FORK) == count
