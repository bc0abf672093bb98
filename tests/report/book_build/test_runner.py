"""The runner: refuses before it runs, writes whole copies, skips what has not changed, tells failures in words, and leaves no
process behind."""

import os
import re
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import nbformat
import pytest

from specdec_lib import files, paths
from specdec_lib.report import numbers, params
from specdec_lib.report.build import execution, plan, runner
from tests.report import ends
from tests.report.notebook_factory import write_notebook
from tests.test_processes import left_of


@pytest.fixture
def folders(tmp_path) -> dict[str, Path]:
    return {"notebooks": tmp_path / "notebooks", "output": tmp_path / "executed", "kept": tmp_path / "failed"}


def saved(folders) -> float:
    """The number that the small notebook saved."""
    return numbers.read(folders["output"] / "files" / "01_small" / "01.csv")["alpha"].value


def test_a_notebook_is_run_once_and_again_only_when_it_must(folders, capsys):
    code = ["report.save('01', {'alpha': alpha}); __import__('os').environ['OMP_WAIT_POLICY']"]
    code += ["report.provenance_table(values)"]
    source = write_notebook(folders["notebooks"], code, prose="Before.")
    copy = folders["output"] / source.name
    assert runner.run(overrides=["01.alpha=0.25"], **folders) == []
    executed = nbformat.read(str(copy), as_version=4)
    assert saved(folders) == 0.25
    facts = executed.metadata["specdec"]
    given = {"alpha": 0.25, "ks": [1, 2]}
    assert facts["provenance"]["parameters"] == given
    assert facts["source_sha256"] == files.sha256(source) and facts["provenance"]["notebook"] == "01_small"
    assert str(paths.root()) not in copy.read_text() and str(folders["output"]) not in copy.read_text()
    told = capsys.readouterr().out
    assert "01_small begins" in told and "01_small: done (" in told

    first = copy.stat().st_ino, copy.read_bytes()
    runner.run(overrides=["01.alpha=0.25"], **folders)
    assert (copy.stat().st_ino, copy.read_bytes()) == first and "unchanged" in capsys.readouterr().out

    write_notebook(folders["notebooks"], code, prose="After.")
    runner.run(overrides=["01.alpha=0.25"], **folders)
    assert "prose renewed" in capsys.readouterr().out
    renewed = nbformat.read(str(copy), as_version=4)
    assert any("After." in cell.source for cell in renewed.cells) and saved(folders) == 0.25
    cells = ([c for c in content.cells if c.cell_type == "code"] for content in (executed, renewed))
    before, after = ([(c.source, c.outputs, c.execution_count) for c in own] for own in cells)
    assert after == before
    nbformat.validate(renewed)

    runner.run(overrides=["01.alpha=0.75"], **folders)
    assert saved(folders) == 0.75


def test_the_key_changes_with_everything_that_can_change_a_result(folders, tmp_path, monkeypatch):
    write_notebook(folders["notebooks"])
    for name in ("package", "data"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "a.py").write_text("1")
    monkeypatch.setattr(paths, "PACKAGE", tmp_path / "package")
    monkeypatch.setattr(paths, "DATA", tmp_path / "data")

    def key(*words: str) -> str:
        (job,) = plan.make_plan(overrides=words, notebooks=folders["notebooks"])
        return job.key(plan.surroundings())

    keys = [key(), key("01.alpha=0.75")]
    assert key() == keys[0]
    for change in (
        lambda: (tmp_path / "package" / "a.py").write_text("2"),
        lambda: (tmp_path / "data" / "b.npy").write_text("2"),
        lambda: write_notebook(folders["notebooks"], code=["1 + 1"]),
        lambda: monkeypatch.setattr("specdec_lib.report.display.provenance.versions", lambda: {"torch": "0"}),
    ):
        change()
        keys.append(key())
    assert len(set(keys)) == 6


def test_a_failing_cell_is_told_by_notebook_and_cell_and_leaves_the_old_copy(folders, capsys):
    source = write_notebook(folders["notebooks"], code=["values", "def depth(n):\n    return 1 / n\n\n\ndepth(0)"])
    write_notebook(folders["notebooks"], name="02_dies", code=["import os\n\nos._exit(9)"])
    write_notebook(folders["notebooks"], name="03_works")
    old = folders["output"] / source.name
    files.write_atomic(old, "the copy of an earlier run")
    failed = runner.run(overrides=["01.alpha=0.25"], force=True, **folders)
    told = capsys.readouterr().err
    assert {failure.job.name for failure in failed} == {"01_small", "02_dies"}
    assert all(failure.message in told for failure in failed)
    assert re.search(r"01_small: cell 6 of 6, \d+ s: failed", told)
    assert "ZeroDivisionError: division by zero" in told and "return 1 / n" in told
    assert "02_dies: cell 4 of 4" in told and "kernel died" in told
    assert "\x1b" not in told and "site-packages/papermill" not in told
    assert "python -m specdec_lib run --only 01 -p 01.alpha=0.25" in told
    assert old.read_text() == "the copy of an earlier run"
    assert (folders["kept"] / source.name).is_file() and str(folders["kept"] / source.name) in told
    assert sorted(path.name for path in folders["output"].glob("*.ipynb")) == ["01_small.ipynb", "03_works.ipynb"]


