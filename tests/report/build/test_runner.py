"""The runner: refuses before it runs, writes whole copies, skips what has not changed, tells failures in
words."""

from __future__ import annotations

import errno
import os
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from types import SimpleNamespace

import nbformat
import pytest
import torch
from filelock import ReadWriteLock, Timeout

from specdec_lib import __main__ as command
from specdec_lib import cluster, files, paths
from specdec_lib.report.build import params, plan, runner
from specdec_lib.report.display import record
from tests.report.notebook_factory import PARAMETERS, write_notebook


@pytest.fixture
def folders(tmp_path) -> dict[str, Path]:
    return {"notebooks": tmp_path / "notebooks", "output": tmp_path / "executed", "kept": tmp_path / "failed"}


def stamp(path: Path) -> tuple[int, bytes]:
    return path.stat().st_ino, path.read_bytes()


def code_cells(content) -> list:
    return [(c.source, c.outputs, c.execution_count) for c in content.cells if c.cell_type == "code"]


def test_a_notebook_is_run_once_and_again_only_when_it_must(folders, capsys):
    source = write_notebook(folders["notebooks"], prose="Before.")
    copy = folders["output"] / source.name
    assert runner.run("smoke", overrides=["01.alpha=0.25"], **folders) == []
    executed = nbformat.read(str(copy), as_version=4)
    assert record.recorded(executed) == {"alpha": 0.25}
    facts = executed.metadata["specdec"]
    assert facts["profile"] == "smoke" and facts["provenance"]["parameters"] == {
        "alpha": 0.25,
        "profile": "smoke",
    }
    assert facts["source_sha256"] == files.sha256(source)
    assert str(paths.root()) not in copy.read_text() and str(folders["output"]) not in copy.read_text()

    first = stamp(copy)
    runner.run("smoke", overrides=["01.alpha=0.25"], **folders)
    assert stamp(copy) == first and "unchanged" in capsys.readouterr().out

    write_notebook(folders["notebooks"], prose="After.")
    runner.run("smoke", overrides=["01.alpha=0.25"], **folders)
    assert "prose renewed" in capsys.readouterr().out
    renewed = nbformat.read(str(copy), as_version=4)
    assert any("After." in cell.source for cell in renewed.cells) and record.recorded(renewed) == {"alpha": 0.25}
    assert code_cells(renewed) == code_cells(executed)
    nbformat.validate(renewed)

    runner.run("smoke", overrides=["01.alpha=0.75"], **folders)
    assert record.recorded(copy) == {"alpha": 0.75}


@pytest.mark.parametrize("what", ["library", "data", "versions", "profile", "code"])
def test_the_key_changes_with_everything_that_can_change_a_result(folders, tmp_path, monkeypatch, what):
    write_notebook(folders["notebooks"])
    for name in ("package", "data"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "a.py").write_text("1")
    monkeypatch.setattr(paths, "PACKAGE", tmp_path / "package")
    monkeypatch.setattr(paths, "DATA", tmp_path / "data")

    def key(profile: str = "smoke") -> str:
        (job,) = plan.make_plan(profile, notebooks=folders["notebooks"])
        return job.key(plan.surroundings())

    before = key()
    assert key() == before
    if what == "library":
        (tmp_path / "package" / "a.py").write_text("2")
    elif what == "data":
        (tmp_path / "data" / "b.npy").write_text("2")
    elif what == "versions":
        monkeypatch.setattr("specdec_lib.report.display.provenance.versions", lambda: {"torch": "0"})
    elif what == "code":
        write_notebook(folders["notebooks"], code=["1 + 1"])
    assert key("full" if what == "profile" else "smoke") != before


def test_a_failing_cell_is_told_by_notebook_cell_and_heading_and_leaves_the_old_copy(folders, capsys):
    source = write_notebook(folders["notebooks"], code=["values", "def depth(n):\n    return 1 / n\n\n\ndepth(0)"])
    old = folders["output"] / source.name
    files.write_atomic(old, "the copy of an earlier run")
    (failure,) = runner.run("smoke", overrides=["01.alpha=0.25"], force=True, **folders)
    told = capsys.readouterr().err
    assert failure.message in told
    assert "01_small failed in code cell 5 of 5, under the heading 'Result'" in told
    assert "ZeroDivisionError: division by zero" in told and "return 1 / n" in told
    assert "\x1b" not in told and "site-packages/papermill" not in told
    assert "python -m specdec_lib run --profile smoke --only 01 -p 01.alpha=0.25" in told
    assert old.read_text() == "the copy of an earlier run"
    assert (folders["kept"] / source.name).is_file() and str(folders["kept"] / source.name) in told


