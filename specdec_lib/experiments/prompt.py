"""One prompt of one task."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Prompt:
    """What a model is asked, and the right answer where it is known.

    Parameters
    ----------
    id : str
        Unique within its task and stable from run to run.
    task : str
        Name under which :func:`specdec_lib.experiments.tasks.load_task` gives it.
    turns : tuple of str
        The user's turns, in order. A completion prompt has exactly one.
    chat : bool
        True: the turns go through the tokenizer's chat template. False: ``turns[0]`` is continued as it stands.
    reference : str, optional
        The right answer to the last turn.
    meta : dict
        What the source says about the prompt (category, subset, source module, ...).
    """

    id: str
    task: str
    turns: tuple[str, ...]
    chat: bool = True
    reference: str | None = None
    meta: dict[str, Any] = field(default_factory=dict)

    @property
    def text(self) -> str:
        """The first turn."""
        return self.turns[0]
