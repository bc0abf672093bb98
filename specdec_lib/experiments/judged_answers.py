"""What a model writes to a prompt by itself, judged: right or wrong, in a loop or not, and where a draft model agrees."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from specdec_lib.experiments.all_cores import on_all_cores
from specdec_lib.experiments.metrics import ends_in_loop, greedy_agreement
from specdec_lib.experiments.prompt import Prompt
from specdec_lib.experiments.recordings import record_once


@dataclass(frozen=True)
class JudgedAnswer:
    """What a model wrote to the last turn of a prompt.

    Attributes
    ----------
    prompt : Prompt
    text : str
    right : bool
        It is the reference and the model ended it. False where there is no reference to a chat prompt.
    looped : bool
        Its first tokens end in a loop.
    agreement : bool array, shape (tokens,)
        Where the draft's first choice is the token written.
    asked, tokens : list of int
        Token ids before the answer, and those of the answer with its end token.
    """

    prompt: Prompt
    text: str
    right: bool
    looped: bool
    agreement: np.ndarray
    asked: list[int]
    tokens: list[int]


def answer_greedily(
    model: PreTrainedModel,
    draft: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    prompt: Prompt,
    loop_tokens: int = 128,
) -> JudgedAnswer:
    """Let a model answer a prompt greedily, unless a chapter did before, and judge the last answer.

    Parameters
    ----------
    model, draft, tokenizer
    prompt : Prompt
    loop_tokens : int
        A loop is looked for at the end of this many tokens. The output goes on as long as the reference is.
    """
    known = (
        tokenizer(prompt.reference, add_special_tokens=False)["input_ids"] if prompt.chat and prompt.reference else []
    )
    trace = record_once(model, tokenizer, [prompt], max_new_tokens=max(loop_tokens, len(known) + 8))[-1].trace
    text = tokenizer.decode(trace.tokens, skip_special_tokens=True)
    agreement = greedy_agreement(draft, trace.prompt, trace.tokens)
    right = prompt.chat and trace.finish_reason == "eos" and text == prompt.reference
    looped = ends_in_loop(trace.tokens[:loop_tokens])
    return JudgedAnswer(prompt, text, right, looped, agreement, trace.prompt, trace.tokens)


def answer_all(
    model: PreTrainedModel,
    draft: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    prompts: Sequence[Prompt],
    loop_tokens: int = 128,
) -> list[JudgedAnswer]:
    """:func:`answer_greedily` for each of some prompts, on all cores."""
    return on_all_cores([partial(answer_greedily, model, draft, tokenizer, prompt, loop_tokens) for prompt in prompts])
