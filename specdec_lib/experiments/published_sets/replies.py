"""What large models wrote: recorded outputs to replay drafters on, and text for datastores beside them."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass

from specdec_lib.experiments.published_sets.chat import ALPACA, GSM8K, MT_BENCH
from specdec_lib.experiments.published_sets.reading import (
    DataFile,
    Record,
    Root,
    choice,
    read_json_list,
    read_jsonl,
)

REST_REPOSITORY = ("FasterDecoding/REST", "llm_judge/data/mt_bench/model_answer/{name}")
MT_BENCH_RUNS = {
    run: DataFile(
        "mt_bench",
        f"model_answer/{name}",
        REST_REPOSITORY[0],
        REST_REPOSITORY[1].format(name=name),
        "Apache-2.0",
    )
    for run, name in (
        ("plain", "baseline-vicuna-7b-v1.5-temperature-0.0-top_p-0.jsonl"),
        ("REST", "rest-vicuna-7b-v1.5-temperature-0.0-top_p-0.jsonl"),
    )
}
CODEGEN = DataFile(
    "humaneval",
    "samples/HumanEval_codegen16B_temp0.8_topp0.95_num100_max300_code_solution.jsonl",
    "microsoft/CodeT",
    "CodeT/data/generated_data/HumanEval_codegen16B_temp0.8_topp0.95_num100_max300_code_solution.jsonl",
    "MIT",
)
# Chat and instruction text by name: the file, and the fields of question and answer.
CHAT_SETS = {
    "dolly": (
        DataFile(
            "dolly", "dolly_3k.json", "gpt4life/alpagasus", "data/filtered/dolly_3k.json", "CC BY-SA 3.0"
        ),
        ("instruction", "output"),
    ),
    "roleplay": (
        DataFile(
            "gpteacher",
            "roleplay-simple-deduped-roleplay-instruct.json",
            "teknium1/GPTeacher",
            "Roleplay/roleplay-simple-deduped-roleplay-instruct.json",
            "MIT",
        ),
        ("instruction", "response"),
    ),
    "oasst": (
        DataFile(
            "octopack_oasst",
            "oasstcommitpackftmanual.jsonl",
            "bigcode-project/octopack",
            "dataset/oasst/oasstcommitpackftmanual.jsonl",
            "MIT",
        ),
        ("prompt", "completion"),
    ),
    "alpaca": (ALPACA["alpaca_5000"], ("instruction", "output")),
    "gsm8k": (GSM8K["train"], ("question", "answer")),
}


@dataclass(frozen=True)
class Reply:
    """A recorded output of a model: ``prompt`` includes earlier turns, ``questions`` are all turns of it (empty for
    code to complete).

    ``tokens`` counts by the model's own tokenizer and ``steps`` the forward passes of the authors' REST, where they
    were recorded.
    """

    id: str
    model: str
    prompt: str
    text: str
    group: str = ""
    questions: tuple[str, ...] = ()
    tokens: int | None = None
    steps: int | None = None


def _vicuna(turns: list[tuple[str, str]], question: str) -> str:
    """Vicuna's template without its system line, as far as the answer to ``question``."""
    said = "".join(f"USER: {asked} ASSISTANT: {answered}</s>" for asked, answered in turns)
    return f"{said}USER: {question} ASSISTANT:"


