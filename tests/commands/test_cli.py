"""The commands: every one is listed and tells its options, what cannot be done is refused before a model is loaded."""

import json
import os
import re
import subprocess
import sys

import pytest
import typer
from typer.testing import CliRunner

from specdec_lib import cli, paths
from specdec_lib.experiments import recorded_runs
from specdec_lib.models import loading
from specdec_lib.report import numbers
from specdec_lib.report.build import runner
from specdec_lib.report.claims import rules

COMMANDS = typer.main.get_command(cli.app).commands


def invoke(*words: object):
    return CliRunner().invoke(cli.app, [str(word) for word in words])


def test_the_list_names_every_command_and_imports_neither_torch_nor_transformers():
    words, profiled = [sys.executable, "-m", "specdec_lib", "--help"], os.environ | {"PYTHONPROFILEIMPORTTIME": "1"}
    done = subprocess.run(words, cwd=paths.PACKAGE.parent, env=profiled, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0
    assert all(name in done.stdout for name in COMMANDS) and len(COMMANDS) >= 12
    imported = {line.split("|")[2].strip() for line in done.stderr.splitlines() if line.startswith("import time:")}
    assert "typer" in imported and not imported & {"torch", "transformers", "numpy", "pandas", "yaml"}
    for name in COMMANDS:
        told = invoke(name, "--help")
        assert told.exit_code == 0 and f"{name} " in told.output, "it tells its options under its own name"


@pytest.fixture
def nothing_loaded(monkeypatch, tmp_path):
    """A folder to work in; a model that is loaded fails the test."""

    def load(*_, **__):
        pytest.fail("a model was loaded")

    monkeypatch.setattr(loading, "load_model", load)
    monkeypatch.setattr(recorded_runs, "load_pair", load)
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("SPECDEC_DATASETS", raising=False)
    (tmp_path / "file").write_text("[" * 10**5)  # no folder, and no JSON that can be read
    (tmp_path / "a.jsonl").write_text('{"prompt": "a", "answer": "b"}\n')
    return tmp_path


HEAD, HEADS, LOSSLESS = "train-acceptance-head", "train-heads", "losslessness"
TARGET = ("--target", "pocket", "--out", "x")


@pytest.mark.parametrize(("words", "told"), [
    (["no-such-command"], "No such command 'no-such-command'"),
    (["run", "--only", "99"], "no notebook '99': 01_"),
    (["run", "-p", "01.max_new_tokens=1:30"], "'max_new_tokens' of 01_speculative_decoding is '1:30'"),
    (["run", "-p", "01.tasks=" + "[" * 2000], "cannot be read as "),
    (["run", "-p", "01.max_new_tokns=1"], "did you mean 'max_new_tokens'"),
    (["run", "-p", "max_new_tokens=1"], "01.name=value"),
    (["run", "-p", "99.max_new_tokens=1"], "no notebook '99'"),
    (["run", "--profile", "quick"], "no profile 'quick'"),
    (["diagnose", "none.jsonl"], "there is no none.jsonl"),
    (["diagnose", "a.jsonl", "--prices", "dear"], "--prices is 'dear'; expected gpu, cpu, server"),
    (["diagnose", "a.jsonl", "--prices", "file"], "file holds no prices (RecursionError"),
    (["diagnose", "a.jsonl", "--page", "~nobody-of-this-name/x"], "~nobody-of-this-name/x is no path"),
    (["diagnose", "a.jsonl", "--json", "file/x.json"], "no file can be written at file/x.json (Not a directory)"),
    (["diagnose", "a.jsonl", "--tokenizer", "."], "no tokenizer can be loaded from '.'"),
    (["diagnose", "a.jsonl", "--tokenizer", "pocket", "--store", "."], "error: "),
    (["diagnose", "a.jsonl", "--json", "./a.jsonl"], "are one file"),
    (["diagnose", "a.jsonl", "--prices", "b.json", "--json", "b.json"], "are one file"),
    (["diagnose", "a.jsonl", "--json", "x", "--page", "x"], "are one file"),
    (["diagnose", "a.jsonl", "--tokenizer", "pocket", "--weights", "file"], "holds no weights of a tree"),
    (["calibrate", "--target", "pocket"], "Missing option '--out'"),
    (["calibrate-vllm", "pocket"], "Missing option '--out'"),
    (["calibrate-vllm", "pocket", "--out", "p.json", "--engine", "[]"], "--engine is []; expected a JSON object"),
    (["calibrate", *TARGET, "--context", "0"], "0; expected 1 or more"),
    (["calibrate", *TARGET, "--context", "2000"], "a pass after it included, is 2128, the model's context 2048"),
    (["calibrate", *TARGET, "--source", "X"], "one tree cannot draft from 'X'; expected some of PLD"),
    (["calibrate", "--target", "pocket", "--out", "file/x"], "no file can be written at file/x"),
    (["fit-tree", *TARGET, "--source", "pld"], "one tree cannot draft from 'pld'"),
    (["fit-tree", *TARGET, "--source", "Token Recycling"], "Token Recycling cannot be fitted: its drafts depend"),
    (["fit-tree", *TARGET, "--task", "nonsense"], "'nonsense' is unknown"),
    (["fit-tree", *TARGET, "--store", "none"], "there is no none"),
    (["fit-tree", *TARGET, "--store", "."], "is no datastore: its"),
    (["fit-tree", *TARGET, "--source", "Medusa", "--heads", "."], "no drafting heads at medusa.safetensors"),
    (["find-heads", *TARGET, "--task", "nonsense"], "'nonsense' is unknown"),
    (["find-heads", *TARGET, "--prompts", "0"], "0; expected 1 or more"),
    (["find-heads", "--target", "pocket", "--out", "."], "no file can be written at . (it is a folder)"),
    ([LOSSLESS, "--prompts", "0"], "0; expected 1 or more"),
    ([LOSSLESS, "--seeds", "-1"], "-1; expected 0 or more"),
    ([LOSSLESS, "--method", "PLD"], "name a file with --output"),
    ([LOSSLESS, "--method", "PLD++", "--output", "x"], "--method is 'PLD++'; expected one of PLD, PLD (transf"),
    ([HEAD, "--out", "file/head.safetensors"], "no file can be written at file/head.safetensors"),
    ([HEAD, "--data", "file"], "no file can be written in file (Not a directory)"),
    ([HEAD, "--task", "no-such-task"], "--task is 'no-such-task'; expected one of"),
    ([HEAD, "--mixing", "1"], "mixing is 1"),
    ([HEAD, "--seed", "-1"], "seed is -1"),
    ([HEAD, "--rate", "inf"], "rate is inf"),
    ([HEAD, "--out", "/dev/null"], "it is no file"),
    ([HEAD, "--out", "n" * 250], "(File name too long)"),
    ([HEAD, "--mixing", "some"], "--mixing is 'some'; expected a number or none"),
    ([HEAD, "--labels", "soft"], "--labels is 'soft'; expected one of decoding, raw"),
    ([HEADS, "--kind", "lookahead"], "--kind is 'lookahead'; expected one of medusa, hydra, eagle"),
    ([HEADS, "--rate", "-1"], "rate is -1.0"),
    ([HEADS, "--max-new-tokens", "1"], "1; expected 2 or more"),
    ([HEADS, "--seed", "18446744073709551616"], "seed is 18446744073709551616"),
    ([HEADS, "--out", "file", "--kind", "eagle"], "no file can be written in file"),
    ([HEADS, "--task", "no-such-task"], "--task is 'no-such-task'; expected one of"),
    ([HEADS, "--task", "spec-bench"], "SPECDEC_DATASETS"),
], ids=lambda value: " ".join(value) if isinstance(value, list) else "")  # fmt: skip
def test_what_cannot_be_done_is_refused_before_a_model_is_loaded(nothing_loaded, words, told):
    done = invoke(*words)
    assert done.exit_code == 2 and told in " ".join(done.output.split()), done.output
    assert sorted(path.name for path in nothing_loaded.iterdir()) == ["a.jsonl", "file"]


def test_places_and_drafts_that_are_not_there_are_told_before_a_model_is_loaded(nothing_loaded, monkeypatch):
    monkeypatch.setattr(paths, "DATA", nothing_loaded / "file")
    done = invoke(LOSSLESS, "--device", "cpu")
    assert done.exit_code == 2 and "losslessness.json (Not a directory)" in " ".join(done.output.split()), done.output
    monkeypatch.undo()
    monkeypatch.setattr(recorded_runs, "load_model", lambda *_: pytest.fail("the target was loaded"))
    with pytest.raises(FileNotFoundError, match="no model in /nowhere"):
        recorded_runs.load_pair("pocket", "/nowhere")


@pytest.mark.parametrize(("raised", "status", "says"), [
    (KeyboardInterrupt(), 130, "interrupted"),
    (ValueError("no such thing"), 2, "error: no such thing"),
    (FileNotFoundError("no file x"), 2, "error: no file x"),
    (ImportError("faiss is broken"), 2, "error: faiss is broken"),
    (ModuleNotFoundError("No module named 'papermill'"), 2, "Install the extras: pip install -e '.[book"),
])  # fmt: skip
def test_how_a_command_ends(raised, status, says, monkeypatch, capsys):
    def work(*words, **options):
        raise raised

    monkeypatch.setattr(runner, "run", work)
    assert cli.main(["run", "--profile", "smoke"]) == status
    assert says in capsys.readouterr().err


@pytest.mark.parametrize("command", ["run", "book", "check", "claims"])
def test_a_command_that_needs_the_repository_says_so_in_an_installed_copy(command, monkeypatch):
    monkeypatch.setattr(paths, "ROOT", None)
    done = invoke(command)
    assert done.exit_code == 2 and "work in a checkout of the repository" in done.output


def test_a_notebook_that_fails_is_exit_status_one_and_threads_sleep_unless_the_user_has_set_how(monkeypatch):
    monkeypatch.setattr(runner, "run", lambda *args, **options: ["a failure"])
    assert invoke("run").exit_code == 1
    monkeypatch.setattr(runner, "run", lambda *args, **options: [])
    for given, expected in (
        ({}, "PASSIVE"),
        ({"OMP_WAIT_POLICY": "ACTIVE"}, "ACTIVE"),
        ({"GOMP_SPINCOUNT": "7"}, None),
    ):
        for own in ("OMP_WAIT_POLICY", "GOMP_SPINCOUNT", "KMP_BLOCKTIME"):
            monkeypatch.delenv(own, raising=False)
        for name, value in given.items():
            monkeypatch.setenv(name, value)
        assert invoke("run").exit_code == 0 and os.environ.get("OMP_WAIT_POLICY") == expected
    monkeypatch.delenv("OMP_WAIT_POLICY", raising=False)


def test_a_path_in_the_home_folder_is_expanded(nothing_loaded, monkeypatch):
    monkeypatch.setenv("HOME", str(nothing_loaded))
    words = ["diagnose", "~/a.jsonl", "--tokenizer", "pocket", "--json"]
    assert invoke(*words, "~/out.json").exit_code == 2  # one token is no answer to predict
    (nothing_loaded / "a.jsonl").write_text(json.dumps({"prompt": "a b c d", "answer": "a b c d e"}) + "\n")
    assert invoke(*words, "~/new/out.json").exit_code == 0
    assert json.loads((nothing_loaded / "new" / "out.json").read_text())["answers"] == 1


@pytest.mark.skipif(paths.ROOT is None, reason="the claims are judged in a checkout")
def test_every_claim_is_printed_with_its_verdict_and_the_tables_of_a_run_that_is_no_smoke_run_saved(
    tmp_path, monkeypatch
):
    found, path = numbers.table_files, tmp_path / "files" / "04_x" / "04.csv"
    monkeypatch.setattr(numbers, "table_files", lambda executed=None: found(tmp_path))
    printed = invoke("claims").output
    assert [claim.id for claim in rules.load_claims() if claim.says not in printed] == []
    assert f"{rules.HOLDS:20} REST, " in printed
    counted = re.findall(r"(\d+) ([^;]+)", printed.splitlines()[-1])
    assert {verdict for _, verdict in counted} <= set(rules.VERDICTS)
    assert sum(int(count) for count, _ in counted) == len(rules.load_claims())

    words = ["claims", "--save", tmp_path / "saved"]
    done = invoke(*words)
    assert done.exit_code == 2 and "no notebook has been executed" in done.output
    path.parent.mkdir(parents=True)
    for profile, status in (("smoke", 2), ("default", 0)):
        path.write_text(f"{','.join(numbers.COLUMNS)}\nplus_k,71,,,,{profile},\n", encoding="utf-8")
        done = invoke(*words)
        assert done.exit_code == status and ("04.csv is of a smoke run" in done.output) == (profile == "smoke")
    (saved,) = (tmp_path / "saved").iterdir()
    assert saved.name == "04.csv" and saved.read_bytes() == path.read_bytes()