def test_a_kernel_that_dies_is_a_failure(folders, capsys):
    write_notebook(folders["notebooks"], code=["import os\n\nos._exit(9)"])
    (failure,) = runner.run("smoke", **folders)
    assert "code cell 4 of 4" in failure.message and "kernel died" in failure.message
    assert not (folders["output"] / "01_small.ipynb").exists()


def start_run(folders: dict[str, Path], temporary: Path | None = None) -> subprocess.Popen:
    words = ", ".join(f"{name}=Path({str(folder)!r})" for name, folder in folders.items())
    program = f"from pathlib import Path\nfrom specdec_lib.report.build import runner\nassert not runner.run('smoke', {words})"
    return subprocess.Popen(
        [sys.executable, "-c", program],
        cwd=paths.root(),
        env=os.environ | ({"TMPDIR": str(temporary)} if temporary else {}),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def test_two_runs_at_once_do_not_meet_and_leave_no_sockets(tmp_path):
    runs = []
    before = sorted(path.name for path in paths.root().iterdir())
    # The name of the second temporary folder is too long for sockets in it.
    for number, temporary in ((1, tmp_path / "t"), (2, tmp_path / ("t" * 90))):
        temporary.mkdir()
        folders = {name: tmp_path / str(number) / name for name in ("notebooks", "output", "kept")}
        write_notebook(folders["notebooks"], code=["import time\n\ntime.sleep(1)\nreport.record('alpha', alpha)"])
        runs.append((start_run(folders, temporary), folders["output"] / "01_small.ipynb", temporary))
    for process, copy, temporary in runs:
        told, _ = process.communicate(timeout=120)
        assert process.returncode == 0, told
        assert record.recorded(copy) == {"alpha": 0.5}
        assert not [path for path in temporary.iterdir() if path.name.startswith("specdec")]
    assert sorted(path.name for path in paths.root().iterdir() if path.name != ".pytest_cache") == [
        name for name in before if name != ".pytest_cache"
    ]


@pytest.mark.parametrize("which", ["output", "kept", "cache", "temporary"])
def test_a_folder_that_cannot_be_written_to_is_refused_before_anything_runs(folders, tmp_path, monkeypatch, which):
    write_notebook(folders["notebooks"])
    monkeypatch.setattr("papermill.execute_notebook", lambda *a, **k: pytest.fail("it ran"))
    (tmp_path / "file").write_text("")
    wrong = tmp_path / "file" / "below"  # a folder that nobody can write to, root neither
    if which == "cache":
        monkeypatch.setenv("SPECDEC_CACHE", str(wrong))
    elif which == "temporary":
        monkeypatch.setattr(tempfile, "gettempdir", lambda: str(wrong))
    else:
        folders[which] = wrong
    with pytest.raises(params.UsageError, match=f"^nothing was run: .* go to {wrong}, where no file can be made"):
        runner.run("smoke", **folders)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["file", "notebooks"]


def test_a_read_only_checkout_is_one_sentence_and_status_2(folders, monkeypatch, capsys):
    write_notebook(folders["notebooks"])
    monkeypatch.setattr(paths, "root", lambda: folders["notebooks"].parent)
    monkeypatch.setattr(plan, "find_notebooks", lambda folder, only=(): [folders["notebooks"] / "01_small.ipynb"])

    def read_only(*args, **kwargs):
        raise OSError(errno.EROFS, os.strerror(errno.EROFS))

    monkeypatch.setattr(tempfile, "TemporaryFile", read_only)
    assert command.main(["run", "--profile", "smoke"]) == 2
    error = capsys.readouterr().err
    assert error.startswith("error: nothing was run: executed notebooks go to ") and error.count("\n") == 1
    assert "Read-only file system" in error and "_build" in error and "SPECDEC_CACHE" in error


def test_a_failure_ends_the_command_with_status_one(monkeypatch):
    monkeypatch.setattr(runner, "run", lambda *args, **place: ["a failure"])
    assert command.main(["run", "--profile", "smoke"]) == 1
    monkeypatch.setattr(runner, "run", lambda *args, **place: [])
    assert command.main(["run", "--profile", "smoke"]) == 0


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        ({"overrides": ["01.alhpa=1"]}, "did you mean 'alpha'"),
        ({"overrides": ["01.alpha=abc"]}, "float is expected"),
        ({"overrides": ["alpha=1"]}, "01.name=value"),
        ({"overrides": ["07.alpha=1"]}, "no notebook '07'"),
        ({"only": ["07"]}, "no notebook '07'"),
        ({"profile": "quick"}, "no profile 'quick'"),
    ],
)
def test_what_is_not_there_is_refused_before_anything_runs(folders, monkeypatch, arguments, told):
    write_notebook(folders["notebooks"])
    monkeypatch.setattr("papermill.execute_notebook", lambda *a, **k: pytest.fail("it ran"))
    with pytest.raises(params.UsageError, match=told):
        runner.run(**{"profile": "smoke", **arguments}, **folders)


