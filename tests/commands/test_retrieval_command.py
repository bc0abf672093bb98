"""The command ``retrieval rest``: which recorded outputs are replayed, and what stays of an earlier file."""

from __future__ import annotations

import json

import pandas as pd
import pytest

from specdec_lib.__main__ import main
from specdec_lib.chapters.ch03_dense_vs_sparse_retrieval import recorded_chats, rest_at_scale
from specdec_lib.chapters.ch03_dense_vs_sparse_retrieval.recorded_chats import Case
from specdec_lib.experiments.statistics import Interval


@pytest.fixture
def asked(monkeypatch):
    """Cases without texts, whose rows tell the sizes that were asked for."""
    packages = []

    def cases(limit, folders):
        packages.append(list(folders))
        return [Case(name, name, "greedy", []) for name in ("chat", "code")]

    def rows(case, tokenizer, sizes):
        yield {"kind": case.kind, "case": case.name, "stored": max(sizes), "w1": 0.5}

    monkeypatch.setattr(recorded_chats, "cases", cases)
    monkeypatch.setattr(rest_at_scale, "authors_run", lambda: {"step": Interval(1.0, 0.9, 1.1)})
    monkeypatch.setattr(rest_at_scale, "case_counts", rows)
    return packages


def read(folder):
    about = json.loads((folder / "retrieval_rest.json").read_text())
    return pd.read_csv(folder / "retrieval_rest.csv.gz"), about


def test_rows_of_other_kinds_stay_with_their_origin(asked, tmp_path):
    out = ["--out", str(tmp_path)]
    assert main(["retrieval", "rest", *out]) == 0
    frame, about = read(tmp_path)
    assert list(frame.stored) == [max(rest_at_scale.SIZES)] * 2 and "kept" not in about
    for _ in range(2):
        assert main(["retrieval", "rest", *out, "--kinds", "code", "--packages", "wheels"]) == 0
        frame, about = read(tmp_path)
        assert dict(zip(frame.kind, frame.stored, strict=True)) == {
            "chat": max(rest_at_scale.SIZES),
            "code": max(rest_at_scale.LARGE_SIZES),
        }
        assert [origin["kinds"] for origin in about["kept"]] == [["chat"]]
        assert "--kinds" not in about["kept"][0]["command"] and "--kinds code" in about["command"]
    assert main(["retrieval", "rest", *out, "--kinds", "chat"]) == 0
    (origin,) = read(tmp_path)[1]["kept"]
    assert origin["kinds"] == ["code"] and "--packages wheels" in origin["command"]
    assert [list(map(str, folders)) for folders in asked] == [[], ["wheels"], ["wheels"], []]