def mt_bench_replies(root: str | os.PathLike[str] | None = None, run: str = "REST") -> list[Reply]:
    """Answers of Vicuna-7B v1.5 to MT-Bench, greedy, from the result files of REST's authors.

    Parameters
    ----------
    root : path, optional
        Folder of the data sets.
    run : {"REST", "plain"}
        With REST, or the baseline.

    Returns
    -------
    list of Reply
        One a turn, with tokens and forward passes of the authors' run.

    Raises
    ------
    MissingData, BadRecord
        As :func:`specdec_lib.experiments.tasks.load_task`.
    """
    choice("run", run, tuple(MT_BENCH_RUNS))
    where = Root("mt-bench replies", root)
    questions = {_question(r): r.texts("turns") for r in read_jsonl(where.find(MT_BENCH))}
    replies: list[Reply] = []
    for record in read_jsonl(where.find(MT_BENCH_RUNS[run])):
        number = _question(record)
        asked = questions.get(number)
        if asked is None:
            continue
        answer, category = _first_choice(record), record.text("category")
        texts = answer.texts("turns", len(asked))
        tokens, last_steps = (_counts(answer, name, len(asked)) for name in ("new_tokens", "idxs"))
        before: list[tuple[str, str]] = []
        for turn, (question, text) in enumerate(zip(asked, texts, strict=True)):
            replies.append(
                Reply(
                    f"{number}-{turn}",
                    "vicuna-7b-v1.5",
                    _vicuna(before, question),
                    text,
                    category,
                    asked,
                    tokens[turn],
                    last_steps[turn] + 1,  # the index of the last step
                )
            )
            before.append((question, text))
    return replies


def _question(record: Record) -> int:
    number: int = record.typed("question_id", int, "a whole number")
    return number


def _first_choice(record: Record) -> Record:
    found = record.typed("choices", list, "a list of answers")
    if not found or not isinstance(found[0], dict):
        raise record.bad(f"field 'choices' is {found!r:.80}; expected a list of answers")
    return Record(found[0], f"{record.where}, first of the choices")


def _counts(answer: Record, name: str, length: int) -> list[int]:
    """The whole numbers in a field, one for each turn."""
    found: list[int] = answer.typed(name, list, "a list of whole numbers")
    if not all(type(count) is int for count in found):
        raise answer.bad(f"field {name!r} is {found!r:.80}; expected a list of whole numbers")
    if len(found) != length:
        raise answer.bad(f"field {name!r} has {len(found)} numbers; expected {length}, one for each turn")
    return found


def alpaca_eval_replies(model: str, root: str | os.PathLike[str] | None = None) -> list[Reply]:
    """Outputs of one of 16 models to the 805 instructions of AlpacaEval.

    Parameters
    ----------
    model : str
        Name of a folder of the set, such as ``"llama-2-7b-chat-hf"``.
    root : path, optional

    Raises
    ------
    MissingData, BadRecord
    """
    file = DataFile(
        "alpaca_eval",
        f"{model}/model_outputs.json",
        "tatsu-lab/alpaca_eval",
        f"results/{model}/model_outputs.json",
        "CC BY-NC 4.0, and that of the model",
    )
    records = read_json_list(Root("alpaca_eval replies", root).find(file))
    return [
        Reply(
            r.text("instruction"), model, _vicuna([], r.text("instruction")), r.text("output", True),
            r.text("dataset", True), (r.text("instruction"),),
        )
        for r in records
    ]


def codegen_replies(root: str | os.PathLike[str] | None = None, samples: int = 1) -> list[Reply]:
    """Completions of HumanEval sampled from CodeGen-16B at temperature 0.8, top-p 0.95: the first ``samples`` of 100
    for each of the 164 prompts."""
    records = read_jsonl(Root("codegen replies", root).find(CODEGEN))
    return [
        Reply(f"{task}-{i}", "codegen-16b", record.text("prompt"), text)
        for task, record in enumerate(records)
        for i, text in enumerate(record.texts("samples")[:samples])
        if text
    ]


def chat_texts(name: str, root: str | os.PathLike[str] | None = None) -> Iterator[Reply]:
    """Yield the conversations of one of ``CHAT_SETS``, in Vicuna's template.

    Raises
    ------
    ValueError
        If the name is unknown.
    MissingData, BadRecord
    """
    choice("name", name, tuple(CHAT_SETS))
    file, (question, answer) = CHAT_SETS[name]
    path = Root(f"{name} texts", root).find(file)
    lines = path.name.removesuffix(".gz").endswith(".jsonl")
    for record in read_jsonl(path) if lines else read_json_list(path):
        asked = record.text(question, True)
        yield Reply(name, name, _vicuna([], asked), record.text(answer, True), name, (asked,))
