"""Tokenizer and training sequences of the pocket pair.

All text is the Python standard library (:mod:`specdec_lib.evaluation.corpus`, side ``"train"``) and the mechanical
tasks made from it; nothing else is read.
"""
from __future__ import annotations

import random
from dataclasses import dataclass

import numpy as np
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, trainers
from tqdm.auto import tqdm
from transformers import PreTrainedTokenizerFast

from ..evaluation import corpus, mechanical

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
    "rename": 0.12, "replace-word": 0.09, "quote-lines": 0.07, "two-turn": 0.06, "remove-docstring": 0.05, "complete": 0.04,
    "outline": 0.02,
    "change-default": 0.04, "change-literal": 0.04, "add-parameter": 0.04, "remove-parameter": 0.04,
    "percent-to-fstring": 0.04, "type-hints": 0.04, "wrap-try": 0.04, "fix-bug": 0.04, "sort-imports": 0.03,
    "invert-condition": 0.03, "write-docstring": 0.03, "write-function": 0.03, "summarise-docstring": 0.03,
    "reorder-functions": 0.02, "two-turn-edit": 0.06,
}
#: Pieces of text tried for one task before it is given up: the rarest task can use one of about 40.
TRIES = 20_000
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
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([
        pre_tokenizers.Split(Regex(_SPLIT), "isolated"), pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(vocab_size=vocab_size, special_tokens=[END, USER, ASSISTANT, PAD],
                                  initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), show_progress=False)
    tokenizer.train_from_iterator(texts, trainer)
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token=END, pad_token=PAD, model_max_length=context,
                                   additional_special_tokens=[USER, ASSISTANT], chat_template=CHAT_TEMPLATE,
                                   clean_up_tokenization_spaces=False)


def conversation(tokenizer: PreTrainedTokenizerFast, turns: tuple[str, ...], answers: tuple[str, ...],
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
class Sequences:
    """Packed training sequences.

    Attributes
    ----------
    tokens : int16 array, shape (n, length + 1)
    weights : uint8 array, shape (n, length + 1)
        Loss weight of each token as a target.
    """

    tokens: np.ndarray
    weights: np.ndarray

    def batch(self, step: int, size: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
        """Rows of step ``step``: a function of (step, seed), so that a resumed run sees what an unbroken one would."""
        per_epoch = len(self.tokens) // size
        epoch, place = divmod(step, per_epoch)
        order = np.random.default_rng([seed, epoch]).permutation(len(self.tokens))
        rows = order[place * size: (place + 1) * size]
        return self.tokens[rows].astype(np.int64), self.weights[rows].astype(np.float32)


def make_tasks(n: int, seed: int) -> list[mechanical.Exchange]:
    """``n`` training tasks in the shares of :data:`TASK_SHARES`; code takes part in word replacement as well."""
    rng = random.Random(seed)
    found = mechanical.materials(corpus.stdlib_modules("train"))
    pool = mechanical.name_pool(found["code"])
    out: list[mechanical.Exchange] = []
    names, shares = list(TASK_SHARES), list(TASK_SHARES.values())
    with tqdm(total=n, desc="tasks", mininterval=5) as bar:
        while len(out) < n:
            task = rng.choices(names, shares)[0]
            maker, kind = mechanical.MAKERS[task]
            if kind == "prose" and rng.random() < 0.5:
                kind = "code"
            # Another piece for the same task, so that a task that few pieces allow keeps its share.
            tried = (maker(rng.choice(found[kind]).text, rng, pool) for _ in range(TRIES if found[kind] else 0))
            made = next((exchange for exchange in tried if exchange is not None), None)
            if made is None:
                raise ValueError(f"none of {TRIES} pieces of {kind} from the training text allows the task {task!r}; "
                                 "give more text, or leave the task out of TASK_SHARES")
            out.append(made)
            bar.update()
    return out


def pack(tokenizer: PreTrainedTokenizerFast, n_tasks: int, length: int, task_rows: float, seed: int) -> Sequences:
    """Rows of ``length + 1`` tokens: whole tasks first, running text in what is left.

    Parameters
    ----------
    n_tasks : int
        Tasks to make; those longer than a row are dropped.
    length : int
        Tokens a model sees at once.
    task_rows : float
        Share of the rows that hold tasks; the others are running text alone.
    seed : int
    """
    modules = list(corpus.stdlib_modules("train"))
    random.Random(seed).shuffle(modules)
    encoded = tokenizer([m.text for m in modules], add_special_tokens=False)["input_ids"]
    end = tokenizer.eos_token_id
    stream = np.concatenate([np.asarray(ids + [end], np.int16) for ids in encoded])
    position = 0

    def text(count: int) -> np.ndarray:
        nonlocal position
        piece = np.take(stream, np.arange(position, position + count), mode="wrap")
        position = (position + count) % len(stream)
        return piece

    rows, weights = [], []
    row: list[int] = []
    weight: list[int] = []
    rng = random.Random(seed + 1)

    def close() -> None:
        rest = length + 1 - len(row)
        rows.append(np.concatenate([np.asarray(row, np.int16), text(rest)]))
        weights.append(np.concatenate([np.asarray(weight, np.uint8), np.ones(rest, np.uint8)]))
        row.clear()
        weight.clear()

    for turns, answers in make_tasks(n_tasks, seed):
        ids, is_answer = conversation(tokenizer, turns, answers)
        if len(ids) > length + 1:
            continue
        if len(row) + len(ids) > length + 1:
            close()
        row += ids
        weight += [ANSWER_WEIGHT if a else 1 for a in is_answer]
        while rng.random() > task_rows:
            rows.append(text(length + 1))
            weights.append(np.ones(length + 1, np.uint8))
    return Sequences(np.stack(rows), np.stack(weights))
