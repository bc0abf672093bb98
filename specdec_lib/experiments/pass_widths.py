"""What a step's drafting is priced by."""

from __future__ import annotations

from specdec_lib.decoding.results import Step
from specdec_lib.methods import Method


def units(method: Method, step: Step) -> int:
    """What a step's drafting is priced by: the step itself, its drafted tokens or its levels (``Method.price``)."""
    return {"step": 1, "token": step.drafted, "level": step.tree.depth}[method.price]
