"""Will it help, on answers whose passes other chapters know: the command must predict what stands in their files."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from specdec_lib import load_model, methods
from specdec_lib.cli import main
from specdec_lib.datastores import build_from_texts
from specdec_lib.datastores.suffix_array import SuffixIndex
from specdec_lib.drafters import PromptLookup, Rest, SuffixDecoding
from specdec_lib.experiments import input_guided, prompts
from specdec_lib.experiments.recorded_runs import replay_all
from specdec_lib.experiments.recordings import record_once


def _diagnosed(folder, answers, *words) -> dict:
    """What the command writes of prompts and answers."""
    path, out = folder / "answers.jsonl", folder / "found.json"
    path.write_text("".join(json.dumps({"prompt": prompt, "answer": text}) + "\n" for prompt, text in answers))
    assert main(["diagnose", str(path), *words, "--json", str(out)]) == 0
    return json.loads(out.read_text())


def _passes(row: dict, method: str) -> float:
    return (row["tokens"] - 1) / row["tokens_per_pass"][method]


def test_methods_have_the_passes_of_replays_of_the_pocket_models_answers(tokenizer, tmp_path):
    """The command sees texts alone; the chapter replays the recorded tokens. Left out are answers whose text has other
    tokens than the model wrote. The command does not know how long an answer might have become, so the replays too take
    its length for the limit: near a limit a drafter sends fewer nodes."""
    model = load_model("pocket", "cpu")[0]
    recordings = record_once(model, tokenizer, prompts.load("report", input_guided.TASKS, 4), None, 48)
    same = []
    for recording in recordings:
        texts = tuple(map(tokenizer.decode, (recording.trace.prompt, recording.trace.tokens)))
        tokens = [tokenizer(texts[0])["input_ids"], tokenizer(texts[1], add_special_tokens=False)["input_ids"]]
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