@pytest.mark.parametrize(
    "text", ["01_small: {alhpa: 1}", "01_small: {ks: [a]}", "01_big: {alpha: 1}", "01_small: 3", "- 1"]
)
def test_a_faulty_profile_is_refused(folders, text):
    write_notebook(folders["notebooks"])
    (folders["notebooks"] / "params" / "smoke.yml").write_text(text)
    with pytest.raises(params.UsageError):
        plan.make_plan("smoke", notebooks=folders["notebooks"])


def test_the_command_line_wins_over_the_profile_and_the_profile_over_the_default(folders):
    write_notebook(folders["notebooks"])
    (folders["notebooks"] / "params" / "smoke.yml").write_text("01_small: {alpha: 0.1, ks: [7]}")
    (job,) = plan.make_plan("smoke", overrides=["01.alpha=0.9"], notebooks=folders["notebooks"])
    assert job.given == {"profile": "smoke", "alpha": 0.9, "ks": [7]}


def test_an_interrupted_run_leaves_the_old_copy_and_ends_with_130(folders, monkeypatch):
    source = write_notebook(folders["notebooks"])
    old = folders["output"] / source.name
    files.write_atomic(old, "old")

    def interrupted(*args, **kwargs):
        raise KeyboardInterrupt

    monkeypatch.setattr("papermill.execute_notebook", interrupted)
    monkeypatch.setattr(plan, "find_notebooks", lambda folder, only=(): [source])
    monkeypatch.setattr(paths, "root", lambda: folders["notebooks"].parent)
    assert command.main(["run", "--profile", "smoke"]) == 130
    assert old.read_text() == "old" and sorted(p.name for p in old.parent.iterdir()) == [old.name]


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
        files.replace_folder(new, target)
    assert (target / "tab-a.csv").read_text() == "old"
    monkeypatch.undo()
    files.replace_folder(new, target)
    assert (target / "tab-a.csv").read_text() == "new"
    assert [p.name for p in target.parent.iterdir()] == ["01"]
    files.replace_folder(tmp_path / "none", target)
    assert not target.exists()


def test_tables_that_an_interruption_had_set_aside_are_back_when_the_notebook_is_unchanged(folders, capsys):
    source = write_notebook(folders["notebooks"])
    runner.run("smoke", **folders)
    tables = folders["output"] / "files" / source.stem
    aside = tables.with_name(tables.name + ".old")
    aside.mkdir(parents=True)
    (aside / "tab-a.csv").write_text("1")
    runner.run("smoke", **folders)
    assert "unchanged" in capsys.readouterr().out
    assert (tables / "tab-a.csv").read_text() == "1" and not aside.exists()


