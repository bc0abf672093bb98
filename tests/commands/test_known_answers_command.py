"""The command ``known-answers``: two tables with where they come from, and options that are refused."""

from __future__ import annotations

from specdec_lib.__main__ import main
from specdec_lib.chapters.ch04_pld_plus import known_answers
from specdec_lib.commands import known_answers as command
from specdec_lib.experiments import input_guided, result_files
from specdec_lib.experiments.prompt import Prompt
from specdec_lib.experiments.published_sets.replies import Reply


def test_both_tables_say_where_they_come_from(tmp_path, monkeypatch, capsys):
    text = "def f(x):\n    return x\n" * 3
    replies = [Reply(str(i), "m", text, text) for i in range(3)]
    monkeypatch.setattr(known_answers, "SETS", {"made": lambda: replies})
    monkeypatch.setattr(command, "load_task", lambda name, **options: [Prompt("1", name, ("two words",))])
    options = ["--answers", "2", "--target", "pocket-draft", "--layer", "1", "--out", str(tmp_path)]
    assert main(["known-answers", *options]) == 0
    answers, words = (result_files.read(tmp_path / f"{name}.csv") for name in ("known_answers", "prompt_words"))
    assert [(row["set"], row["prompt"]) for row in answers.rows] == [("made", 0), ("made", 1)]
    assert answers.about["layer"] == "1" and "--answers 2 --target pocket-draft --layer 1" in answers.about["command"]
    assert [row["task"] for row in words.rows] == list(input_guided.PUBLISHED) and words.rows[0]["value"] == 2
    assert "made: 2 answers" in capsys.readouterr().out


def test_no_answers_and_sets_that_are_not_there_are_refused(tmp_path, monkeypatch, capsys):
    assert main(["known-answers", "--answers", "0"]) == 2
    assert "--answers is 0; expected 1 or more" in capsys.readouterr().err
    monkeypatch.setenv("SPECDEC_DATASETS", str(tmp_path))
    assert main(["known-answers", "--out", str(tmp_path / "out")]) == 2
    assert "spec_bench/question.jsonl" in capsys.readouterr().err and not (tmp_path / "out").exists()
