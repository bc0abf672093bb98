"""The pages on running again and on a model of one's own: every command and every block of Python on them is run.

The names that the page calls placeholders are in the tests' folder. A command runs as it stands, made small by :data:`SMALLER`.
"""

import glob
import json
import re
import runpy
import shlex
import shutil
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import typer

import specdec_lib
from specdec_lib import cli, paths
from specdec_lib.cli import main
from specdec_lib.report import numbers, params
from specdec_lib.report.build import plan
from tests.experiments.published_formats import write

pytestmark = pytest.mark.skipif(paths.ROOT is None, reason="an installed package has no pages")
ROOT = paths.ROOT or Path()
OWN, AGAIN = (ROOT / "book" / name for name in ("your-own-model.md", "how-to-rerun.md"))
_BLOCK = re.compile(r"^```(\w+)\n(.*?)^```", re.DOTALL | re.MULTILINE)

#: Further words behind a command, which make it small; the last of two options counts. The tasks made from the
#: standard library are replaced by a file of four prompts: reading the whole library takes half a minute.
SMALLER = {
    "datastore dense": "--max-states 80 --dims 8 --device cpu",
    "train-acceptance-head": "--task gsm8k --prompts 4 --max-new-tokens 12 --epochs 1 --device cpu",
    "train-heads": "--task gsm8k --prompts 4 --max-new-tokens 12 --epochs 1 --device cpu",
    "fit-tree": "--task gsm8k --prompts 2 --max-new-tokens 12 --device cpu",
    "calibrate": "--context 32 --repeats 1 --device cpu",
    "find-heads": "--task gsm8k --prompts 2 --max-new-tokens 24 --device cpu",
}


def blocks(page: Path) -> list[tuple[str, str]]:
    """Language and content of each fenced block, in order; directives are none."""
    return _BLOCK.findall(page.read_text(encoding="utf-8"))


def commands(text: str) -> list[list[str]]:
    """The words of each command of a bash block."""
    lines = text.replace("\\\n", " ").splitlines()
    return [words for line in lines if (words := shlex.split(line, comments=True))]


QUESTION = "Rename `{0}` to `amount`.\n\ndef add({0}, x):\n    {0} += x\n    return {0}"


@pytest.fixture
def workplace(tmp_path, monkeypatch):
    """A working folder with everything that the page calls a placeholder: the models are the pocket pair, named anew, since
    no head would be found in a random model, which copies nothing."""
    (tmp_path / "my-text").mkdir()
    for name in ("a", "b"):
        (tmp_path / "my-text" / f"{name}.txt").write_text(f"def {name}(x):\n    return x + x\n\n" * 40)
    words = ("total", "number", "left", "rows")
    lines = [json.dumps({"question": QUESTION.format(word), "answer": "#### 1"}) for word in words]
    write(tmp_path / "sets/gsm8k/test.jsonl", "\n".join(lines))
    log = [json.dumps({"prompt": QUESTION.format(word), "answer": f"def add({word}, x):"}) for word in words]
    write(tmp_path / "my-log.jsonl", "\n".join(log))
    for name, part in (("my-model", "target"), ("my-draft", "draft")):
        shutil.copytree(paths.POCKET / part, tmp_path / name)
    left_by_a_run = tmp_path / "book/notebooks/files/01_speculative_decoding/01.csv"
    write(left_by_a_run, (numbers.COMMITTED / "01.csv").read_bytes())
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("SPECDEC_DATASETS", str(tmp_path / "sets"))
    return tmp_path


def run_specdec(words: list[str]) -> None:
    """Run a command of the library in this process, made small."""
    found = [each for word in words for each in (sorted(glob.glob(word)) if "*" in word else [word])]
    name = " ".join(words[:2]) if words[0] == "datastore" else words[0]
    assert main([*found, *SMALLER.get(name, "").split()]) == 0, words


def run_script(words: list[str]) -> None:
    """Run a script of Python in this process, until it ends without an error."""
    with pytest.MonkeyPatch.context() as patch, pytest.raises(SystemExit, match="^0$"):
        patch.setattr(sys, "argv", words[1:])
        runpy.run_path(str(ROOT / words[1]), run_name="__main__")


