"""The command ``one-tree``: rows with where they come from, and options that are refused."""

from __future__ import annotations

import pytest

from specdec_lib.__main__ import main
from specdec_lib.chapters.ch08_one_tree import marks
from specdec_lib.experiments import result_files
from specdec_lib.experiments.statistics import Interval


def test_rows_are_kept_with_what_they_depend_on(tmp_path, monkeypatch, capsys):
    asked = {}

    def measure(pair, plan):
        asked.update(plan=plan, stored=pair.store_tokens)
        mark = "ahead of the selection rules, all mixed"
        ratio = Interval(1.2, 1.1, 1.3)
        return [{"answers": "greedy", "prices": "gpu", "mark": mark, "compared": "a rule", "ratio": ratio}]

    monkeypatch.setattr(marks, "measure", measure)
    path = tmp_path / "one_tree.csv"
    assert main(["one-tree", "--prompts", "3", "--out", str(path)]) == 0
    assert asked["plan"].prompts == 3 and asked["stored"] == marks.Plan.store_tokens
    about, rows = result_files.read(path)
    assert about["prompts"] == "3" and "--prompts 3" in about["command"]
    assert rows == [
        {
            "answers": "greedy",
            "prices": "gpu",
            "mark": "ahead of the selection rules, all mixed",
            "compared": "a rule",
            "value": 1.2,
            "low": 1.1,
            "high": 1.3,
        }
    ]
    assert "met" in capsys.readouterr().out


@pytest.mark.parametrize("option", ["prompts", "max-new-tokens"])
def test_nothing_to_measure_is_refused(option, tmp_path, capsys):
    assert main(["one-tree", f"--{option}", "0", "--out", str(tmp_path / "x.csv")]) == 2
    assert f"--{option} is 0; expected 1 or more" in capsys.readouterr().err
    assert not (tmp_path / "x.csv").exists()