def test_an_interrupted_write_leaves_the_old_file_and_nothing_else(tmp_path, monkeypatch):
    path = tmp_path / "a.ipynb"
    files.write_atomic(path, "old")

    def interrupted(source, target):
        raise KeyboardInterrupt

    monkeypatch.setattr(os, "replace", interrupted)
    with pytest.raises(KeyboardInterrupt):
        files.write_atomic(path, "new")
    assert path.read_text() == "old" and [p.name for p in tmp_path.iterdir()] == ["a.ipynb"]


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["-p", "alhpa", "1"], "unknown parameter 'alhpa': did you mean 'alpha'"),
        (["-p", "alpha", "abc"], "float is expected"),
    ],
)
def test_papermill_alone_refuses_them_as_well(folders, tmp_path, words, told):
    source = write_notebook(folders["notebooks"])
    done = subprocess.run(
        [
            sys.executable,
            "-m",
            "papermill",
            str(source),
            str(tmp_path / "out.ipynb"),
            "--no-progress-bar",
            *words,
        ],
        cwd=paths.root(),
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 1 and told in done.stderr


#: Two runs, of which the second one fails.
GRID = ["01.seed=1,2"]
GRID_PARAMETERS = PARAMETERS + "seed: int = 0   # of the draws\n"
GRID_CODE = ["report.record('seed', seed)\n1 / (seed - 2)"]


@pytest.fixture
def sweeps(tmp_path) -> Path:
    return tmp_path / "sweeps"


def test_several_values_of_numbers_make_a_grid_of_jobs_with_commands_of_their_own(folders):
    write_notebook(folders["notebooks"], parameters=GRID_PARAMETERS)
    jobs = plan.make_plan(
        "smoke", overrides=["01.alpha=0.25,0.75", *GRID, "01.ks=[3, 4]"], notebooks=folders["notebooks"]
    )
    assert [job.point for job in jobs] == [f"alpha={a},seed={s}" for a in (0.25, 0.75) for s in (1, 2)]
    assert [(job.given["alpha"], job.given["seed"]) for job in jobs] == [(0.25, 1), (0.25, 2), (0.75, 1), (0.75, 2)]
    assert all(job.given["ks"] == [3, 4] for job in jobs)
    assert jobs[1].command.endswith("--only 01 -p 01.alpha=0.25 -p 01.seed=2 -p 01.ks=[3, 4]")
    (one,) = plan.make_plan("smoke", overrides=["01.profile=a,b"], notebooks=folders["notebooks"])
    assert one.given["profile"] == "a,b" and one.point == ""
    for wrong, message in (("01.seed=1,1", "names a value twice"), ("01.seed=1,", "'seed' of 01_small is None")):
        with pytest.raises(params.ParameterError, match=message):
            plan.make_plan("smoke", overrides=[wrong], notebooks=folders["notebooks"])


def facts(path: Path) -> dict:
    """What a run says of itself but for its times and the state of the repository, which may be worked on meanwhile."""
    about = nbformat.read(str(path), as_version=4).metadata["specdec"]
    return {k: v for k, v in about.items() if k != "seconds"} | {
        "provenance": {k: v for k, v in about["provenance"].items() if k not in ("date", "commit")}
    }


def test_processes_and_one_process_run_a_grid_with_the_same_results_and_failures(folders, sweeps, tmp_path, capsys):
    write_notebook(folders["notebooks"], parameters=GRID_PARAMETERS, code=GRID_CODE)
    (here,) = runner.run("smoke", overrides=GRID, sweeps=sweeps, **folders)
    capsys.readouterr()
    there = tmp_path / "there"
    other = folders | {"output": there, "kept": tmp_path / "there-failed"}
    (failure,) = runner.run("smoke", overrides=GRID, sweeps=there, place=cluster.Processes(2), **other)
    compare_grids(sweeps, there)
    assert failure.job.point == here.job.point == "seed=2"
    assert failure.message == here.message.replace(str(folders["kept"]), str(other["kept"]))
    assert (other["kept"] / "seed=2" / "01_small.ipynb").is_file()
    told = capsys.readouterr()
    assert "2 of 2 notebooks (smoke) are running" in told.out and failure.message in told.err
    runner.run("smoke", overrides=GRID, sweeps=there, place=cluster.Processes(2), **other)
    assert "1 of 2 notebooks" in capsys.readouterr().out


def compare_grids(first: Path, second: Path) -> None:
    """The point of the grid that does not fail has run with the same result in both folders."""
    assert [path.name for path in first.iterdir()] == [path.name for path in second.iterdir()] == ["seed=1"]
    one, two = (folder / "seed=1" / "01_small.ipynb" for folder in (first, second))
    assert record.recorded(one) == record.recorded(two) == {"seed": 1} and facts(one) == facts(two)


def test_the_chapter_that_took_longest_begins_first(folders, capsys, monkeypatch):
    known = runner._known_seconds()
    assert {path.stem for path in (paths.ROOT / "notebooks").glob("*.ipynb")} == set(known) and min(known.values()) > 0
    monkeypatch.setattr(runner, "_known_seconds", lambda: {"02_short": 10, "03_long": 20})
    for name in ("01_unknown", "02_short", "03_long"):
        write_notebook(folders["notebooks"], name=name)
    assert runner.run("smoke", place=cluster.Processes(1), **folders) == []
    done = [line.split()[1] for line in capsys.readouterr().out.splitlines() if line.startswith("[")]
    assert done == ["03_long:", "02_short:", "01_unknown:"]


#: A cell that says at which times it worked, until both notebooks have done so often enough.
LOGGED = """import time
from pathlib import Path
from types import SimpleNamespace
logs = [Path({folder!r}, name) for name in ("01_alone", "02_other")]
if any(not log.exists() or len(list(log.iterdir())) < 5 for log in logs):
    times = [time.time()]
    while times[-1] < times[0] + 0.05:
        time.sleep(0.001)
        times.append(time.time())
    logs[{own}].mkdir(exist_ok=True)
    (logs[{own}] / "{number}").write_text(" ".join(map(str, times)))"""


def test_no_other_notebook_works_while_a_cell_that_wants_to_be_alone_is_executed(folders, tmp_path, monkeypatch):
    for own, name in enumerate(("01_alone", "02_other")):
        code = [LOGGED.format(folder=str(tmp_path), own=own, number=number) for number in range(120)]
        code.append('import torch; report.record("threads", torch.get_num_threads())')
        write_notebook(folders["notebooks"], name=name, code=code, alone=own == 0)
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    monkeypatch.setattr(torch, "get_num_threads", lambda: 4)
    assert runner.run("smoke", place=cluster.Processes(2), **folders) == []
    assert [record.recorded(path) for path in folders["output"].glob("*.ipynb")] == [{"threads": 2}] * 2
    alone, other = (
        [tuple(map(float, log.read_text().split())) for log in (tmp_path / name).iterdir()]
        for name in ("01_alone", "02_other")
    )
    assert min(len(alone), len(other)) >= 5
    assert [(a, b) for a in alone for b in other if any(a[0] < at < a[-1] for at in b)] == []


@pytest.fixture
def working(tmp_path):
    """A process that leads a group and says when it worked; and the times that it said."""
    log = tmp_path / "times"
    code = "import sys, time\nwhile True:\n    print(time.time(), flush=True)\n    time.sleep(0.002)"
    with log.open("w") as out:
        process = subprocess.Popen([sys.executable, "-c", code], stdout=out, start_new_session=True)

    def times():
        return [float(line) for line in log.read_text().splitlines(keepends=True) if line.endswith("\n")]

    while not times():
        time.sleep(0.01)
    yield SimpleNamespace(provisioner=SimpleNamespace(pgid=process.pid)), times
    process.kill()
    process.wait()


def a_cell(name, *tags):
    return nbformat.v4.new_code_cell("1", id=name, metadata={"tags": list(tags)})


@pytest.mark.skipif(sys.platform == "win32", reason="Windows stops no processes: there the cell is waited for")
def test_a_long_cell_is_stopped_while_another_notebook_wants_to_be_alone(tmp_path, monkeypatch, working):
    monkeypatch.setattr(runner.paths, "cache", lambda: tmp_path)
    kernel, times = working
    (tmp_path / "killed.lock").write_text('{"pid": 2147483646}')  # of a builder that is gone
    long, timed = a_cell("long"), a_cell("timed", "alone")
    with runner._turns([long], [kernel]) as first, runner._turns([timed]) as second:
        first["on_cell_execute"](cell=long)
        second["on_cell_execute"](cell=timed)  # though the long cell has not ended
        began = time.time()
        time.sleep(0.2)
        ended = time.time()
        second["on_cell_executed"](cell=timed)
        while max(times()) <= ended:  # it goes on
            time.sleep(0.01)
        first["on_cell_executed"](cell=long)
    assert not [at for at in times() if began < at < ended]


@pytest.mark.skipif(sys.platform == "win32", reason="Windows stops no processes: there the cell is waited for")
def test_a_cell_that_may_be_building_a_datastore_is_waited_for(tmp_path, monkeypatch, working):
    monkeypatch.setattr(runner.paths, "cache", lambda: tmp_path)
    kernel, times = working
    building, timed = a_cell("building"), a_cell("timed", "alone")
    (tmp_path / "store.lock").write_text(f'{{"pid": {os.getpid()}}}')
    with runner._turns([building], [kernel]) as first, runner._turns([timed]) as second:
        first["on_cell_execute"](cell=building)
        done = []

        def end():
            done.append(time.time())
            first["on_cell_executed"](cell=building)

        later = threading.Timer(0.5, end)
        later.start()
        second["on_cell_execute"](cell=timed)
        assert done and max(times()) > done[0] - 0.1, "it worked until its cell was over"
        second["on_cell_executed"](cell=timed)
        later.join()


@pytest.mark.skipif(sys.platform == "win32", reason="Windows stops no processes")
def test_a_kernel_goes_on_if_what_stopped_it_is_killed(tmp_path, working):
    kernel, times = working
    code = f"""
import os, signal
from types import SimpleNamespace
from specdec_lib.report.build import runner
kernel = SimpleNamespace(provisioner=SimpleNamespace(pgid={kernel.provisioner.pgid}))
with runner._stopped([kernel]) as stopped:
    print(stopped, flush=True)
    signal.pause()
"""
    variables = {**os.environ, "SPECDEC_CACHE": str(tmp_path / "cache")}
    stops = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True, env=variables)
    assert stops.stdout.readline() == "True\n"
    time.sleep(0.1)
    before = len(times())
    time.sleep(0.1)
    assert len(times()) == before, "it is stopped"
    stops.kill()
    stops.wait()
    stops.stdout.close()
    for _ in range(500):
        if len(times()) > before:
            break
        time.sleep(0.01)
    assert len(times()) > before


