"""Published sets of chat and instructions: MT-Bench, Spec-Bench, GSM8K, Alpaca and Code Alpaca."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

from specdec_lib.experiments.data.prompt import Prompt
from specdec_lib.experiments.data.published_sets.files import DataFile, Root
from specdec_lib.records import read_jsonl, read_records

MT_BENCH = DataFile("mt_bench", "lm-sys/FastChat/fastchat/llm_judge/data/mt_bench/question.jsonl", "Apache-2.0")
SPEC_BENCH = DataFile("spec_bench", "hemingkx/Spec-Bench/data/spec_bench/question.jsonl", "Apache-2.0")
SPEC_BENCH_SUBSETS = ("mt_bench", "translation", "summarization", "qa", "math_reasoning", "rag")
# The subset of each category: MT-Bench's are its own, and all are Spec-Bench's "mt_bench".
CATEGORIES = {
    name: name for name in ("writing", "roleplay", "reasoning", "math", "coding", "extraction", "stem", "humanities")
}
PARTS = dict.fromkeys(CATEGORIES, "mt_bench") | {name: name for name in SPEC_BENCH_SUBSETS[1:]}
GSM8K = {
    split: DataFile("gsm8k", f"openai/grade-school-math/grade_school_math/data/{split}.jsonl", "MIT")
    for split in ("test", "train")
}
_PULL_REQUEST = "at commit 5e69c50c54048cd3b919c46d13bb2d92a62f4498 of a pull request"
ALPACA = {
    "alpaca_data": DataFile("alpaca", "tatsu-lab/stanford_alpaca/alpaca_data.json", "CC BY-NC 4.0"),
    "alpaca_5000": DataFile(
        "alpaca", "tatsu-lab/stanford_alpaca/data/alpaca_5000.json", "CC BY-NC 4.0", note=_PULL_REQUEST
    ),
    "random_9k": DataFile("alpaca", "gpt4life/alpagasus/data/random/random_9k.json", "CC BY-NC 4.0"),
}
CODEALPACA = {
    name: DataFile("codealpaca", f"sahil280114/codealpaca/data/{name}.json", "CC BY-NC 4.0")
    for name in ("code_alpaca_20k", "code_alpaca_2k")
}
INSTRUCTION = (
    "Below is an instruction that describes a task. Write a response that appropriately completes the request.\n\n"
)
_METAMATH = INSTRUCTION + "### Instruction:\n{question}\n\n### Response: Let's think step by step."


def questions(file: DataFile, subsets: Mapping[str, str], root: Root, subset: str | None) -> Iterator[Prompt]:
    """Yield the rows of a FastChat ``question.jsonl``, worded as there; ``subsets`` has the subset of each category.

    A reference has one text a turn (empty where a turn has none), or every acceptable answer where a question of one turn has
    several; the prompt's is that of the last turn, the first of several.
    """
    for row in read_jsonl(root.find(file)):
        turns = row.texts("turns")
        if not all(turn.strip() for turn in turns):
            raise row.bad("field 'turns' has an empty turn")
        category = row.one_of("category", tuple(subsets))
        answers: Any = row.typed("reference", list, "a list of texts") if "reference" in row else ()
        if len(turns) == len(answers) == 1 and isinstance(answers[0], list):
            answers = answers[0]
        elif answers and len(answers) != len(turns):
            raise row.bad(f"field 'reference' has {len(answers)} answers to {len(turns)} turns")
        if not all(isinstance(answer, str) for answer in answers):
            raise row.bad(f"field 'reference' is {answers!r:.80}; expected texts")
        last = answers[-1 if len(turns) > 1 else 0] if answers else None
        number = row.typed("question_id", (int, str), "a number or a text")
        if subset in (None, subsets[category]):
            yield Prompt(str(number), root.task, turns, reference=last or None)


def gsm8k(root: Root) -> Iterator[Prompt]:
    """Yield the GSM8K questions as SpecDec++'s released ``data/gen_dataset.py`` asks them."""
    for number, row in enumerate(read_jsonl(root.find(GSM8K["test"]))):
        turn, answer = row.fill(_METAMATH), row.text("answer")
        if "####" not in answer:
            raise row.bad("field 'answer' has no '####' before the final number")
        yield Prompt(f"test-{number}", root.task, (turn,), reference=answer)


def alpaca(root: Root) -> Iterator[Prompt]:
    """Yield the Alpaca instructions, as SpecDec++'s released ``data/gen_dataset.py`` asks them."""
    yield from _instructions(root, ALPACA)


def codealpaca(root: Root) -> Iterator[Prompt]:
    """Yield the Code Alpaca instructions.

    DReSD's released ``evaluate.py`` leaves the record's ``input`` out, even where the instruction speaks of it.
    """
    for prompt in _instructions(root, CODEALPACA):
        turn = f"Question: {prompt.meta['instruction'].strip()}\nAnswer:\n"
        yield replace(prompt, turns=(turn,), chat=False)


def _instructions(root: Root, files: Mapping[str, DataFile]) -> Iterator[Prompt]:
    """Yield the records of the first file that is there, which the ids name."""
    path = root.find(*files.values())
    name = path.name.split(".")[0]
    for number, row in enumerate(read_records(path)):
        meta, given = {"instruction": row.text("instruction")}, row.text("input", empty=True)
        turn = meta["instruction"] + (f"\nInput: {given}" if given.strip() else "")
        answer = row.text("output", empty=True) or None
        yield Prompt(f"{name}-{number}", root.task, (turn.strip(),), reference=answer, meta=meta)
