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
from specdec_lib.experiments.runs import recorded_runs
from specdec_lib.models import loading
from specdec_lib.report import numbers
from specdec_lib.report.build import plan, runner
from specdec_lib.report.claims import rules
from specdec_lib.report.display import provenance

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
    (["run", "-p", "01.target=./none"], "no model in none"),
    (["run", "-p", "01.tasks={}"], "'tasks' of 01_speculative_decoding is {}; expected dict[str, str], for example {"),
    (["run", "-p", "01.prompts_swept=-1"], "'prompts_swept' of 01_speculative_decoding is -1; expected int, for example 2"),
    (["run", "-p", "01.prompts_swept=0"], "(prompts_swept: Input should be greater than or equal to 1)"),
    (["run", "-p", "01.output_seeds=[0,-1]"], "(output_seeds[1]: Input should be greater than or equal to 0)"),
    (["run", "-p", "02.dims=[8,0]"], "(dims[1]: Input should be greater than or equal to 1)"),
    (["datastore", "build", "s", "a.json", "--field", "prompt"], "--field is 'prompt', but a.json is read as plain text"),
    (["datastore", "build", "s", "a.jsonl", "b.json.gz", "--field", "prompt"], "but b.json.gz is read as plain text"),
    (["diagnose", "none.jsonl"], "there is no none.jsonl"),
    (["diagnose", "a.jsonl", "--costs", "dear"], "--costs is 'dear'; expected gpu, cpu, server"),
    (["diagnose", "a.jsonl", "--costs", "file"], "file holds no costs (RecursionError"),
    (["diagnose", "a.jsonl", "--page", "~nobody-of-this-name/x"], "'~nobody-of-this-name/x' is no path"),
    (["diagnose", "a.jsonl", "--json", "file/x.json"], "no file can be written at file/x.json (part of it is a file, no folder)"),
    (["diagnose", "a.jsonl", "--tokenizer", "."], "no tokenizer can be loaded from '.'"),
    (["diagnose", "a.jsonl", "--tokenizer", "pocket", "--store", "."], "error: "),
    (["diagnose", "a.jsonl", "--json", "./a.jsonl"], "are one file"),
    (["diagnose", "a.jsonl", "--costs", "b.json", "--json", "b.json"], "are one file"),
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
    ([LOSSLESS, "--output", "file/x.json"], "no file can be written at file/x.json (part of it is a file, no folder)"),
    ([LOSSLESS, "--method", "PLD++", "--output", "x"], "--method is 'PLD++'; expected one of PLD, PLD (transf"),
    ([HEAD, "--out", "file/head.safetensors"], "no file can be written at file/head.safetensors"),
    ([HEAD, "--data", "file"], "no file can be written in file (part of it is a file, no folder)"),
    ([HEAD, "--task", "no-such-task"], "--task is 'no-such-task'; expected one of"),
    ([HEAD, "--mixing", "1"], "mixing is 1"),
    ([HEAD, "--seed", "-1"], "seed is -1"),
    ([HEAD, "--rate", "inf"], "rate is inf"),
    ([HEAD, "--out", "/dev/null"], "it is no file"),
    ([HEAD, "--out", "n" * 300], "(File name too long)"),
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


def test_a_draft_that_is_not_there_is_told_before_the_target_is_loaded(nothing_loaded, monkeypatch):
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
    assert cli.main(["run"]) == status
    assert says in capsys.readouterr().err


@pytest.mark.parametrize("words", [("diagnose", "evil\x1b[2J"), ("datastore", "info", "evil\x1b[2J")])
def test_a_name_does_not_steer_the_terminal_from_an_error(words):
    done = invoke(*words)
    assert done.exit_code == 2 and r"evil\x1b[2J" in done.output and "\x1b" not in done.output


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
def test_every_claim_is_printed_with_its_verdict_and_the_tables_of_a_run_of_the_books_model_saved(
    tmp_path, monkeypatch
):
    found, path = numbers.executed_files, tmp_path / "files" / "04_x" / "04.csv"
    monkeypatch.setattr(numbers, "executed_files", lambda: found(tmp_path))
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
    path.write_text(f"{','.join(numbers.COLUMNS)}\nplus_k,71,,,,\n", encoding="utf-8")
    for target, status in (("pocket", 2), ("smollm2", 0)):
        path.with_name(provenance.FILE).write_text(json.dumps({"parameters": {"target": target}}))
        done = invoke(*words)
        assert done.exit_code == status and ("04.csv is of the target pocket" in done.output) == (target == "pocket")
    (saved,) = (tmp_path / "saved").iterdir()
    assert saved.name == "04.csv" and saved.read_bytes() == path.read_bytes()


def test_no_output_of_a_command_lies_by_default_where_the_project_ships_files():
    """A shipped file is one that git knows: by default a command writes below ``_build``, or into what the user names."""
    for name, command in COMMANDS.items():
        for option in command.params:
            if option.name in ("out", "output", "data", "save", "to_json", "page") and option.default is not None:
                assert str(option.default).startswith("_build/"), (name, option.name, option.default)


def test_a_model_of_the_working_directory_is_one_for_the_kernel_too(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "my-model").mkdir()
    (tmp_path / "my-model" / "config.json").write_text("{}")
    (tmp_path / "my.gguf").write_bytes(b"GGUF")
    (tmp_path / "pocket").mkdir()  # the name of a shipped model stays one
    for named, expected in (
        ("my-model", tmp_path / "my-model"), ("./my-model", tmp_path / "my-model"), ("my.gguf", tmp_path / "my.gguf"),
        ("pocket", "pocket"), ("smollm2", "smollm2"), ("owner/name", "owner/name"),
    ):  # fmt: skip
        (job,) = plan.make_plan(["01"], [f"01.target={named}"])
        assert job.given["target"] == job.target == str(expected)
    with pytest.raises(FileNotFoundError, match="no model in"):
        plan.make_plan(["01"], ["01.draft=./nothing"])


LOUD = """
import sys
from specdec_lib import cli
from specdec_lib.commands import diagnose
@cli.app.command()
def loud(place: str):
    for number in range(20000):
        print("line", number)
    print("told", file=sys.stderr)
    open(place, "w").write("done")
sys.argv = ["specdec", "loud", sys.argv[1]]
sys.exit(cli.main())
"""


@pytest.mark.parametrize(
    "how", ['"$@" | head -1', 'exec "$@" >&-', 'exec "$@" >&- 2>&-', '"$@" 2>&1 | head -1', '"$@" | true']
)
@pytest.mark.parametrize("unbuffered", ["", "1"])
def test_a_command_whose_reader_goes_away_or_never_was_ends_its_work_without_a_word(how, unbuffered, tmp_path):
    words = [
        "bash",
        "-c",
        f"{how}; exit ${{PIPESTATUS[0]}}",
        "bash",
        sys.executable,
        "-c",
        LOUD,
        str(tmp_path / "file"),
    ]
    environment = os.environ | {"PYTHONUNBUFFERED": unbuffered}
    done = subprocess.run(words, cwd=paths.PACKAGE.parent, env=environment, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0 and (tmp_path / "file").read_text() == "done", (
        "nothing of what is printed is in the file"
    )
    assert done.stderr in ("", "told\n"), done.stderr
