"""Replays on recorded outputs of large models, where the data are."""
import pytest

from specdec_lib import load_model
from specdec_lib.evaluation import real_text, stores
from specdec_lib.evaluation.real_text import Case
from specdec_lib.evaluation.datasets.replies import Reply


def test_without_data_there_are_no_cases_and_a_reason(monkeypatch, tmp_path):
    monkeypatch.delenv("SPECDEC_DATASETS", raising=False)
    assert real_text.cases(5) == ([], "SPECDEC_DATASETS names no folder of data sets")
    monkeypatch.setenv("SPECDEC_DATASETS", str(tmp_path))
    found, reason = real_text.cases(5)
    assert found == [] and "mt_bench" in reason and "alpaca_eval" in reason and "humaneval" in reason


def test_a_case_is_replayed_with_each_store_and_without(monkeypatch, tmp_path):
    monkeypatch.setenv("SPECDEC_CACHE", str(tmp_path))
    tokenizer = load_model("pocket")[1]
    text = "The quick brown fox jumps over the lazy dog. " * 3
    case = Case("someone", [Reply(str(i), "m", "Say it.", text, tokens=30, steps=10 + i) for i in range(3)], {
        "the same text": lambda: [text] * 3, "another": lambda: ["import os\n" * 20]})
    found = real_text.replay_case(case, tokenizer, 10_000)
    rate = {(row["method"], row["store"]): row["characters_per_forward"] for row in found["rows"]}
    assert rate["REST", "the same text"] > 3 * rate["plain", "no draft"] > 0
    assert rate["REST", "another"] == pytest.approx(rate["plain", "no draft"], rel=0.05)
    assert rate["REST, its authors' run", "UltraChat, 12 GB"] == pytest.approx(87 / 33 * len(text) / 30)


@pytest.mark.realdata
def test_no_store_holds_an_answer_that_is_replayed():
    found, reason = real_text.cases(40)
    assert len(found) == 3 and not reason
    for case in found:
        written = {reply.text[:200] for reply in case.replies if len(reply.text) > 60}
        for name, texts in case.stores.items():
            if texts is stores.package_texts:
                continue
            leaked = [text for text in texts() for start in [text.find("ASSISTANT: ")]
                      if start >= 0 and text[start + 11:][:200] in written]
            assert not leaked, (case.name, name)
