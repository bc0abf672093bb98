"""Recorded outputs of large models, to replay drafters on, and text for the datastores that they draft from.

They lie in the folder of the data sets. A file that is not there raises MissingData and one that breaks its format BadRecord,
as in :func:`specdec_lib.experiments.data.tasks.load_task`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from specdec_lib.decoding.checks import one_of
from specdec_lib.experiments.data.published_sets.chat import ALPACA, CODEALPACA, GSM8K, MT_BENCH
from specdec_lib.experiments.data.published_sets.files import DataFile, Root
from specdec_lib.records import Record, read_jsonl, read_records

_ANSWERS = "FasterDecoding/REST/llm_judge/data/mt_bench/model_answer/{}-vicuna-7b-v1.5-temperature-0.0-top_p-0.jsonl"
MT_BENCH_RUNS = {
    run: DataFile("mt_bench/model_answer", _ANSWERS.format(name), "Apache-2.0")
    for run, name in (("plain", "baseline"), ("REST", "rest"))
}
_SAMPLES = "HumanEval_codegen16B_temp0.8_topp0.95_num100_max300_code_solution.jsonl"
CODEGEN = DataFile("humaneval/samples", f"microsoft/CodeT/CodeT/data/generated_data/{_SAMPLES}", "MIT")
WIZARDCODER = DataFile("humaneval/samples", "nlpxucan/WizardLM/WizardCoder/data/humaneval.59.8.gen.zip", "CC BY-NC 4.0")
OASST_REPORTS = {
    "pythia-1b": "pythia/2023-03-04_theblackcat102_pythia-1b-deduped-sft_sampling_noprefix",
    "pythia-3b": "pythia/2023-03-04_theblackcat102_pythia-3b-deduped-sft_sampling_noprefix",
    "pythia-12b": "pythia/2023-03-05_theblackcat102_pythia-12b-deduped-sft_sampling_noprefix",
    "llama-13b": "oasst-sft/2023-03-14_oasst-sft-llama_13b_mask_1500_sampling_noprefix_lottery",
    "pythia-12b-2": "oasst-sft/2023-03-15_oasst-sft-2-pythia-12b_sampling_noprefix_lottery",
    "llama-30b": "oasst-sft/2023-04-18_OpenAssistant_oasst-sft-7e3-llama-30b_sampling_noprefix2",
    "starcoder": "oasst-sft/2023-07-06_theblackcat102_starcoder-oasst-3_5k_sampling_noprefix",
    "llama2-7b": "oasst-sft/2023-08-11_andreaskoepf_llama2-7b-oasst-baseline_sampling_noprefix2",
    "llama2-70b": "oasst-sft/2023-08-22_OpenAssistant_llama2-70b-oasst-sft-v10_sampling_noprefix2_nf4",
    "codellama-13b": "oasst-sft/2023-08-26_OpenAssistant_codellama-13b-oasst-sft-v10_sampling_noprefix2",
}
"""Sampling reports of OpenAssistant by model: one greedy output and several sampled ones to each prompt."""
_ARENA = "lm-sys/arena-hard-auto/data/arena-hard-v0.1/model_answer"
_EVOL, _EVOL_LICENCE = "nickrosh/evol-teacher/EvolInstruct-Code-8k", "Apache-2.0; Code Alpaca's records CC BY-NC 4.0"
_DOLLY = DataFile("dolly", "gpt4life/alpagasus/data/filtered/dolly_3k.json", "CC BY-SA 3.0")
_ROLEPLAY = DataFile("gpteacher", "teknium1/GPTeacher/Roleplay/roleplay-simple-deduped-roleplay-instruct.json", "MIT")
_OASST = DataFile("octopack_oasst", "bigcode-project/octopack/dataset/oasst/oasstcommitpackftmanual.jsonl", "MIT")
CHAT_SETS = {
    "dolly": (_DOLLY, "instruction", "output"),
    "roleplay": (_ROLEPLAY, "instruction", "response"),
    "oasst": (_OASST, "prompt", "completion"),
    "alpaca": (ALPACA["alpaca_5000"], "instruction", "output"),
    "gsm8k": (GSM8K["train"], "question", "answer"),
    "codealpaca": (CODEALPACA["code_alpaca_2k"], "instruction", "output"),
} | {
    f"evol-code-{part}": (
        DataFile("evol_instruct_code", f"{_EVOL}/evol-codealpaca-2k-{part}.json", _EVOL_LICENCE),
        "instruction",
        "output",
    )
    for part in (1, 2)
}
"""Chat and instruction text by name: the file, and the fields of question and answer."""


@dataclass(frozen=True)
class Reply:
    """A recorded output of a model.

    ``prompt`` is what the model was given, earlier turns included, and ``text`` what it wrote. ``questions`` are all turns of
    its prompt, those after this one included; empty for code to complete. Where they were recorded, ``tokens`` are the new
    tokens by the model's own tokenizer and ``steps`` the forward passes of the authors' run for this turn, and ``seconds``
    its time.
    """

    id: str
    model: str
    prompt: str
    text: str
    questions: tuple[str, ...] = ()
    tokens: int | None = None
    steps: int | None = None
    seconds: float | None = None


def _vicuna(turns: Sequence[tuple[str, str]], question: str) -> str:
    """Vicuna's template without its system line, up to the answer to ``question``."""
    said = "".join(f"USER: {asked} ASSISTANT: {answered}</s>" for asked, answered in turns)
    return f"{said}USER: {question} ASSISTANT:"


