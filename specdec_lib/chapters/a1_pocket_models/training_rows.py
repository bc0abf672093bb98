"""Tokenizer and training sequences of the pocket pair.

Text comes from the corpus (:mod:`specdec_lib.chapters.a1_pocket_models.training_text`), tasks are made from pieces of
it (:mod:`specdec_lib.experiments.made_tasks`).
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

from specdec_lib.experiments import made_tasks

END, USER, ASSISTANT, PAD = "<|end|>", "<|user|>", "<|assistant|>", "<|pad|>"
#: Words, numbers by digit, punctuation runs, line breaks with the indentation that follows, other blanks.
_SPLIT = r" ?[A-Za-z]+| ?[0-9]| ?[^\sA-Za-z0-9]+|\n[ \n]*|[^\S\n]+|\s"
CHAT_TEMPLATE = (
    "{% for m in messages %}{{ '<|' + m['role'] + '|>' + m['content'] }}"
    "{% if m['role'] == 'assistant' %}{{ '<|end|>' }}{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|assistant|>' }}{% endif %}"
)
#: Share of each task among the training tasks. The tasks that copy nearly all of their answer have 45 %; rename and
#: two-turn are the slowest of them to learn.
TASK_SHARES = {
    "rename": 0.12,
    "replace-word": 0.09,
    "quote-lines": 0.07,
    "two-turn": 0.06,
    "remove-docstring": 0.05,
    "complete": 0.04,
    "outline": 0.02,
    "change-default": 0.04,
    "change-literal": 0.04,
    "add-parameter": 0.04,
    "remove-parameter": 0.04,
    "percent-to-fstring": 0.04,
    "type-hints": 0.04,
    "wrap-try": 0.04,
    "fix-bug": 0.04,
    "sort-imports": 0.03,
    "invert-condition": 0.03,
    "write-docstring": 0.03,
    "write-function": 0.03,
    "summarise-docstring": 0.03,
    "reorder-functions": 0.02,
    "two-turn-edit": 0.06,
}
#: Pieces of text tried for one task before it is given up: the rarest task can use one of about 40.
TRIES = 20_000
#: Tasks of the first part of the training, which teach copying before editing.
COPYING_TASKS = ("rename", "replace-word", "quote-lines", "two-turn", "remove-docstring", "complete", "outline")
#: Loss weight of an answer's tokens; all other tokens weigh 1.
ANSWER_WEIGHT = 2


def train_tokenizer(texts: list[str], vocab_size: int, context: int) -> PreTrainedTokenizerFast:
    """Byte-level BPE over ``texts`` with the chat template of the pair.

    Parameters
    ----------
    texts : list of str
    vocab_size : int
        Entries in all, the 256 bytes and four special tokens included.
    context : int
        Longest sequence in tokens that the tokenizer does not warn about.
    """
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(_SPLIT), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        special_tokens=[END, USER, ASSISTANT, PAD],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        eos_token=END,
        pad_token=PAD,
        model_max_length=context,
        additional_special_tokens=[USER, ASSISTANT],
        chat_template=CHAT_TEMPLATE,
        clean_up_tokenization_spaces=False,
    )


def conversation(
    tokenizer: PreTrainedTokenizerFast,
    turns: tuple[str, ...],
    answers: tuple[str, ...],
) -> tuple[list[int], list[int]]:
    """Token ids of a whole conversation, and for each 1 if it belongs to an answer (its end token too), else 0."""
    ids, is_answer = [], []
    for turn, answer in zip(turns, answers, strict=True):
        asked = tokenizer.encode(USER + turn + ASSISTANT, add_special_tokens=False)
        said = tokenizer.encode(answer + END, add_special_tokens=False)
        ids += asked + said
        is_answer += [0] * len(asked) + [1] * len(said)
    return ids, is_answer


@dataclass(frozen=True)
class Rows:
    """Training rows as a function of the seed and their place, made a block at a time.

    A resumed run sees what an unbroken one would have seen, and no task is seen twice.

    Attributes
    ----------
    tokenizer : PreTrainedTokenizerFast
    stream : uint16 array
        Text, documents one after another.
    materials : dict
        Pieces that tasks are made from, of :func:`specdec_lib.experiments.made_tasks.materials`.
    task_share : float
        Share of the rows that begin with tasks; running text fills them up and makes the others.
    seed : int
    """

    tokenizer: PreTrainedTokenizerFast
    stream: np.ndarray
    materials: dict
    task_share: float
    seed: int

    def block(self, number: int, count: int, length: int, tasks: dict[str, float]) -> tuple[np.ndarray, np.ndarray]:
        """Tokens and loss weights of ``count`` rows.

        Parameters
        ----------
        number : int
            Which block; text rows of block after block walk through the stream.
        count, length : int
            Rows, and tokens that the model is given of each.
        tasks : dict of str to float
            Weight of each task.

        Returns
        -------
        tokens : int64 array, shape (count, length + 1)
        weights : float32 array, shape (count, length + 1)
        """
        rng = random.Random(f"{self.seed}/{length}/{number}")
        with_tasks = round(self.task_share * count)
        width = length + 1
        tokens = np.empty((count, width), np.int64)
        weights = np.ones((count, width), np.float32)
        first = number * (count - with_tasks) * length % len(self.stream)
        for i in range(count - with_tasks):
            tokens[i] = self._text(first + i * length, width)
        exchanges = self._exchanges(rng, tasks)
        waiting: tuple[list[int], list[int]] | None = None
        for i in range(count - with_tasks, count):
            filled = 0
            while True:
                ids, is_answer = waiting or next(exchanges)
                waiting = None
                if len(ids) > width:
                    continue
                if filled + len(ids) > width:
                    waiting = ids, is_answer
                    break
                tokens[i, filled : filled + len(ids)] = ids
                weights[i, filled : filled + len(ids)] = np.where(is_answer, ANSWER_WEIGHT, 1)
                filled += len(ids)
            tokens[i, filled:] = self._text(rng.randrange(len(self.stream)), width - filled)
        order = np.random.default_rng([self.seed, length, number]).permutation(count)
        return tokens[order], weights[order]

    def _text(self, start: int, count: int) -> np.ndarray:
        return np.take(self.stream, np.arange(start, start + count), mode="wrap")

    def _exchanges(self, rng: random.Random, tasks: dict[str, float]) -> Iterator[tuple[list[int], list[int]]]:
        pool = made_tasks.name_pool(self.materials["code"])
        while True:
            task = rng.choices(list(tasks), list(tasks.values()))[0]
            maker, kind = made_tasks.MAKERS[task]
            # Words are replaced in code as well.
            if kind == "prose" and rng.random() < 0.5:
                kind = "code"
            # Another piece for the same task, so that a task that few pieces allow keeps its share.
            tried = (maker(rng.choice(self.materials[kind]).text, rng, pool) for _ in range(TRIES))
            made = next((exchange for exchange in tried if exchange is not None), None)
            if made is None:
                raise ValueError(
                    f"none of {TRIES} pieces of {kind} from the training text allows the task {task!r}; "
                    "give more text, or leave the task out of TASK_SHARES"
                )
            yield conversation(self.tokenizer, *made)