#: A cell that ends after the cell of the other notebook has begun.
MEETS = """import os, time
from pathlib import Path
Path({folder!r}, {name!r}).write_text(os.environ["OMP_NUM_THREADS"])
while not Path({folder!r}, {other!r}).exists():
    time.sleep(0.1)
time.sleep(1)"""
#: A cell that writes when it began and ended.
TIMES = """import time
began = time.time()
time.sleep(1.5)
Path({folder!r}, {name!r} + {number!r}).write_text(f"{{began}} {{time.time()}}")"""


def test_two_notebooks_run_at_once_but_cells_that_measure_time_alone(folders, tmp_path, monkeypatch, capsys):
    """With half of the cores each, and it is said how far they are."""
    monkeypatch.setattr(runner, "REPORT_SECONDS", 0.5)
    monkeypatch.setattr(os, "cpu_count", lambda: 6)
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    monkeypatch.setattr(os, "getloadavg", lambda: (99.0, 99.0, 99.0))
    # The cells after the meeting begin together. Each notebook has one that measures time, and one that does not.
    for name, other, timed in (("01_one", "02_other", 1), ("02_other", "01_one", 2)):
        given = {"folder": str(tmp_path), "name": name}
        code = [MEETS.format(**given, other=other), *(TIMES.format(**given, number=f" {i}") for i in (1, 2))]
        write_notebook(folders["notebooks"], code, name=name, tags={timed: execution.TIMED})
    assert runner.run(**folders) == []
    assert [(tmp_path / name).read_text() for name in ("01_one", "02_other")] == ["3", "3"]
    told = capsys.readouterr().out
    assert "02_other: cell 4 of 6" in told and "; 01_one: cell 4 of 6" in told
    assert told.index("02_other begins") < told.index("01_one begins")  # that of more code
    assert "the machine is busy, load 99.0 on" in told

    def span(cell: str) -> list[float]:
        return [float(word) for word in (tmp_path / cell).read_text().split()]

    for timed, others in (("01_one 1", "02_other"), ("02_other 2", "01_one")):
        for other in (f"{others} 1", f"{others} 2"):
            first, second = sorted([span(timed), span(other)])
            assert first[1] < second[0], f"{other} ran while {timed} measured time"


#: The process of a notebook reads this file too, and needs nothing of it.
PROGRAM = """
if __name__ == "__main__":
    from pathlib import Path
    from specdec_lib.report.build import runner
    assert not runner.run({words})
"""


#: A cell whose kernel works on all cores, and says which processes there are.
POOL = """import os, time
from pathlib import Path
from specdec_lib.experiments.runs import all_cores
all_cores.ALONE_SECONDS = 0.0
def task():
    Path({folder!r}, str(os.getpid())).write_text(str(os.getppid()))
    time.sleep(60)
all_cores.on_all_cores([task, task], 2)"""


@pytest.mark.skipif(sys.platform != "linux", reason="looks processes up in /proc")
@pytest.mark.parametrize("sent", [signal.SIGTERM, signal.SIGINT, signal.SIGKILL])
def test_a_run_that_is_ended_leaves_no_kernel_and_no_pool(folders, tmp_path, sent):
    pids, program = tmp_path / "pids", tmp_path / "program.py"
    pids.mkdir()
    write_notebook(folders["notebooks"], [POOL.format(folder=str(pids))])
    program.write_text(PROGRAM.format(words=", ".join(f"{n}=Path({str(path)!r})" for n, path in folders.items())))

    def below(run):
        workers, found = {int(path.name) for path in pids.iterdir()}, descendants(run.pid)
        # Papermill's process, the kernel, two workers.
        return found if len(workers) == 2 and workers < found and len(found) >= 4 else set()

    assert not left_of([sys.executable, str(program)], below, sent, cwd=paths.root())


def descendants(pid: int) -> set[int]:
    parents = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            parents[int(stat.parent.name)] = int(stat.read_text().rsplit(")", 1)[1].split()[1])
        except (FileNotFoundError, ProcessLookupError):
            continue
    found, new = set(), {pid}
    while new := {child for child, parent in parents.items() if parent in new} - found:
        found |= new
    return found


