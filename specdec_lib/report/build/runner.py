"""Executes the notebooks with papermill into ``book/notebooks``.

A copy reaches that folder whole and only after its notebook ran to the end, because jupyter-book renders a
stored error output without a word. Two run at once, because most of their cells use one core; cells that measure time run alone.
"""

from __future__ import annotations

import copy
import json
import os
import shutil
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from multiprocessing import get_context
from multiprocessing.connection import wait
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any, NamedTuple

import nbformat

from specdec_lib import files, paths
from specdec_lib.experiments.data.prompts import HUMANEVAL
from specdec_lib.models import smollm2
from specdec_lib.report import params, run_context
from specdec_lib.report.build import execution, plan
from specdec_lib.report.build.plan import METADATA, Job, strip_ansi
from specdec_lib.report.display import provenance
from specdec_lib.wheels import fetch

#: Notebooks that run at once.
AT_ONCE = 2
#: How often it is said what runs, in seconds.
REPORT_SECONDS = 60.0
#: What an executed notebook leaves among its files.
DOWNLOADS = ("*.csv", provenance.FILE)
#: The last lines of a failure's traceback are told.
TRACEBACK_LINES = 14


def run(
    only: Sequence[str] = (),
    overrides: Sequence[str] = (),
    force: bool = False,
    output: Path | None = None,
    notebooks: Path | None = None,
    kept: Path | None = None,
) -> list[Failure]:
    """Execute notebooks of a plan (:func:`specdec_lib.report.build.plan.make_plan`) that changed, or all if ``force``, and put
    the copies into ``output``, ``book/notebooks`` by default, and copies of those that failed into ``kept``, ``_build/failed``.
    Returns the failures.
    """
    planned = plan.make_plan(only, overrides, notebooks)
    output = output or paths.root() / "book" / "notebooks"
    kept = kept or paths.root() / "_build" / "failed"
    # The names of sockets in it have at most 107 bytes on Linux, and 103 on macOS.
    temporary = tempfile.gettempdir() if len(os.fsencode(tempfile.gettempdir())) <= 60 else "/tmp"
    _check_writable(
        {
            "executed notebooks": output,
            "copies of notebooks that failed": kept,
            "datastores and recordings (SPECDEC_CACHE)": paths.cache(),
            "the sockets of kernels (TMPDIR)": Path(temporary),
        }
    )
    surroundings = plan.surroundings()
    for job in planned:
        if (found := output / "files" / job.name).is_dir() and (
            own := files.foreign_entry(found, DOWNLOADS, marked=False)
        ):
            raise params.UsageError(
                f"nothing was run: {found} would be replaced, and no notebook wrote {own}; move it away"
            )
    waiting, failed = [], []
    for job in planned:
        outcome = _unchanged(job, job.key(surroundings), output, force)
        if outcome:
            _say(f"{job.name}: {outcome}")
        else:
            waiting.append(job)
    # Before the kernels start, in which a download has no progress bar.
    if any(job.target == smollm2.NAME for job in waiting):
        smollm2.folder()
        fetch(HUMANEVAL)
    with files.scratch(Path(temporary)) as scratch:
        for ended in _executed(waiting, scratch):
            failure = _finish(ended, surroundings, output, kept)
            _say(f"{ended.job.name}: {'FAILED' if failure else 'done'} ({ended.seconds:.0f} s)")
            if failure:
                failed.append(failure)
    failed.sort(key=lambda failure: failure.job.name)
    for failure in failed:
        print(f"\n{failure.message}", file=sys.stderr)
    return failed


class Failure(NamedTuple):
    """A notebook that did not reach its end, and what the reader is told."""

    job: Job
    message: str


