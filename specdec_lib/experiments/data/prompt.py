"""One prompt of one task, and the token ids that ask for its answer."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


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


def render(prompt: Prompt, tokenizer: PreTrainedTokenizerBase, answers: Sequence[str] = ()) -> list[int]:
    """Token ids that ask for the answer to the turn after ``answers``, which answer the turns before it.

    Raises ValueError if there is no such turn, or the prompt is a chat and the tokenizer has no chat template.
    """
    if len(answers) >= len(prompt.turns):
        raise ValueError(
            f"prompt {prompt.id!r} has {len(prompt.turns)} turns and {len(answers)} answers; expected fewer "
            "answers than turns"
        )
    if not prompt.chat:
        return list(tokenizer(prompt.text)["input_ids"])
    if tokenizer.chat_template is None:
        raise ValueError(
            f"prompt {prompt.id!r} is a chat and the tokenizer of {tokenizer.name_or_path!r} has no chat "
            "template; choose a chat model, or a task whose prompts are continued as they stand"
        )
    messages = []
    for turn, answer in zip(prompt.turns, answers, strict=False):
        messages += [{"role": "user", "content": turn}, {"role": "assistant", "content": answer}]
    messages.append({"role": "user", "content": prompt.turns[len(answers)]})
    return list(tokenizer.apply_chat_template(messages, add_generation_prompt=True, return_dict=True)["input_ids"])
