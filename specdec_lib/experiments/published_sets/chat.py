"""Chat and instruction sets: MT-Bench, Spec-Bench, GSM8K, Alpaca."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from specdec_lib.experiments.prompt import Prompt
from specdec_lib.experiments.published_sets.code import with_input
from specdec_lib.experiments.published_sets.reading import (
    DataFile,
    Record,
    Root,
    choice,
    read_json_list,
    read_jsonl,
)

MT_BENCH = DataFile(
    "mt_bench",
    "question.jsonl",
    "lm-sys/FastChat",
    "fastchat/llm_judge/data/mt_bench/question.jsonl",
    "Apache-2.0",
)
SPEC_BENCH = DataFile(
    "spec_bench", "question.jsonl", "hemingkx/Spec-Bench", "data/spec_bench/question.jsonl", "Apache-2.0"
)
GSM8K = {
    split: DataFile(
        "gsm8k", f"{split}.jsonl", "openai/grade-school-math", f"grade_school_math/data/{split}.jsonl", "MIT"
    )
    for split in ("test", "train")
}
ALPACA = {
    "alpaca_data": DataFile(
        "alpaca",
        "alpaca_data.json",
        "tatsu-lab/stanford_alpaca",
        "alpaca_data.json",
        "CC BY-NC 4.0",
        distinct=True,
    ),
    "alpaca_5000": DataFile(
        "alpaca",
        "alpaca_5000.json",
        "tatsu-lab/stanford_alpaca",
        "data/alpaca_5000.json",
        "CC BY-NC 4.0",
        distinct=True,
        note="at commit 5e69c50c54048cd3b919c46d13bb2d92a62f4498 of a pull request",
    ),
    "random_9k": DataFile(
        "alpaca",
        "random_9k.json",
        "gpt4life/alpagasus",
        "data/random/random_9k.json",
        "CC BY-NC 4.0",
        distinct=True,
    ),
}
MT_BENCH_CATEGORIES = (
    "writing",
    "roleplay",
    "reasoning",
    "math",
    "coding",
    "extraction",
    "stem",
    "humanities",
)
SPEC_BENCH_SUBSETS = ("mt_bench", "translation", "summarization", "qa", "math_reasoning", "rag")
_METAMATH = (
    "Below is an instruction that describes a task. "
    "Write a response that appropriately completes the request.\n\n"
    "### Instruction:\n{question}\n\n### Response: Let's think step by step."
)


def mt_bench(root: Root, task: str, subset: str | None = None, style: str = "chat") -> Iterator[Prompt]:
    """Yield the MT-Bench questions.

    Parameters
    ----------
    subset : str, optional
        One of the eight categories.
    style : {"chat", "dresd"}
        ``"chat"``: both turns (REST, PLD+). ``"dresd"``: the first turn alone, as ``Question: ...`` and
        ``Answer:`` to be continued (DReSD, released ``evaluate.py``).
    """
    choice("subset", subset, (None, *MT_BENCH_CATEGORIES))
    choice("style", style, ("chat", "dresd"))
    for prompt in _questions(root.find(MT_BENCH), task, {name: name for name in MT_BENCH_CATEGORIES}):
        if subset not in (None, prompt.meta["subset"]):
            continue
        if style == "dresd":
            answers = prompt.meta["references"]
            prompt = Prompt(
                id=prompt.id,
                task=task,
                turns=(f"Question: {prompt.text.strip()}\nAnswer:\n",),
                chat=False,
                reference=(answers[0] or None) if answers else None,
                meta=prompt.meta,
            )
        yield prompt


def spec_bench(root: Root, task: str, subset: str | None = None) -> Iterator[Prompt]:
    """Yield the Spec-Bench questions, worded as in the file.

    Parameters
    ----------
    subset : {"mt_bench", "translation", "summarization", "qa", "math_reasoning", "rag"}, optional
        One of the six tasks; ``mt_bench`` are the eight categories of MT-Bench, with both turns.
    """
    choice("subset", subset, (None, *SPEC_BENCH_SUBSETS))
    parts = {name: "mt_bench" for name in MT_BENCH_CATEGORIES}
    parts |= {name: name for name in SPEC_BENCH_SUBSETS[1:]}
    for prompt in _questions(root.find(SPEC_BENCH), task, parts):
        if subset in (None, prompt.meta["subset"]):
            yield prompt


def _questions(path: Path, task: str, subsets: dict[str, str]) -> Iterator[Prompt]:
    """Yield the rows of a FastChat ``question.jsonl``; ``subsets`` has the subset of each category.

    ``meta["references"]`` has one text a turn (empty where a turn has none), or every acceptable answer where
    a question of one turn has several; ``reference`` is that of the last turn, the first of several.
    """
    for row in read_jsonl(path):
        turns = row.texts("turns")
        if not all(turn.strip() for turn in turns):
            raise row.bad("field 'turns' has an empty turn")
        category = row.text("category")
        if category not in subsets:
            raise row.bad(f"field 'category' is {category!r}; expected one of {', '.join(subsets)}")
        answers = _answers(row, len(turns))
        last = answers[-1] if len(turns) > 1 and answers else (answers or ("",))[0]
        yield Prompt(
            id=str(row.typed("question_id", (int, str), "a number or a text")),
            task=task,
            turns=turns,
            reference=last or None,
            meta={
                "question_id": row["question_id"],
                "category": category,
                "subset": subsets[category],
                "references": answers,
            },
        )


def _answers(row: Record, turns: int) -> tuple[str, ...]:
    if "reference" not in row:
        return ()
    answers = row.typed("reference", list, "a list of texts")
    if turns == 1 and len(answers) == 1 and isinstance(answers[0], list):
        answers = answers[0]
    elif len(answers) != turns:
        raise row.bad(f"field 'reference' has {len(answers)} answers to {turns} turns")
    if not all(isinstance(answer, str) for answer in answers):
        raise row.bad(f"field 'reference' is {answers!r:.80}; expected texts")
    return tuple(answers)


def gsm8k(root: Root, task: str, split: str = "test", style: str = "specdec++") -> Iterator[Prompt]:
    """Yield the GSM8K questions.

    Parameters
    ----------
    split : {"test", "train"}
        SpecDec++ uses ``test``.
    style : {"specdec++", "question"}
        ``"specdec++"``: the MetaMath chain-of-thought instruction as one user's turn (SpecDec++, released
        ``data/gen_dataset.py``). ``"question"``: the question alone, as Spec-Bench asks it.
    """
    choice("split", split, tuple(GSM8K))
    choice("style", style, ("specdec++", "question"))
    for number, row in enumerate(read_jsonl(root.find(GSM8K[split]))):
        question, answer = row.text("question"), row.text("answer")
        if "####" not in answer:
            raise row.bad("field 'answer' has no '####' before the final number")
        turn = question if style == "question" else _METAMATH.format(question=question)
        yield Prompt(
            id=f"{split}-{number}",
            task=task,
            turns=(turn,),
            reference=answer,
            meta={"split": split, "question": question, "final": answer.rsplit("####", 1)[1].strip()},
        )


def alpaca(root: Root, task: str, source: str | None = None) -> Iterator[Prompt]:
    """Yield the Alpaca instructions, with ``Input:`` on a line of its own where there is one (SpecDec++).

    Parameters
    ----------
    source : {"alpaca_data", "alpaca_5000", "random_9k"}, optional
        The complete file or one of two published parts of it. Without it the first of them that is there;
        ``meta["source"]`` tells which it was. SpecDec++ splits the complete file 40 000 / 10 000 / 2 000 by
        an unseeded shuffle, so that its test prompts cannot be had again.
    """
    choice("source", source, (None, *ALPACA))
    path = root.find(*([ALPACA[source]] if source else ALPACA.values()))
    name = path.name.split(".")[0]
    for number, row in enumerate(read_json_list(path)):
        instruction, given = row.text("instruction"), row.text("input", empty=True)
        yield Prompt(
            id=f"{name}-{number}",
            task=task,
            turns=(with_input(instruction, given),),
            reference=row.text("output", empty=True) or None,
            meta={"source": name, "instruction": instruction, "input": given},
        )
