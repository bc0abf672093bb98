"""What a pass of the target and a drafter's work cost, in units of a pass over one token."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from numbers import Real
from pathlib import Path
from typing import Any

import numpy as np

from specdec_lib.decoding.checks import whole_number
from specdec_lib.files import named, write_json

#: Names in :attr:`PassCosts.drafting` what one tree does besides asking its sources: merge, score, choose, judge and learn.
MERGING = "merging"


def _check(name: str, value: Any) -> None:
    if isinstance(value, bool) or not isinstance(value, Real) or not math.isfinite(value) or value < 0:
        raise ValueError(f"{name} is {value!r}; expected a finite number, 0 or more")


@dataclass(frozen=True)
class PassCosts:
    """Cost of a pass by its width, and of drafting, in units of a pass over one token.

    Between two widths the cost is on the line between theirs; above the largest it goes on along the last line.

    Raises
    ------
    ValueError
        If the cost of a pass over one token is missing, or one is negative or not finite.

    Examples
    --------
    >>> from specdec_lib.drafters.pass_costs import PassCosts
    >>> costs = PassCosts({1: 1.0, 4: 1.3, 8: 1.5})
    >>> costs.curve(5).round(2).tolist()
    [1.0, 1.1, 1.2, 1.3, 1.35]
    >>> costs.save(folder / "costs.json")
    >>> PassCosts.load(folder / "costs.json") == costs
    True
    """

    #: By tokens of a pass (the root included): its cost in units of a pass over one token. 1 must be among them.
    widths: Mapping[int, float]
    #: What any step costs besides the pass and the draft, a step of plain decoding too: the loop's own work.
    step: float = 0.0
    #: A pass of the draft model over one token.
    drafted_token: float = 0.0
    name: str = "given"
    #: Cost of asking a source for a draft, by its name, and of :data:`MERGING`; free where not named.
    drafting: Mapping[str, float] = field(default_factory=dict)
    _line: tuple[np.ndarray, np.ndarray] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        for width, cost in self.widths.items():
            whole_number("a width", width, 1)
            _check(f"the cost of {width} tokens", cost)
        if not self.widths.get(1):
            raise ValueError(f"widths are {sorted(self.widths)}; expected a cost above 0 for a pass over 1 token")
        _check("step", self.step)
        _check("drafted_token", self.drafted_token)
        for source, cost in self.drafting.items():
            _check(f"drafting of {source!r}", cost)
        known = np.array(sorted(self.widths), float)
        costs = np.array([self.widths[int(width)] for width in known]) / self.widths[1]
        object.__setattr__(self, "_line", (known, costs))

    def curve(self, widest: int) -> np.ndarray:
        """Costs of passes over 1, 2, ..., ``widest`` tokens, float64 of shape (widest,)."""
        known, costs = self._line
        wanted = np.arange(1, widest + 1, dtype=float)
        curve = np.interp(wanted, known, costs)
        if len(known) > 1 and widest > known[-1]:
            slope = (costs[-1] - costs[-2]) / (known[-1] - known[-2])
            beyond = wanted > known[-1]
            curve[beyond] = costs[-1] + max(slope, 0.0) * (wanted[beyond] - known[-1])
        return curve

    def step_of(self, *sources: str) -> float:
        """Cost of a step without its pass: the loop's own work and that of the sources that are asked."""
        return self.step + sum(self.drafting.get(source, 0.0) for source in sources)

    def save(self, path: str | Path) -> None:
        """Write a JSON file that :meth:`load` reads."""
        about = {
            "name": self.name,
            "widths": {str(width): float(cost) for width, cost in self.widths.items()},
            "step": float(self.step),
            "drafted_token": float(self.drafted_token),
            "drafting": {source: float(cost) for source, cost in self.drafting.items()},
        }
        write_json(path, about)

    @classmethod
    def load(cls, path: str | Path) -> PassCosts:
        """Read what :meth:`save` or ``python -m specdec_lib calibrate`` wrote.

        Raises
        ------
        ValueError
            If the file holds something else.
        """
        try:
            about = json.loads(named(path).read_text(encoding="utf-8"))
            widths = {int(width): cost for width, cost in about["widths"].items()}
            about = {"step": 0.0, "drafted_token": 0.0, "name": str(path), "drafting": {}} | about
            if not isinstance(about["name"], str):
                raise TypeError(f"its name is {about['name']!r:.80}")
            return cls(widths, about["step"], about["drafted_token"], about["name"], dict(about["drafting"]))
        except (KeyError, TypeError, AttributeError, ValueError, OverflowError, RecursionError) as error:
            raise ValueError(
                f'{path} holds no costs ({type(error).__name__}: {error}); expected JSON like {{"widths": {{"1": 1.0, '
                '"16": 1.25}, "step": 0.0, "drafted_token": 0.1, "drafting": {"PLD": 0.01}}, as `python -m specdec_lib '
                "calibrate` writes it"
            ) from None


#: Curves to compare with where none is measured: a pass on a GPU hardly depends on its width, one on a processor does (measured:
#: SmolLM2 in float32 on two cores, as data/results/cpu/seconds.csv has it), and a server's in proportion from 8 on.
CURVES: dict[str, PassCosts] = {
    costs.name: costs
    for costs in (
        PassCosts({1: 1.0, 8: 1.01, 16: 1.02, 32: 1.05, 64: 1.12, 128: 1.3}, name="gpu"),
        PassCosts({1: 1.0, 2: 1.03, 4: 1.29, 8: 1.42, 16: 1.73, 32: 2.33}, name="cpu"),
        PassCosts({1: 1.0, 8: 1.0, 16: 2.0, 32: 4.0, 64: 8.0, 128: 16.0}, name="server"),
    )
}