def trains_a_pair(words: list[str]) -> None:
    """The script leaves a target and a draft that are loaded and share a tokenizer."""
    run_script([*words, *"--steps 1 --batch 1 --length 32 --modules 5".split()])
    pair = [specdec_lib.load_model(Path(words[-1]) / part, "cpu") for part in ("target", "draft")]
    shipped = [specdec_lib.load_model(name, "cpu") for name in ("pocket", "pocket-draft")]
    assert [model.num_parameters() for model, _ in pair] == [model.num_parameters() for model, _ in shipped]
    assert pair[0][1].get_vocab() == pair[1][1].get_vocab()


def papermill_words(words: list[str]) -> None:
    """The notebook of a papermill command has its parameters."""
    declared = params.declared_parameters(ROOT / next(word for word in words if word.endswith(".ipynb")))
    given = {words[i + 1]: words[i + 2] for i, word in enumerate(words) if word == "-p"}
    params.validate({name: params.parse_value(text, declared[name]) for name, text in given.items()}, declared)


def options(words: list[str]) -> dict:
    """The options of a command, parsed and not run: the work is done by other tests, or by ``make book``."""
    return typer.main.get_command(cli.app).commands[words[0]].make_context(words[0], list(words[1:])).params


def plans(words: list[str]) -> None:
    """``run`` finds notebooks and parameters, as it does before anything is executed."""
    own = options(words)
    assert plan.make_plan(own["only"] or (), own["parameter"] or ())


def installs(words: list[str]) -> None:
    """What pip or conda is told to install is there."""
    text = " ".join(words)
    for extra in re.search(r"\.\[([\w,]+)\]", text)[1].split(",") if "[" in text else ():
        assert re.search(rf"^{extra} = \[", (ROOT / "pyproject.toml").read_text(encoding="utf-8"), re.MULTILINE), extra
    for flag in ("-c", "-f"):
        if flag in words:
            assert (ROOT / words[words.index(flag) + 1]).is_file()


#: How a command is run, by its beginning; the first that fits counts.
HANDLERS: list[tuple[str, Callable[[list[str]], object]]] = [
    (r"python -m specdec_lib run\b", lambda words: plans(words[3:])),
    (
        r"python -m specdec_lib (book|check|claims|rows)",
        lambda words: options(words[3:]),
    ),  # minutes, or executed notebooks
    (r"python -m specdec_lib ", lambda words: run_specdec(words[3:])),
    (r"python scripts/train_fixture.py", trains_a_pair),
    (r"python scripts/record_answers.py", lambda words: run_script([*words, "--help"])),  # all of it takes hours
    (r"papermill ", papermill_words),
    (r"(\w+=\S+ )*make ", lambda words: None),  # tests/report/test_pages.py looks its target up
    (r"(pip install|conda env create) ", installs),
    (r"git diff data$", lambda words: None),
]


def run_command(words: list[str]) -> None:
    text = " ".join(words)
    found = next((work for pattern, work in HANDLERS if re.match(pattern, text)), None)
    assert found, f"no test runs {text!r}: say in HANDLERS how"
    found(words)


@pytest.mark.slow
def test_every_command_and_block_on_a_model_of_ones_own_runs_in_order(workplace, capsys):
    scope: dict = {}
    for language, text in blocks(OWN):
        if language == "python":
            exec(compile(text, f"{OWN.name}: {text.splitlines()[0]}", "exec"), scope)
        elif language == "bash":
            for words in commands(text):
                run_command(words)
    out = capsys.readouterr().out
    # The models of the test are in float32 on the CPU, where speculation changes nothing.
    assert scope["fast"].tokens == scope["plain"].tokens and "True" in out
    assert scope["out"][0, len(scope["prompt"]) :].tolist() == scope["plain"].tokens
    assert {"my-store", "my-answers", "my-head.safetensors", "my-heads.json"} <= {p.name for p in workplace.iterdir()}


def test_every_command_of_the_page_on_running_again_is_understood(workplace):
    found = [words for language, text in blocks(AGAIN) if language == "bash" for words in commands(text)]
    assert len(found) > 20 and not [text for language, text in blocks(AGAIN) if language == "python"]
    for words in found:
        run_command(words)