def mt_bench_replies(run: str = "REST") -> list[Reply]:
    """Return the answers of Vicuna-7B v1.5 to MT-Bench, greedy, from the result files of REST's authors.

    One a turn, with tokens and forward passes of the authors' run: ``run="REST"``, or ``"plain"`` for the baseline.
    """
    one_of("run", run, MT_BENCH_RUNS)
    folder = Root("mt-bench replies")
    questions = {_question(row): row.texts("turns") for row in read_jsonl(folder.find(MT_BENCH))}
    replies: list[Reply] = []
    for record in read_jsonl(folder.find(MT_BENCH_RUNS[run])):
        number = _question(record)
        if number not in questions:
            continue
        asked, answer = questions[number], _first_choice(record)
        texts, tokens, last_steps, seconds = (
            answer.texts(name, len(asked), kind)
            for name, kind in (("turns", str), ("new_tokens", int), ("idxs", int), ("wall_time", float))
        )
        turns = list(zip(asked, texts, strict=True))
        for turn, (question, text) in enumerate(turns):
            prompt, steps = _vicuna(turns[:turn], question), last_steps[turn] + 1  # the file has the last step's index
            counted = tokens[turn], steps, seconds[turn]
            replies.append(Reply(f"{number}-{turn}", "vicuna-7b-v1.5", prompt, text, asked, *counted))
    return replies


def _question(record: Record) -> int:
    number: int = record.typed("question_id", int, "a whole number")
    return number


def _first_choice(record: Record) -> Record:
    choices = record.typed("choices", list, "a list of answers")
    if not choices or not isinstance(choices[0], dict):
        raise record.bad(f"field 'choices' is {choices!r:.80}; expected a list of answers")
    return Record(choices[0], f"{record.where}, first of the choices")


def alpaca_eval_replies(model: str) -> list[Reply]:
    """Return the outputs of one of 16 models, by the folder's name, to the 805 instructions of AlpacaEval."""
    origin = f"tatsu-lab/alpaca_eval/results/{model}/model_outputs.json"
    file = DataFile(f"alpaca_eval/{model}", origin, "CC BY-NC 4.0, and that of the model")
    replies = []
    for row in read_records(Root("alpaca_eval replies").find(file)):
        asked, text = row.text("instruction"), row.text("output", True)
        replies.append(Reply(asked, model, _vicuna([], asked), text, (asked,)))
    return replies


def codegen_replies() -> list[Reply]:
    """Return the first of 100 completions of each HumanEval prompt by CodeGen-16B (T 0.8, top-p 0.95)."""
    records = read_jsonl(Root("codegen replies").find(CODEGEN))
    return [
        Reply(f"{task}-0", "codegen-16b", record.text("prompt"), text)
        for task, record in enumerate(records)
        for text in record.texts("samples")[:1]
        if text
    ]


def wizardcoder_replies() -> list[Reply]:
    """Return the code that WizardCoder-15B wrote greedily to each HumanEval problem, without what it says around it."""
    records = read_jsonl(Root("wizardcoder replies").find(WIZARDCODER), "T0.0_N1_reproduce.results.59.8.jsonl")
    return [
        Reply(r.text("task_id"), "wizardcoder-15b", r.text("all_code").split("### Response:")[0], r.text("completion"))
        for r in records
    ]


def oasst_replies(model: str, way: str = "greedy") -> list[Reply]:
    """Return what a model of :data:`OASST_REPORTS` wrote to the 100 or 250 prompts of OpenAssistant's sampling reports.

    ``way="greedy"``: its one greedy output to each. ``way="nucleus9"``: the first at temperature 0.8, top-p 0.9;
    ``way="all"``: all outputs, however they were decoded. Outputs end at 400 tokens.
    """
    one_of("model", model, OASST_REPORTS)
    one_of("way", way, ("greedy", "nucleus9", "all"))
    report = OASST_REPORTS[model]
    origin = f"Open-Assistant/oasst-model-eval/sampling_reports/{report}.json"
    file = DataFile(f"oasst_sampling/{report.split('/')[0]}", origin, "Apache-2.0")
    replies = []
    for number, record in enumerate(read_records(Root("oasst replies").find(file), "prompts")):
        asked = record.text("prompt")
        for result in record.typed("results", list, "a list of results"):
            of = Record(result, record.where)
            if way in ("all", of.text("sampling_config")):
                texts = of.texts("outputs")[: None if way == "all" else 1]
                replies += [Reply(f"oasst-{number}", model, _vicuna([], asked), text, (asked,)) for text in texts]
    return [reply for reply in replies if reply.text.strip()]


def arena_hard_replies() -> list[Reply]:
    """Return the answers of three OpenAI models to Arena-Hard's 500 questions, which the file lacks: prompts are empty."""
    replies = []
    for model in ("gpt-4-0314", "gpt-4-0613", "gpt-3.5-turbo-0125"):
        licence = "Apache-2.0 (outputs of OpenAI's models)"
        file = DataFile("arena_hard/model_answer", f"{_ARENA}/{model}.jsonl", licence)
        for record in read_jsonl(Root("arena-hard replies").find(file)):
            for turn in _first_choice(record).typed("turns", list, "a list of turns"):
                text = Record(turn, record.where).text("content", True)
                replies.append(Reply(record.text("question_id"), record.text("model_id"), "", text))
    return replies


def chat_texts(name: str) -> Iterator[Reply]:
    """Yield the conversations of one of ``CHAT_SETS``, in Vicuna's template."""
    one_of("name", name, CHAT_SETS)
    file, question, answer = CHAT_SETS[name]
    for record in read_records(Root(f"{name} texts").find(file)):
        asked = record.text(question, True)
        yield Reply(name, name, _vicuna([], asked), record.text(answer, True), (asked,))
