"""One prompt of one task."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Prompt:
    """What a model is asked: the user's turns, and the right answer to the last one where it is known.

    ``id`` is unique within its ``task`` and stable from run to run. With ``chat`` the turns go through the tokenizer's chat
    template; else ``turns[0]`` is continued as it stands. ``meta`` has what the source says (category, subset, ...).
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
