"""Will it help, on answers whose passes other chapters know: the command must predict what stands in their files."""

from __future__ import annotations

import json
from dataclasses import replace

import pandas as pd
import pytest

from specdec_lib import load_model, methods, paths
from specdec_lib.chapters.ch03_dense_vs_sparse_retrieval import recorded_chats, rest_at_scale
from specdec_lib.chapters.ch04_pld_plus import known_answers
from specdec_lib.cli import main
from specdec_lib.datastores import build_from_texts
from specdec_lib.datastores.suffix_array import SuffixIndex
from specdec_lib.drafters import PromptLookup, Rest, SuffixDecoding
from specdec_lib.experiments import input_guided, prompts
from specdec_lib.experiments.published_sets.replies import mt_bench_replies
from specdec_lib.experiments.recorded_runs import replay_all
from specdec_lib.experiments.recordings import record_once
from specdec_lib.experiments.retrieval import record_replies


@pytest.fixture(scope="module")
def tokenizer():
    return load_model("pocket", "cpu")[1]


def _diagnosed(folder, answers, *words) -> dict:
    """What the command writes of prompts and answers."""
    path, out = folder / "answers.jsonl", folder / "found.json"
    path.write_text("".join(json.dumps({"prompt": prompt, "answer": text}) + "\n" for prompt, text in answers))
    assert main(["diagnose", str(path), *words, "--json", str(out)]) == 0
    return json.loads(out.read_text())


def _passes(row: dict, method: str) -> float:
    return (row["tokens"] - 1) / row["tokens_per_pass"][method]


@pytest.mark.realdata
def test_pld_has_the_passes_that_chapter_4_keeps_of_mt_bench(tokenizer, tmp_path):
    name = "MT-Bench, Vicuna-7B v1.5"
    rows = pd.read_csv(paths.DATA / "results" / "pld_plus" / "known_answers.csv", comment="#")
    known = rows[rows.set == name].to_dict("records")
    replies = known_answers.spread_out(mt_bench_replies(), len(known))
    assert len(replies) == len(known)
    # Long answers are cut at the small model's context there.
    lengths = [len(one.trace.tokens) - 1 for one in record_replies(replies, tokenizer)]
    whole = [place for place, row in enumerate(known) if lengths[place] == int(row["tokens"]) < 300][:20]
    assert len(whole) == 20
    found = _diagnosed(tmp_path, [(replies[place].prompt, replies[place].text) for place in whole])
    for place, row in zip(whole, found["each"], strict=True):
        assert row["tokens"] - 1 == int(known[place]["tokens"])
        assert _passes(row, "PLD") == pytest.approx(int(known[place]["pld_10"]))


@pytest.mark.realdata
def test_rest_has_the_passes_that_chapter_3_keeps_of_mt_bench(tokenizer, tmp_path):
    counts = pd.read_csv(paths.DATA / "results" / "cpu" / "retrieval_rest.csv.gz")
    case = next(case for case in recorded_chats.cases() if case.name == rest_at_scale.CHAT)
    (smallest,) = rest_at_scale._growing(case, tokenizer, rest_at_scale.SIZES[:1])
    known = rest_at_scale.select(counts, case.name, case.kind)
    known = known[known.stored == smallest.store.count].set_index("prompt")
    assert len(known)
    turns: dict[str, list] = {}
    for reply in case.replies:
        turns.setdefault(rest_at_scale._name(reply.questions[0]), []).append(reply)
    chosen = list(turns)[:8]
    answers = [(reply.prompt, reply.text) for name in chosen for reply in turns[name]]
    found = _diagnosed(tmp_path, answers, "--store", str(smallest.store.path))
    rows = iter(found["each"])
    for name in chosen:
        own = [next(rows) for _ in turns[name]]
        assert sum(row["tokens"] - 1 for row in own) == known.tokens[name]
        assert sum(_passes(row, "REST") for row in own) == pytest.approx(known.passes[name])


def test_methods_have_the_passes_of_replays_of_the_pocket_models_answers(tokenizer, tmp_path):
    """The command sees texts alone; the chapter replays the recorded tokens. Left out are answers whose text has other
    tokens than the model wrote. The command does not know how long an answer might have become, so the replays too take
    its length for the limit: near a limit a drafter sends fewer nodes."""
    model = load_model("pocket", "cpu")[0]
    recordings = record_once(model, tokenizer, prompts.load("report", input_guided.TASKS, 4), None, 48)
    same = []
    for recording in recordings:
        texts = tuple(map(tokenizer.decode, (recording.trace.prompt, recording.trace.tokens)))
        tokens = [
            tokenizer(texts[0])["input_ids"],
            tokenizer(texts[1], add_special_tokens=False)["input_ids"],
        ]
        if tokens == [recording.trace.prompt, recording.trace.tokens]:
            limits = replace(recording.trace.limits, max_new_tokens=len(recording.trace.tokens))
            same.append((replace(recording, trace=replace(recording.trace, limits=limits)), texts))
    assert len(same) >= 0.8 * len(recordings)
    store = tmp_path / "store"
    build_from_texts(store, [texts[1] for _, texts in same], tokenizer, progress=False)
    found = _diagnosed(tmp_path, [texts for _, texts in same], "--store", str(store))
    drafters = {
        "PLD": PromptLookup(3, 10),
        "REST": Rest(SuffixIndex.open(store), length=10),
        "SuffixDecoding": SuffixDecoding(),
    }
    for name, drafter in drafters.items():
        runs = replay_all([recording for recording, _ in same], drafter, methods.METHODS[name].state)
        for run, row in zip(runs, found["each"], strict=True):
            assert _passes(row, name) == pytest.approx(len(run.steps)), name
        (told,) = (one for one in found["methods"] if one["method"] == name)
        emitted = sum(len(run.tokens) - 1 for run in runs)
        assert told["tokens_per_pass"]["value"] == pytest.approx(emitted / sum(len(run.steps) for run in runs))
        assert told["tokens_per_pass"]["value"] > 1.2
