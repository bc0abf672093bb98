"""Chat and instruction sets: MT-Bench, Spec-Bench, GSM8K, Alpaca, Code Alpaca."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from specdec_lib.experiments.prompt import Prompt
from specdec_lib.experiments.published_sets.reading import DataFile, Record, Root, read_jsonl, read_records

MT_BENCH = DataFile(
    "mt_bench/question.jsonl", "lm-sys/FastChat/fastchat/llm_judge/data/mt_bench/question.jsonl", "Apache-2.0"
)
SPEC_BENCH = DataFile("spec_bench/question.jsonl", "hemingkx/Spec-Bench/data/spec_bench/question.jsonl", "Apache-2.0")
GSM8K = {
    split: DataFile(f"gsm8k/{split}.jsonl", f"openai/grade-school-math/grade_school_math/data/{split}.jsonl", "MIT")
    for split in ("test", "train")
}
_LICENCE = "CC BY-NC 4.0"
ALPACA = {
    name: DataFile(f"alpaca/{name}.json", origin, _LICENCE, distinct=True, note=note)
    for name, origin, note in (
        ("alpaca_data", "tatsu-lab/stanford_alpaca/alpaca_data.json", ""),
        (
            "alpaca_5000",
            "tatsu-lab/stanford_alpaca/data/alpaca_5000.json",
            "at commit 5e69c50c54048cd3b919c46d13bb2d92a62f4498 of a pull request",
        ),
        ("random_9k", "gpt4life/alpagasus/data/random/random_9k.json", ""),
    )
}
CODEALPACA = {
    name: DataFile(f"codealpaca/{name}.json", f"sahil280114/codealpaca/data/{name}.json", _LICENCE, distinct=True)
    for name in ("code_alpaca_20k", "code_alpaca_2k")
}
MT_BENCH_CATEGORIES = ("writing", "roleplay", "reasoning", "math", "coding", "extraction", "stem", "humanities")
SPEC_BENCH_SUBSETS = ("mt_bench", "translation", "summarization", "qa", "math_reasoning", "rag")
_METAMATH = (
    "Below is an instruction that describes a task. "
    "Write a response that appropriately completes the request.\n\n"
    "### Instruction:\n{question}\n\n### Response: Let's think step by step."
)


def mt_bench(root: Root, subset: str | None, style: str) -> Iterator[Prompt]:
    """Yield the MT-Bench questions, of one category with ``subset``.

    ``style="chat"``: both turns (REST, PLD+). ``style="dresd"``: the first turn alone, as ``Question: ...`` and
    ``Answer:`` to be continued (DReSD, released ``evaluate.py``).
    """
    for prompt in _questions(root, MT_BENCH, subset, {name: name for name in MT_BENCH_CATEGORIES}):
        if style == "dresd":
            turn, answers = f"Question: {prompt.text.strip()}\nAnswer:\n", prompt.meta["references"]
            first = (answers[0] or None) if answers else None
            prompt = Prompt(prompt.id, prompt.task, (turn,), chat=False, reference=first, meta=prompt.meta)
        yield prompt


def spec_bench(root: Root, subset: str | None) -> Iterator[Prompt]:
    """Yield the Spec-Bench questions, worded as in the file; the subset ``mt_bench`` is all of MT-Bench."""
    parts = {name: "mt_bench" for name in MT_BENCH_CATEGORIES} | {name: name for name in SPEC_BENCH_SUBSETS[1:]}
    yield from _questions(root, SPEC_BENCH, subset, parts)


def _questions(root: Root, file: DataFile, subset: str | None, subsets: Mapping[str, str]) -> Iterator[Prompt]:
    """Yield the rows of a FastChat ``question.jsonl``; ``subsets`` has the subset of each category.

    ``meta["references"]`` has one text a turn (empty where a turn has none), or every acceptable answer where
    a question of one turn has several; ``reference`` is that of the last turn, the first of several.
    """
    for row in read_jsonl(root.find(file)):
        turns = row.texts("turns")
        if not all(turn.strip() for turn in turns):
            raise row.bad("field 'turns' has an empty turn")
        category = row.one_of("category", tuple(subsets))
        answers = _answers(row, len(turns))
        last = answers[-1] if len(turns) > 1 and answers else (answers or ("",))[0]
        number = row.typed("question_id", (int, str), "a number or a text")
        meta = {"question_id": number, "category": category, "subset": subsets[category], "references": answers}
        if subset in (None, subsets[category]):
            yield Prompt(str(number), root.task, turns, reference=last or None, meta=meta)


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


def gsm8k(root: Root, split: str, style: str) -> Iterator[Prompt]:
    """Yield the GSM8K questions; SpecDec++ uses the split ``test``.

    ``style="specdec++"``: the MetaMath chain-of-thought instruction as one user's turn (SpecDec++, released
    ``data/gen_dataset.py``). ``style="question"``: the question alone, as Spec-Bench asks it.
    """
    for number, row in enumerate(read_jsonl(root.find(GSM8K[split]))):
        question, answer = row.text("question"), row.text("answer")
        if "####" not in answer:
            raise row.bad("field 'answer' has no '####' before the final number")
        turn = question if style == "question" else _METAMATH.format(question=question)
        meta = {"split": split, "question": question, "final": answer.rsplit("####", 1)[1].strip()}
        yield Prompt(f"{split}-{number}", root.task, (turn,), reference=answer, meta=meta)


def alpaca(root: Root, source: str | None) -> Iterator[Prompt]:
    """Yield the Alpaca instructions, with ``Input:`` on a line of its own where there is one (SpecDec++).

    ``source`` is the complete file or one of two published parts of it. Without it the first of them that is there is
    read; ``meta["source"]`` tells which it was. SpecDec++ splits the complete file 40 000 / 10 000 / 2 000 by an
    unseeded shuffle, so that its test prompts cannot be had again.
    """
    for id, meta, answer in _instructions(root, ALPACA, source):
        yield Prompt(id, root.task, (_with_input(meta),), reference=answer, meta=meta)


def codealpaca(root: Root, style: str, source: str | None) -> Iterator[Prompt]:
    """Yield the Code Alpaca instructions from the file ``source``, or from the first that is there.

    ``style="dresd"``: ``Question: ...`` and ``Answer:`` to be continued, with the instruction alone, as DReSD's
    released ``evaluate.py`` does: it leaves the record's ``input`` out, even where the instruction speaks of it.
    ``style="alpaca"``: instruction and input as one user's turn, worded as :func:`alpaca` does (our choice).
    """
    for id, meta, answer in _instructions(root, CODEALPACA, source):
        meta["instruction"] = meta["instruction"].strip()
        turn = f"Question: {meta['instruction']}\nAnswer:\n" if style == "dresd" else _with_input(meta)
        yield Prompt(id, root.task, (turn,), chat=style != "dresd", reference=answer, meta=meta)


def _instructions(
    root: Root, files: Mapping[str, DataFile], source: str | None
) -> Iterator[tuple[str, dict[str, Any], str | None]]:
    """Yield id, ``meta`` (source, instruction and input) and answer of each record of a file in Alpaca's format."""
    path = root.find(*([files[source]] if source else files.values()))
    name = path.name.split(".")[0]
    for number, row in enumerate(read_records(path)):
        meta = {"source": name, "instruction": row.text("instruction"), "input": row.text("input", empty=True)}
        yield f"{name}-{number}", meta, row.text("output", empty=True) or None


def _with_input(meta: Mapping[str, str]) -> str:
    """Return instruction and input in one turn, as SpecDec++'s released ``data/gen_dataset.py`` does."""
    given = f"\nInput: {meta['input']}" if meta["input"].strip() else ""
    return (meta["instruction"] + given).strip()