def test_the_lock_is_kept_between_cells_alone_that_follow_each_other(tmp_path, monkeypatch):
    monkeypatch.setattr(runner.paths, "cache", lambda: tmp_path)
    tags = {"one": ["alone"], "two": ["alone"], "three": [], "four": ["alone"]}
    cells = {name: a_cell(name, *own) for name, own in tags.items()}
    prose = nbformat.v4.new_markdown_cell("Text.", id="prose")

    def free():
        other = ReadWriteLock(tmp_path / "cells.lock.db", is_singleton=False)
        try:
            other.acquire_write(timeout=0.01)
        except Timeout:
            return False
        finally:
            other.close()
        return True

    with runner._turns([cells["one"], prose, *[cells[name] for name in ("two", "three", "four")]]) as turns:
        after = {}
        for name, cell in cells.items():
            turns["on_cell_execute"](cell=cell)
            assert not free()
            turns["on_cell_executed"](cell=cell, cell_index=0, execute_reply={})
            after[name] = free()
        assert after == {"one": False, "two": True, "three": True, "four": True}
        turns["on_cell_execute"](cell=cells["one"])
        turns["on_cell_executed"](cell=cells["one"])
    assert free()  # a notebook that ended between the two


def test_a_copy_says_how_many_threads_its_kernel_had(folders):
    code = ["import torch; torch.set_num_threads(3)", "report.provenance_table(values)"]
    path = folders["output"] / write_notebook(folders["notebooks"], code=code).name
    assert runner.run("smoke", **folders) == []
    assert facts(path)["provenance"]["machine"]["torch threads"] == "3" != str(torch.get_num_threads())


def test_a_cell_alone_that_fails_or_dies_keeps_no_other_notebook_waiting(folders):
    write_notebook(folders["notebooks"], name="01_fails", code=["1 / 0"], alone=True)
    write_notebook(folders["notebooks"], name="02_dies", code=["import os", "os._exit(1)"], alone=True)
    write_notebook(folders["notebooks"], name="03_small")
    failed = runner.run("smoke", **folders)
    assert [failure.job.name for failure in failed] == ["01_fails", "02_dies"]
    assert (folders["output"] / "03_small.ipynb").is_file()


def test_numbers_of_processes_that_make_no_sense_are_refused(capsys):
    assert command.main(["run", "--profile", "smoke", "--jobs", "0"]) == 2
    assert "expected a whole number, 1 or more" in capsys.readouterr().err