def test_a_folder_that_cannot_be_written_to_is_refused_before_anything_runs(folders, tmp_path, monkeypatch):
    write_notebook(folders["notebooks"])
    monkeypatch.setattr(runner, "_start", lambda *_: pytest.fail("it ran"))
    (tmp_path / "file").write_text("")
    folders["output"] = wrong = tmp_path / "file" / "below"  # a folder that nobody can write to, root neither
    with pytest.raises(params.UsageError, match=f"^nothing was run: .* go to {wrong}, where no file can be made"):
        runner.run(**folders)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["file", "notebooks"]


def test_parameters_of_the_command_line_are_checked_before_anything_runs(folders):
    write_notebook(folders["notebooks"])
    for words in ("01.alhpa=1", "01.ks=[a]", "02.alpha=1"):
        with pytest.raises(params.UsageError):
            plan.make_plan(overrides=[words], notebooks=folders["notebooks"])
    (job,) = plan.make_plan(overrides=["01.alpha=0.9", "01.ks=[7]"], notebooks=folders["notebooks"])
    assert job.given == {"alpha": 0.9, "ks": [7]}


def test_an_interrupted_replacement_of_a_folder_leaves_the_old_one_and_is_made_good_by_the_next(tmp_path, monkeypatch):
    new, target = tmp_path / "scratch" / "files", tmp_path / "executed" / "files" / "01"
    for folder, text in ((new, "new"), (target, "old")):
        folder.mkdir(parents=True)
        (folder / "tab-a.csv").write_text(text)

    def cut(source, aside, **options):
        # A move to another file system copies file by file.
        Path(aside).mkdir()
        (Path(aside) / "tab-a.csv").write_text("ne")
        raise KeyboardInterrupt

    monkeypatch.setattr(shutil, "move", cut)
    with pytest.raises(KeyboardInterrupt):
        files.replace_folder(new, target, ("*.csv",))
    assert (target / "tab-a.csv").read_text() == "old"
    monkeypatch.undo()
    files.replace_folder(new, target, ("*.csv",))
    assert (target / "tab-a.csv").read_text() == "new"
    assert [p.name for p in target.parent.iterdir()] == ["01"]
    files.replace_folder(tmp_path / "none", target, ("*.csv",))
    assert not target.exists()


def test_papermill_alone_refuses_them_as_well(folders, tmp_path):
    source = write_notebook(folders["notebooks"])
    words = [sys.executable, "-m", "papermill", str(source), str(tmp_path / "out.ipynb"), "--no-progress-bar"]
    done = subprocess.run([*words, "-p", "alhpa", "1"], cwd=paths.root(), capture_output=True, text=True, check=False)
    assert done.returncode == 1 and "unknown parameter 'alhpa': did you mean 'alpha'" in done.stderr


def test_a_process_that_is_killed_is_a_failure(folders, monkeypatch):
    write_notebook(folders["notebooks"])
    monkeypatch.setattr(execution, "execute", ends.killed)
    (failure,) = runner.run(**folders)
    assert "its process ended with status -9" in failure.message


RENDERING = """
import signal, sys
signal.signal(signal.SIGINT, signal.default_int_handler)  # which a shell turns off for what it runs in the background
from pathlib import Path
from specdec_lib.report.build import book
book.check_executed = lambda *_: None
book.rerun.write_pages = lambda *_: None
book.paths.root = lambda: Path(sys.argv[1])
book.build()
"""
BUILDS = """
import os, time
from pathlib import Path
def main():
    child = os.fork()
    if child:
        Path("pids.new").write_text(f"{os.getpid()} {child}")
        os.rename("pids.new", "pids")
    time.sleep(600)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="looks processes up in /proc")
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGKILL], ids=lambda number: number.name)
def test_five_seconds_after_the_end_of_a_book_nothing_is_rendered(tmp_path, number):
    (tmp_path / "_build").mkdir()
    (tmp_path / "jupyter_book" / "cli").mkdir(parents=True)
    for name, text in (
        ("__init__", ""),
        ("sphinx", "build_sphinx = print"),
        ("cli/__init__", ""),
        ("cli/main", BUILDS),
    ):
        (tmp_path / "jupyter_book" / f"{name}.py").write_text(text)
    pids = tmp_path / "pids"

    def below(run):
        return set(map(int, pids.read_text().split())) if pids.exists() else set()

    assert not left_of([sys.executable, "-c", RENDERING, str(tmp_path)], below, number, cwd=tmp_path)
