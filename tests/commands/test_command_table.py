"""The table of commands: every one is listed, found under its names, and tells its options."""

from __future__ import annotations

import subprocess
import sys
from importlib import import_module

import pytest

from specdec_lib import __main__ as program
from specdec_lib import paths
from specdec_lib.__main__ import COMMANDS, find_command, main


def test_each_file_of_the_folder_is_one_command():
    files = {f"specdec_lib.commands.{path.stem}" for path in (paths.PACKAGE / "commands").glob("*.py")}
    modules = {command.module for command in COMMANDS.values()}
    assert files - {"specdec_lib.commands.__init__"} == {name for name in modules if ".commands." in name}
    assert len(modules) == len(COMMANDS)


def test_the_list_names_every_command_with_its_line(capsys):
    with pytest.raises(SystemExit) as told:
        main(["--help"])
    text = " ".join(capsys.readouterr().out.split())
    assert told.value.code == 0
    for name, command in COMMANDS.items():
        assert f"{name}{f' ({command.alias})' if command.alias else ''} {command.help}" in text


@pytest.mark.parametrize("name", COMMANDS)
def test_a_command_tells_its_options_under_its_own_name(name, capsys):
    with pytest.raises(SystemExit) as told:
        main([name, "--help"])
    assert told.value.code == 0 and f"usage: python -m specdec_lib {name} " in capsys.readouterr().out


@pytest.mark.parametrize(("old", "new"), [("head", "train-acceptance-head"), ("heads", "find-heads")])
def test_the_old_names_of_two_commands_still_work(old, new, capsys):
    assert find_command(old) is COMMANDS[new]
    with pytest.raises(SystemExit) as told:
        main([old, "--help"])
    assert told.value.code == 0 and f"usage: python -m specdec_lib {new} " in capsys.readouterr().out


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["no-such-command"], "invalid choice: 'no-such-command'"),
        ([], "the following arguments are required: command"),
        ([""], "invalid choice: ''"),
    ],
)
def test_an_unknown_command_is_refused_with_the_list(words, says, capsys):
    with pytest.raises(SystemExit) as told:
        main(words)
    assert told.value.code == 2 and says in capsys.readouterr().err


@pytest.mark.parametrize(
    ("raised", "status", "says"),
    [
        (KeyboardInterrupt(), 130, "interrupted"),
        (program.UsageError("no such thing"), 2, "error: no such thing"),
        (FileNotFoundError("no file x"), 2, "error: no file x"),
        (ImportError("faiss is broken"), 2, "error: faiss is broken"),
    ],
)
def test_how_a_command_ends(raised, status, says, monkeypatch, capsys):
    def work(words):
        raise raised

    monkeypatch.setattr(import_module("specdec_lib.commands.doctor"), "main", work)
    assert main(["doctor"]) == status
    assert says in capsys.readouterr().err


def test_a_missing_extra_is_named_with_what_to_install(tmp_path):
    """Without the extra ``book``, in a process of its own: help works, the work is refused."""
    blocked = dict.fromkeys(("pandas", "matplotlib", "papermill", "nbformat", "jupyter_client"))
    lines = (
        f"import sys; sys.modules.update({blocked!r})",
        "from specdec_lib.__main__ import main",
        "sys.exit(main(sys.argv[1:]))",
    )

    def call(*words):
        return subprocess.run(
            [sys.executable, "-c", "\n".join(lines), *words],
            cwd=paths.PACKAGE.parent,
            capture_output=True,
            text=True,
            timeout=300,
            check=False,
        )

    assert call("run", "--help").returncode == 0
    refused = call("run", "--profile", "smoke")
    assert refused.returncode == 2 and "Install the extras: pip install" in refused.stderr
    assert "[book" in refused.stderr and "Traceback" not in refused.stderr