class Running(NamedTuple):
    """A notebook that is executed: its checksum, its process, the folder of that process, and when it began."""

    job: Job
    source_sum: str
    process: BaseProcess
    folder: Path
    began: float

    @property
    def copy(self) -> Path:
        """The executed copy, as far as it is."""
        return self.folder / self.job.path.name

    @property
    def seconds(self) -> float:
        """Since it began."""
        return time.perf_counter() - self.began

    def state(self) -> str:
        """How far it is."""
        cells = sum(cell.cell_type == "code" for cell in self.job.source.cells) + bool(
            self.job.given
        )  # papermill adds one
        return f"{self.job.name}: cell {_text(self.folder / execution.PROGRESS) or 0} of {cells}, {self.seconds:.0f} s"


def _executed(jobs: Sequence[Job], scratch: Path) -> Iterator[Running]:
    """Execute notebooks, :data:`AT_ONCE` at a time, give each at its end, and say every minute how far they are."""
    # Those that take long first, as a rule those of most code: else one of them is left alone at the end.
    waiting = sorted(
        jobs, key=lambda job: -sum(len(cell.source) for cell in job.source.cells if cell.cell_type == "code")
    )
    running = list[Running]()
    told = time.perf_counter()
    # A pass on all cores takes twice the processor time where another notebook has one of them, and ends no sooner.
    threads = max(1, (os.cpu_count() or 1) // max(1, min(AT_ONCE, len(jobs))))
    try:
        while waiting or running:
            while waiting and len(running) < AT_ONCE:
                running.append(_start(waiting.pop(0), scratch, threads))
                _say(f"{running[-1].job.name} begins")
            wait([one.process.sentinel for one in running], max(0.0, told + REPORT_SECONDS - time.perf_counter()))
            for ended in [one for one in running if not one.process.is_alive()]:
                running.remove(ended)
                ended.process.join()
                yield ended
            if running and time.perf_counter() - told >= REPORT_SECONDS:
                told = time.perf_counter()
                _say("; ".join(one.state() for one in running) + _busy())
    finally:
        for one in running:
            one.process.kill()
            one.process.join()


def _start(job: Job, scratch: Path, threads: int) -> Running:
    folder = Path(tempfile.mkdtemp(dir=scratch))
    source_sum = files.sha256(job.path)  # before it can be changed
    context = run_context.RunContext(job.name, str(folder / "files"), source_sum)
    variables = {run_context.VARIABLE: context.dumps(), "TQDM_DISABLE": "1", "MPLBACKEND": None}
    variables["OMP_NUM_THREADS"] = os.environ.get("OMP_NUM_THREADS", str(threads))
    # Absolute: the kernel works in another folder.
    folders = {name: paths.named_folder(name) for name in ("SPECDEC_CACHE", "SPECDEC_DATASETS", "SPECDEC_WHEELS")}
    variables |= {name: str(folder) for name, folder in folders.items() if folder}
    work = job.path, folder / job.path.name, dict(job.given), paths.root(), variables, os.getpid()
    # Not a copy of this process, which has threads of torch.
    process = get_context("spawn").Process(target=execution.execute, args=work)
    process.start()
    return Running(job, source_sum, process, folder, time.perf_counter())


def _busy() -> str:
    """Return a warning if the machine has more to do than these notebooks; else nothing."""
    load, cores = os.getloadavg()[0] if hasattr(os, "getloadavg") else 0.0, os.cpu_count() or 1
    if load <= cores + 2 * AT_ONCE:
        return ""
    return f" (the machine is busy, load {load:.1f} on {cores} cores: cells wait for a core)"


def _say(text: str) -> None:
    print(f"[{time.strftime('%H:%M:%S')}] {text}", flush=True)


def _text(path: Path) -> str:
    return path.read_text(encoding="utf-8") if path.is_file() else ""


def _check_writable(folders: dict[str, Path]) -> None:
    """Reject folders in which no file can be made, all of them in one message."""
    rejected = [
        f"{what} go to {folder}, where no file can be made ({why})"
        for what, folder in folders.items()
        if (why := files.cannot_write(folder / "file"))
    ]
    if rejected:
        raise params.UsageError(
            f"nothing was run: {'; '.join(rejected)}. Use a copy of the repository that you may write to, or name "
            "another folder where a variable is given"
        )


def _finish(ended: Running, surroundings: str, output: Path, kept: Path) -> Failure | None:
    """Put the copy and its files where they belong; returns the failure if the notebook did not come to its end."""
    job, downloads = ended.job, ended.folder / "files"
    if ended.process.exitcode:
        error = _text(ended.folder / execution.ERROR) or f"its process ended with status {ended.process.exitcode}"
        if error.startswith("DeadKernelError"):
            error = "the kernel died without a traceback; running out of memory is the usual cause"
        shown = [line for line in strip_ansi(error).splitlines() if line.strip()][-TRACEBACK_LINES:]
        lines = [f"{ended.state()}: failed", *(f"    {files.printable(line)}" for line in shown)]
        if ended.copy.is_file():
            kept.mkdir(parents=True, exist_ok=True)
            lines.append(f"  the notebook as far as it came: {shutil.move(ended.copy, kept / ended.copy.name)}")
        return Failure(job, "\n".join([*lines, f"  run it again alone: {job.command}"]))
    executed = nbformat.read(str(ended.copy), as_version=4)
    _describe(executed, ended, surroundings, downloads)
    files.replace_folder(downloads, output / "files" / job.name, DOWNLOADS)
    files.write_atomic(output / job.path.name, nbformat.writes(executed) + "\n")
    return None


def _describe(executed: nbformat.NotebookNode, ended: Running, surroundings: str, downloads: Path) -> None:
    """Write where the copy comes from into its metadata, without paths of this machine."""
    job = ended.job
    executed.metadata.papermill["input_path"] = f"notebooks/{job.path.name}"
    executed.metadata.papermill["output_path"] = f"book/notebooks/{job.path.name}"
    told = _text(downloads / provenance.FILE)  # by the kernel, which knows its threads
    executed.metadata[METADATA] = {
        "key": job.key(surroundings),
        "source_sha256": ended.source_sum,
        "seconds": executed.metadata.papermill["duration"],
        "provenance": json.loads(told) if told else provenance.collect(job.given),
    }


def _unchanged(job: Job, key: str, output: Path, force: bool) -> str:
    """A word when the stored copy still holds (its prose is renewed if that changed), else an empty text."""
    path = output / job.path.name
    files.recover(output / "files" / job.name, DOWNLOADS, marked=False)
    if force or not path.is_file():
        return ""
    try:
        stored = nbformat.read(str(path), as_version=4)
        facts = stored.metadata[METADATA]
    except (ValueError, KeyError):
        return ""
    if facts.get("key") != key:
        return ""
    source_sum = files.sha256(job.path)
    if facts["source_sha256"] == source_sum:
        return "unchanged"
    renewed = graft_outputs(job.source, stored)
    renewed.metadata[METADATA]["source_sha256"] = source_sum
    files.write_atomic(path, nbformat.writes(renewed) + "\n")
    return "prose renewed"


def graft_outputs(source: nbformat.NotebookNode, executed: nbformat.NotebookNode) -> nbformat.NotebookNode:
    """Return ``source`` with the outputs of ``executed``, whose code cells are the same.

    Prose is corrected far more often than code, and needs no run.
    """
    renewed = copy.deepcopy(source)
    renewed.metadata = copy.deepcopy(executed.metadata)
    ran = [cell for cell in executed.cells if cell.cell_type == "code"]
    injected = [cell for cell in ran if "injected-parameters" in cell.metadata.get("tags", [])]
    outputs = iter([cell for cell in ran if cell not in injected])
    cells: list[Any] = []
    for cell in renewed.cells:
        if cell.cell_type == "code":
            old = next(outputs)
            cell.outputs, cell.execution_count = old.outputs, old.execution_count
        cells.append(cell)
        if "parameters" in cell.metadata.get("tags", []):
            cells += injected
    renewed.cells = cells
    return renewed
