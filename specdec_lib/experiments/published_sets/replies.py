"""What large models wrote: recorded outputs to replay drafters on, and text for datastores beside them.

A file that is not there raises MissingData and one that does not hold what its format says BadRecord, as
:func:`specdec_lib.experiments.tasks.load_task` does; ``root`` is the folder of the data sets.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from specdec_lib.experiments.published_sets.chat import ALPACA, GSM8K, MT_BENCH
from specdec_lib.experiments.published_sets.reading import DataFile, Record, Root, choice, read_jsonl, read_records

_ANSWERS = "{}-vicuna-7b-v1.5-temperature-0.0-top_p-0.jsonl"
MT_BENCH_RUNS = {
    run: DataFile(
        f"mt_bench/model_answer/{_ANSWERS.format(name)}",
        f"FasterDecoding/REST/llm_judge/data/mt_bench/model_answer/{_ANSWERS.format(name)}",
        "Apache-2.0",
    )
    for run, name in (("plain", "baseline"), ("REST", "rest"))
}
_SAMPLES = "HumanEval_codegen16B_temp0.8_topp0.95_num100_max300_code_solution.jsonl"
CODEGEN = DataFile(f"humaneval/samples/{_SAMPLES}", f"microsoft/CodeT/CodeT/data/generated_data/{_SAMPLES}", "MIT")
_ROLEPLAY = "roleplay-simple-deduped-roleplay-instruct.json"
_OASST = "oasstcommitpackftmanual.jsonl"
CHAT_SETS = {
    "dolly": (
        DataFile("dolly/dolly_3k.json", "gpt4life/alpagasus/data/filtered/dolly_3k.json", "CC BY-SA 3.0"),
        ("instruction", "output"),
    ),
    "roleplay": (
        DataFile(f"gpteacher/{_ROLEPLAY}", f"teknium1/GPTeacher/Roleplay/{_ROLEPLAY}", "MIT"),
        ("instruction", "response"),
    ),
    "oasst": (
        DataFile(f"octopack_oasst/{_OASST}", f"bigcode-project/octopack/dataset/oasst/{_OASST}", "MIT"),
        ("prompt", "completion"),
    ),
    "alpaca": (ALPACA["alpaca_5000"], ("instruction", "output")),
    "gsm8k": (GSM8K["train"], ("question", "answer")),
}
"""Chat and instruction text by name: the file, and the fields of question and answer."""


@dataclass(frozen=True)
class Reply:
    """A recorded output of a model.

    ``prompt`` is what the model was given, earlier turns included, and ``text`` what it wrote. ``questions`` are all
    turns of its prompt, those after this one included; empty for code to complete. ``group`` is the category or source
    of the prompt. Where they were recorded, ``tokens`` are the new tokens by the model's own tokenizer and ``steps``
    the forward passes that the authors' REST needed for this turn.
    """

    id: str
    model: str
    prompt: str
    text: str
    group: str = ""
    questions: tuple[str, ...] = ()
    tokens: int | None = None
    steps: int | None = None


def _vicuna(turns: Sequence[tuple[str, str]], question: str) -> str:
    """Vicuna's template without its system line, as far as the answer to ``question``."""
    said = "".join(f"USER: {asked} ASSISTANT: {answered}</s>" for asked, answered in turns)
    return f"{said}USER: {question} ASSISTANT:"


def mt_bench_replies(root: str | os.PathLike[str] | None = None, run: str = "REST") -> list[Reply]:
    """Return the answers of Vicuna-7B v1.5 to MT-Bench, greedy, from the result files of REST's authors.

    One a turn, with tokens and forward passes of the authors' run: ``run="REST"``, or ``"plain"`` for the baseline.
    """
    choice("run", run, tuple(MT_BENCH_RUNS))
    folder = Root("mt-bench replies", root)
    questions = {_question(row): row.texts("turns") for row in read_jsonl(folder.find(MT_BENCH))}
    replies: list[Reply] = []
    for record in read_jsonl(folder.find(MT_BENCH_RUNS[run])):
        number = _question(record)
        asked = questions.get(number)
        if asked is None:
            continue
        answer, category = _first_choice(record), record.text("category")
        texts = answer.texts("turns", len(asked))
        tokens, last_steps = (_counts(answer, name, len(asked)) for name in ("new_tokens", "idxs"))
        turns = list(zip(asked, texts, strict=True))
        for turn, (question, text) in enumerate(turns):
            prompt = _vicuna(turns[:turn], question)
            steps = last_steps[turn] + 1  # the file has the index of the last step
            replies.append(
                Reply(f"{number}-{turn}", "vicuna-7b-v1.5", prompt, text, category, asked, tokens[turn], steps)
            )
    return replies


def _question(record: Record) -> int:
    number: int = record.typed("question_id", int, "a whole number")
    return number


def _first_choice(record: Record) -> Record:
    choices = record.typed("choices", list, "a list of answers")
    if not choices or not isinstance(choices[0], dict):
        raise record.bad(f"field 'choices' is {choices!r:.80}; expected a list of answers")
    return Record(choices[0], f"{record.where}, first of the choices")


def _counts(answer: Record, name: str, length: int) -> list[int]:
    """The whole numbers in a field, one for each turn."""
    counts: list[int] = answer.typed(name, list, "a list of whole numbers")
    if not all(type(count) is int for count in counts):
        raise answer.bad(f"field {name!r} is {counts!r:.80}; expected a list of whole numbers")
    if len(counts) != length:
        raise answer.bad(f"field {name!r} has {len(counts)} numbers; expected {length}, one for each turn")
    return counts


def alpaca_eval_replies(model: str, root: str | os.PathLike[str] | None = None) -> list[Reply]:
    """Return the outputs of one of 16 models, by the folder's name, to the 805 instructions of AlpacaEval."""
    file = DataFile(
        f"alpaca_eval/{model}/model_outputs.json",
        f"tatsu-lab/alpaca_eval/results/{model}/model_outputs.json",
        "CC BY-NC 4.0, and that of the model",
    )
    replies = []
    for row in read_records(Root("alpaca_eval replies", root).find(file)):
        asked, text, source = row.text("instruction"), row.text("output", True), row.text("dataset", True)
        replies.append(Reply(asked, model, _vicuna([], asked), text, source, (asked,)))
    return replies


def codegen_replies(root: str | os.PathLike[str] | None = None, samples: int = 1) -> list[Reply]:
    """Return the first ``samples`` of 100 completions of each HumanEval prompt by CodeGen-16B (T 0.8, top-p 0.95)."""
    records = read_jsonl(Root("codegen replies", root).find(CODEGEN))
    return [
        Reply(f"{task}-{i}", "codegen-16b", record.text("prompt"), text)
        for task, record in enumerate(records)
        for i, text in enumerate(record.texts("samples")[:samples])
        if text
    ]


def chat_texts(name: str, root: str | os.PathLike[str] | None = None) -> Iterator[Reply]:
    """Yield the conversations of one of ``CHAT_SETS``, in Vicuna's template."""
    choice("name", name, tuple(CHAT_SETS))
    file, (question, answer) = CHAT_SETS[name]
    for record in read_records(Root(f"{name} texts", root).find(file)):
        asked = record.text(question, True)
        yield Reply(name, name, _vicuna([], asked), record.text(answer, True), name, (asked,))
