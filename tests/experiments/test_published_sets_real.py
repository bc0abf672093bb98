"""The real data sets, where they are: counts, ids, prompts and references. Needs SPECDEC_DATASETS."""

import json
import re

import pytest

from specdec_lib.experiments.published_sets import DATASETS, replies
from specdec_lib.experiments.tasks import load_task

pytestmark = pytest.mark.realdata

# The collection that continuous integration reads has some records of MT-Bench, Spec-Bench, GSM8K, MBPP and
# XATU withheld, so that each count has two right values: of the published file and of that collection.
COUNTS = [
    ("humaneval", {}, {164}, None), ("mt-bench", {}, {80, 72}, None), ("spec-bench", {}, {480, 440}, None),
    ("spec-bench/mt_bench", {}, {80, 72}, None), ("spec-bench/translation", {}, {80, 73}, None),
    ("spec-bench/summarization", {}, {80, 73}, None), ("spec-bench/qa", {}, {80, 74}, 0),
    ("spec-bench/math_reasoning", {}, {80, 74}, None), ("spec-bench/rag", {}, {80, 74}, None),
    ("gsm8k", {}, {1319, 1313}, None), ("alpaca", {}, {52002, 5000}, None), ("codealpaca", {}, {20022, 2017}, None),
    ("codeeditorbench", {}, range(12, 10000), None), ("xatu/asset", {}, {136, 150}, None),
    ("xatu/jfleg", {}, {38, 50}, None), ("xatu/defacto", {}, {136, 150}, None), ("argrewrite", {}, {86}, None),
    ("quotesum", {}, {265}, None), ("quotesum", {"distinct": True}, {91}, None), ("humanevalpack", {}, {984}, None),
    ("humanevalpack/python", {}, {164}, None), ("quixbugs", {}, {40}, None), ("editeval", {}, {194}, None),
    ("jfleg", {}, {627}, None), ("mbpp", {}, range(460, 501), None),
]  # fmt: skip
#: Sets in which only some questions have an answer.
PARTLY = {"mt-bench", "spec-bench", "spec-bench/mt_bench", "alpaca", "codealpaca"}


@pytest.mark.parametrize(("task", "options", "counts", "references"), COUNTS)
def test_a_real_set_has_its_records_with_ids_prompts_and_answers(task, options, counts, references):
    prompts = load_task(task, **options)
    assert len(prompts) in counts
    assert len({p.id for p in prompts}) == len(prompts)
    assert all(p.task == task and p.turns and all(turn.strip() for turn in p.turns) for p in prompts)
    answered = sum(bool(p.reference and p.reference.strip()) for p in prompts)
    if task in PARTLY:
        assert 0 < answered < len(prompts)
    else:
        assert answered == (len(prompts) if references is None else references)


@pytest.mark.parametrize("task", ["humaneval", "gsm8k", "codeeditorbench", "mbpp"])
def test_no_prompt_shows_its_answer(task):
    assert [p.id for p in load_task(task) if p.reference.strip() in "\n".join(p.turns)] == []


def test_mt_bench_asks_two_turns_in_eight_categories_and_is_a_part_of_spec_bench():
    prompts, categories = load_task("mt-bench"), DATASETS["mt-bench"].subsets
    assert {len(p.turns) for p in prompts} == {2}
    assert len(categories) == 8 and all(load_task(f"mt-bench/{name}") for name in categories)
    assert [p.turns for p in load_task("spec-bench/mt_bench")] == [p.turns for p in prompts]


def test_xatu_explanations_quote_the_texts_they_are_joined_with():
    """The join is right if phrases that an explanation quotes are in its own texts, not in another's."""
    prompts = [p for p in load_task("xatu") if re.findall(r'"([^"]{4,})"', p.meta["explanation"])]

    def found(explained, joined) -> bool:
        text = " ".join([joined.meta["input"], *joined.meta["references"], joined.meta["document"]]).lower()
        phrases = re.findall(r'"([^"]{4,})"', explained.meta["explanation"])
        return any(phrase.strip(" .,").lower() in text for phrase in phrases)

    same = sum(found(p, p) for p in prompts) / len(prompts)
    by_source = {s: [p for p in prompts if p.meta["subset"] == s] for s in ("asset", "jfleg", "defacto")}
    shifted = [(a, b) for group in by_source.values() for a, b in zip(group, group[1:], strict=False)]
    other = sum(found(a, b) for a, b in shifted) / len(shifted)
    assert same > 0.95 and other < 0.15


def test_the_authors_runs_count_as_their_result_files_do():
    """The mean of the accept lengths in the files is tokens per forward without the prefill, turn by turn."""
    read = replies.mt_bench_replies()
    assert len(read) in (2 * 72, 2 * 80) and {r.model for r in read} == {"vicuna-7b-v1.5"}
    file = replies.Root("test").find(replies.MT_BENCH_RUNS["REST"])
    lengths = [json.loads(line)["choices"][0]["accept_lengths:"] for line in file.read_text().splitlines()]
    assert sum(r.steps for r in read) == sum(map(len, lengths))
    assert sum(r.tokens - 1 for r in read) == sum(map(sum, lengths))
    plain = replies.mt_bench_replies(run="plain")
    assert all(r.tokens == r.steps for r in plain)
    first, second = read[:2]  # later turns are asked with the turns before
    assert second.prompt.startswith(f"{first.prompt} {first.text}</s>USER: ") and second.prompt.endswith(" ASSISTANT:")
