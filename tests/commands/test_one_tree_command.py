"""The command ``one-tree``: rows with where they come from, and options that are refused."""

from __future__ import annotations

import pytest

from specdec_lib.__main__ import main
from specdec_lib.chapters.ch08_one_tree import losses, marks
from specdec_lib.experiments import result_files
from specdec_lib.experiments.statistics import Interval


def test_rows_are_kept_with_what_they_depend_on(tmp_path, monkeypatch, capsys):
    asked = {}

    def ladders(pair, plan):
        asked.update(plan=plan, stored=pair.store_tokens)
        return {"greedy": "rungs"}

    mark, part = "ahead of the selection rules, all mixed", losses.PARTS[0]
    row = {"answers": "greedy", "prices": "gpu"}
    judged = row | {"mark": mark, "compared": "a rule", "ratio": Interval(1.2, 1.1, 1.3)}
    lost = row | {"drafter": "One tree", "measure": part, "ratio": Interval(0.1, 0.05, 0.2)}
    monkeypatch.setattr(marks, "ladders", ladders)
    monkeypatch.setattr(marks, "rows", lambda given, *rest: [judged] if given == {"greedy": "rungs"} else [])
    monkeypatch.setattr(losses, "rows", lambda given, *rest: [lost] if given == {"greedy": "rungs"} else [])
    path = tmp_path / "one_tree.csv"
    assert main(["one-tree", "--prompts", "3", "--out", str(path)]) == 0
    assert asked["plan"].prompts == 3 and asked["stored"] == marks.Plan.store_tokens
    abouts = []
    for file, kept in ((path, judged), (tmp_path / "one_tree_losses.csv", lost)):
        about, rows = result_files.read(file)
        assert rows == [{name: kept[name] for name in kept if name != "ratio"} | kept["ratio"]._asdict()]
        abouts.append(about)
    assert abouts[0] == abouts[1] and len(abouts[0]["target"]) == len(abouts[0]["tree"]) == 64
    assert abouts[0]["prompts"] == "3" and "--prompts 3" in abouts[0]["command"]
    assert "met" in capsys.readouterr().out


@pytest.mark.parametrize("option", ["prompts", "max-new-tokens"])
def test_nothing_to_measure_is_refused(option, tmp_path, capsys):
    assert main(["one-tree", f"--{option}", "0", "--out", str(tmp_path / "x.csv")]) == 2
    assert f"--{option} is 0; expected 1 or more" in capsys.readouterr().err
    assert not (tmp_path / "x.csv").exists()
