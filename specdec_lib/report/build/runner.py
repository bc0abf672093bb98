"""Executes the notebooks with papermill into ``book/notebooks``.

A copy reaches that folder whole and only after its notebook ran to the end, because jupyter-book renders a
stored error output without a word.
"""

from __future__ import annotations

import copy
import json
import logging
import os
import platform
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager, suppress
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import nbformat
import torch
from filelock import FileLock, ReadWriteLock, Timeout
from tqdm import tqdm

from specdec_lib import files, paths
from specdec_lib.cluster import Place, Processes
from specdec_lib.report import numbers
from specdec_lib.report.build import failures, params, plan
from specdec_lib.report.build.plan import Job
from specdec_lib.report.display import provenance, run_context
from specdec_lib.report.display.record import recorded, timed_names

METADATA = "specdec"
#: Tag of a cell that takes times or needs all cores: no other notebook that shares the cache executes a cell
#: meanwhile.
ALONE = "alone"
#: How often a notebook looks whether another one wants to execute a cell alone, in seconds.
LOOK_SECONDS = 0.1
_DAY_SECONDS = 24 * 3600
#: Variables of the environment that a run elsewhere has too.
_CARRIED = ("SPECDEC_", "HF_HUB_", "OMP_", "MKL_", "NUMBA_")
#: Stands in a failure's words for the path of the copy until it is here.
_KEPT_ELSEWHERE = "\0kept\0"


def run(
    profile: str = "default",
    only: Sequence[str] = (),
    overrides: Sequence[str] = (),
    force: bool = False,
    output: Path | None = None,
    notebooks: Path | None = None,
    kept: Path | None = None,
    place: Place | None = None,
    sweeps: Path | None = None,
) -> list[failures.Failure]:
    """Execute notebooks that changed and put the copies into ``output``.

    Parameters
    ----------
    profile, only, overrides, notebooks
        See :func:`specdec_lib.report.build.plan.make_plan`.
    force : bool
        Execute also what has not changed.
    output : Path, optional
        Folder of the executed copies, ``book/notebooks`` by default.
    kept : Path, optional
        Folder for copies of notebooks that failed, ``_build/failed`` by default.
    place : Place, optional
        Execute several at once, in other processes or on a cluster; one after another in this process by default. The
        repository lies at the same path on all nodes.
    sweeps : Path, optional
        Folder of the folders of a grid's points, ``_build/sweeps`` by default.

    Returns
    -------
    list of Failure
        Empty when every notebook ran to its end.

    Raises
    ------
    specdec_lib.report.build.plan.PlanError, specdec_lib.report.build.params.ParameterError
        Before anything is executed.
    specdec_lib.report.build.params.UsageError
        Before anything is executed, where a folder that a run writes to cannot be written to.
    """
    jobs = plan.make_plan(profile, only, overrides, notebooks)
    output = output or paths.root() / "book" / "notebooks"
    kept = kept or paths.root() / "_build" / "failed"
    sweeps = sweeps or paths.root() / "_build" / "sweeps"
    _check_writable(
        {
            "executed notebooks": output,
            "copies of notebooks that failed": kept,
            "datastores and recordings (SPECDEC_CACHE)": paths.cache(),
            "the sockets of kernels (TMPDIR)": Path(tempfile.gettempdir()),
        }
        | ({"executed notebooks of a grid": sweeps} if any(job.point for job in jobs) else {})
    )
    targets = [Target(sweeps / job.point, kept / job.point) if job.point else Target(output, kept) for job in jobs]
    execute_all = _one_by_one if place is None else partial(_elsewhere, place=place)
    failed = execute_all(jobs, targets, plan.surroundings(), force, profile)
    for failure in failed:
        print(f"\n{failure.message}", file=sys.stderr)
    return failed


class Target(NamedTuple):
    """Folders of a job's executed copy, and of the copy of one that failed."""

    output: Path
    kept: Path


def _one_by_one(
    jobs: Sequence[Job], targets: Sequence[Target], surroundings: str, force: bool, profile: str
) -> list[failures.Failure]:
    """Execute the jobs in this process, with a bar where a reader sees one."""
    failed: list[failures.Failure] = []
    bars = sys.stderr.isatty() and not os.environ.get("CI")
    total = tqdm(jobs, desc=f"notebooks ({profile})", unit="notebook", disable=not bars, position=0)
    for number, (job, target) in enumerate(zip(total, targets, strict=True), start=1):
        start = time.perf_counter()
        outcome: str | failures.Failure = _unchanged(job, job.key(surroundings), target.output, force)
        if not outcome:
            if not bars:
                print(f"[{number}/{len(jobs)}] {job.title} ({profile}) is running", flush=True)
            outcome = execute(job, *target, surroundings, progress=bars)
        if isinstance(outcome, failures.Failure):
            failed.append(outcome)
            outcome = "FAILED"
        seconds = time.perf_counter() - start
        total.write(f"[{number}/{len(jobs)}] {job.title}: {outcome} ({seconds:.1f} s)", file=sys.stdout)
    return failed


def _elsewhere(
    jobs: Sequence[Job], targets: Sequence[Target], surroundings: str, force: bool, profile: str, place: Place
) -> list[failures.Failure]:
    """Execute the jobs at a place, and put what each one wrote where it belongs as it ends."""
    failed: dict[int, failures.Failure] = {}
    waiting = []
    for number, (job, target) in enumerate(zip(jobs, targets, strict=True)):
        outcome = _unchanged(job, job.key(surroundings), target.output, force)
        if outcome:
            print(f"[{number + 1}/{len(jobs)}] {job.title}: {outcome}", flush=True)
        else:
            waiting.append(number)
    # The longest first: otherwise one process may be left with a long one at the end.
    seconds = _known_seconds()
    waiting.sort(key=lambda number: -seconds.get(jobs[number].name, 0))
    # Notebooks that run at the same time share the cores. Where two of them use all cores, a short pass takes ten times as
    # long, because threads that wait for work keep their core busy. What needs all cores asks for them (SPECDEC_THREADS).
    every = torch.get_num_threads()
    own = max(1, every // place.count) if isinstance(place, Processes) else every
    variables = {"OMP_NUM_THREADS": str(own)} if own < every else {}
    variables |= {name: value for name, value in os.environ.items() if name.startswith(_CARRIED)}
    variables.setdefault("SPECDEC_THREADS", str(every))
    sent = [Sent(jobs[number], surroundings, variables, own) for number in waiting]
    print(f"{len(sent)} of {len(jobs)} notebooks ({profile}) are running", flush=True)
    bars = sys.stderr.isatty() and not os.environ.get("CI")
    done = place.tasks(execute_sent, sent, gpu=True)
    for ended, (outcome, seconds, written) in (
        total := tqdm(done, desc=f"notebooks ({profile})", unit="notebook", total=len(sent), disable=not bars)
    ):
        number = waiting[ended]
        job, target = jobs[number], targets[number]
        with tempfile.TemporaryDirectory(prefix="specdec-received-") as scratch:
            for name, data in written.items():
                path = Path(scratch) / name
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_bytes(data)
            received = Target(Path(scratch) / "output", Path(scratch) / "kept")
            if isinstance(outcome, failures.Failure):
                copy_kept = _keep_failed(received.kept / job.path.name, target.kept)
                failed[number] = failures.Failure(job, outcome.message.replace(_KEPT_ELSEWHERE, str(copy_kept)))
                outcome = "FAILED"
            else:
                files.replace_folder(received.output / "files" / job.name, target.output / "files" / job.name)
                executed = (received.output / job.path.name).read_text(encoding="utf-8")
                files.write_atomic(target.output / job.path.name, executed)
        total.write(f"[{number + 1}/{len(jobs)}] {job.title}: {outcome} ({seconds:.1f} s)", file=sys.stdout)
        sys.stdout.flush()
    return [failed[number] for number in sorted(failed)]


def _known_seconds() -> dict[str, float]:
    """How long each chapter took in the run that the README shows, by its notebook's name."""
    if not paths.KEY_RESULTS.is_file():
        return {}
    chapters = json.loads(paths.KEY_RESULTS.read_text(encoding="utf-8"))["chapters"]
    return {name: about["seconds"] for name, about in chapters.items()}


class Sent(NamedTuple):
    """A job on its way to where it is executed, with the variables of the environment that it was asked for in and the
    threads of torch there."""

    job: Job
    surroundings: str
    variables: dict[str, str]
    threads: int


def execute_sent(sent: Sent) -> tuple[str | failures.Failure, float, dict[str, bytes]]:
    """Execute a notebook in a folder of its own; the outcome, its seconds, and the files that were written, by name.

    Raises
    ------
    RuntimeError
        If the library, data, versions or device here are not those of where the run was asked for: its results would not
        be the same.
    """
    start = time.perf_counter()
    torch.set_num_threads(sent.threads)  # which the provenance tells
    # Ray sets a number of threads; a variable that was not set where the run was asked for is not set here.
    variables: dict[str, str | None] = {name: None for name in os.environ if name.startswith(_CARRIED)}
    with _environment(variables | sent.variables), tempfile.TemporaryDirectory(prefix="specdec-sent-") as scratch:
        if plan.surroundings() != sent.surroundings:
            raise RuntimeError(
                f"{platform.node()} has another version of the library, its data, a package or the data sets, or another "
                "device, than the machine that the run was started on: bring both to the same state"
            )
        target = Target(Path(scratch) / "output", Path(scratch) / "kept")
        outcome = execute(sent.job, *target, sent.surroundings)
        if isinstance(outcome, failures.Failure):
            told = outcome.message.replace(str(target.kept / sent.job.path.name), _KEPT_ELSEWHERE)
            outcome = failures.Failure(sent.job, told)
        written = {
            path.relative_to(scratch).as_posix(): path.read_bytes()
            for path in Path(scratch).rglob("*")
            if path.is_file()
        }
    return outcome, time.perf_counter() - start, written


def _check_writable(folders: dict[str, Path]) -> None:
    """Refuse folders in which no file can be made, all of them in one message.

    Raises
    ------
    specdec_lib.report.build.params.UsageError
    """
    refused = []
    for what, folder in folders.items():
        there = next(parent for parent in (folder, *folder.parents) if parent.exists())
        try:
            with tempfile.TemporaryFile(dir=there):
                pass
        except OSError as error:
            refused.append(f"{what} go to {folder}, where no file can be made ({error.strerror})")
    if refused:
        raise params.UsageError(
            f"nothing was run: {'; '.join(refused)}. Use a copy of the repository that you may write to, or name "
            "another folder where a variable is given"
        )


def execute(job: Job, output: Path, kept: Path, surroundings: str, progress: bool = False) -> str | failures.Failure:
    """Execute one notebook; returns a word on the outcome, or the failure."""
    import papermill

    logging.getLogger("papermill").setLevel(logging.ERROR)
    source_sum = files.sha256(job.path)
    with (
        tempfile.TemporaryDirectory(prefix="specdec-run-") as scratch_name,
        tempfile.TemporaryDirectory(prefix="specdec-", dir=_folder_of_sockets()) as sockets,
    ):
        scratch = Path(scratch_name)
        copy_path, downloads = scratch / job.path.name, scratch / "files"
        alone = tuple(run_context.digest(cell.source) for cell in job.source.cells if _alone(cell))
        about = run_context.RunContext(job.name, job.profile, str(downloads), source_sum, alone)
        variables = {run_context.VARIABLE: about.dumps(), "TQDM_DISABLE": "1", "MPLBACKEND": None}
        try:
            kernels: list[Any] = []
            with _environment(variables), _turns(job.source.cells, kernels) as turns:
                executed = papermill.execute_notebook(
                    str(job.path),
                    str(copy_path),
                    parameters=dict(job.given),
                    cwd=str(paths.root()),
                    kernel_name="python3",
                    progress_bar={"desc": job.name, "position": 1, "leave": False} if progress else False,
                    # A kernel that is told to end logs the interruption as an error.
                    extra_arguments=["--log-level=CRITICAL"],
                    # A kernel that is stopped between its reply and the last output is not lost.
                    iopub_timeout=_DAY_SECONDS,
                    **_kernel_manager(Path(sockets), kernels),
                    **turns,
                )
        except Exception as error:  # every way in which a cell, a kernel or its client can fail is told the same way
            partial = nbformat.read(str(copy_path), as_version=4) if copy_path.is_file() else None
            return failures.describe(job, partial, error, _keep_failed(copy_path, kept))
        _finish(executed, job, surroundings, source_sum)
        numbers.from_records(recorded(executed), timed_names(executed), downloads, job.name[:2], job.profile)
        files.replace_folder(downloads, output / "files" / job.name)
        files.write_atomic(output / job.path.name, nbformat.writes(executed) + "\n")
    return "done"


def _unchanged(job: Job, key: str, output: Path, force: bool) -> str:
    """A word when the stored copy still holds (its prose is renewed if that changed), else an empty text."""
    path = output / job.path.name
    files.recover(output / "files" / job.name)
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
    cells = []
    for cell in renewed.cells:
        if cell.cell_type == "code":
            old = next(outputs)
            cell.outputs, cell.execution_count = old.outputs, old.execution_count
        cells.append(cell)
        if "parameters" in cell.metadata.get("tags", []):
            cells += injected
    renewed.cells = cells
    return renewed


def _finish(executed: nbformat.NotebookNode, job: Job, surroundings: str, source_sum: str) -> None:
    """Write where the copy comes from into its metadata, without paths of this machine."""
    executed.metadata.papermill["input_path"] = f"notebooks/{job.path.name}"
    executed.metadata.papermill["output_path"] = f"book/notebooks/{job.path.name}"
    for cell in executed.cells:
        # Where nothing but the profile is given, the cell that papermill adds says no more than the one above it.
        if "injected-parameters" in cell.metadata.get("tags", []) and job.given.keys() <= {"profile"}:
            cell.metadata.tags.append("remove-cell")
    about = provenance.collect(job.given)
    # Those of the kernel, where the notebook says them: it may have asked for more than this process has.
    about["machine"]["torch threads"] = str(recorded(executed).get("torch_threads", about["machine"]["torch threads"]))
    executed.metadata[METADATA] = {
        "key": job.key(surroundings),
        "source_sha256": source_sum,
        "profile": job.profile,
        "seconds": executed.metadata.papermill["duration"],
        "provenance": about,
    }


def _keep_failed(path: Path, folder: Path) -> Path | None:
    if not path.is_file():
        return None
    folder.mkdir(parents=True, exist_ok=True)
    return Path(shutil.move(path, folder / path.name))


def _folder_of_sockets() -> str | None:
    """Where folders for sockets are made: the usual temporary folder, None, unless its name is too long.

    The whole name of a socket has at most 107 bytes on Linux and 103 on macOS; ``/specdec-`` with eight letters and
    the socket's own name take less than 30 of them.
    """
    return None if len(os.fsencode(tempfile.gettempdir())) <= 70 else "/tmp"


def _alone(cell: nbformat.NotebookNode) -> bool:
    return ALONE in cell.metadata.get("tags", [])


@contextmanager
def _turns(cells: Sequence[nbformat.NotebookNode], kernels: Sequence[Any] = ()) -> Iterator[dict[str, Callable]]:
    """Hooks of nbclient that let a cell tagged :data:`ALONE` run by itself; other cells may run together.

    A cell that wants to be alone does not wait for the end of another notebook's cell, which may take minutes: that notebook
    stops its kernel meanwhile, and lets it go on afterwards. It waits while a datastore is built in the cache, which it could
    need, and where kernels cannot be stopped, on Windows.

    All runs that share a cache see the locks, and the system gives them up for a process that was killed. They are kept between
    two cells alone that follow each other.

    Parameters
    ----------
    cells : sequence of cell
        Those of the notebook, in order.
    kernels : sequence of KernelManager
        The notebook's kernel, once it was started.
    """
    code = [cell for cell in cells if cell.cell_type == "code"]
    followed = {one.get("id") for one, other in pairwise(code) if _alone(one) and _alone(other)}
    paths.cache().mkdir(parents=True, exist_ok=True)
    # Held from the moment a cell wants to be alone until it has ended. No other cell begins meanwhile.
    wanted = FileLock(paths.cache() / "cells.wanted")
    lock = ReadWriteLock(paths.cache() / "cells.lock.db", is_singleton=False)
    sharing: Future | None = None
    alone, ended = False, threading.Event()

    def share(begun: threading.Event) -> None:
        """Hold the lock for an ordinary cell. While another notebook is alone, the kernel is stopped and the lock is free."""
        try:
            with wanted:
                lock.acquire_read()
        finally:
            begun.set()
        try:
            while not ended.wait(LOOK_SECONDS):
                if not _is_held(wanted):
                    continue
                with _stopped(kernels) as stopped:
                    if stopped:
                        lock.release()
                        with wanted:
                            lock.acquire_read()
        finally:
            lock.release()

    def begin(cell: nbformat.NotebookNode, **_: Any) -> None:
        nonlocal alone, sharing
        if alone:
            return
        if _alone(cell):
            wanted.acquire()
            try:
                lock.acquire_write()
            except BaseException:
                wanted.release()
                raise
            alone = True
        else:
            begun = threading.Event()
            ended.clear()
            sharing = threads.submit(share, begun)
            begun.wait()
            if sharing.done():  # it has no lock
                sharing.result()

    def end(cell: nbformat.NotebookNode | None = None, **_: Any) -> None:
        nonlocal alone, sharing
        if alone and (cell is None or cell.get("id") not in followed):
            alone = False
            lock.release()
            wanted.release()
        if sharing is not None:
            ended.set()
            held, sharing = sharing, None
            held.result()

    # A lock is given up by the thread that took it, so one thread does all the sharing.
    with ThreadPoolExecutor(1) as threads:
        try:
            yield {"on_cell_execute": begin, "on_cell_executed": end}
        finally:
            try:
                end()  # a cell whose kernel died has no end of its own
            finally:
                lock.close()


def _is_held(lock: FileLock) -> bool:
    """Whether someone else has a lock, and not just to ask the same."""
    try:
        with lock.acquire(timeout=0.02, poll_interval=0.005):
            return False
    except Timeout:
        return True


@contextmanager
def _stopped(kernels: Sequence[Any]) -> Iterator[bool]:
    """Stop kernels with the processes that they forked, unless a datastore is being built, which others could wait for; gives
    whether it did. They go on at the end, and if this process is killed before."""
    # A kernel leads a group of its own, so that an interruption of this process does not reach it.
    groups = [group for kernel in kernels if (group := getattr(kernel.provisioner, "pgid", None))]
    if not groups or _is_building():
        yield False
        return
    # It waits for the end of its input, which comes when this process closes it or dies.
    guard = subprocess.Popen(
        ["sh", "-c", 'read -r _; for group; do kill -s CONT -- "-$group"; done', "sh", *map(str, groups)],
        stdin=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    try:
        for group in groups:
            with suppress(ProcessLookupError, PermissionError):  # it has ended
                os.killpg(group, signal.SIGSTOP)
        yield not _is_building()  # one could have begun just before
    finally:
        guard.stdin.close()
        guard.wait()


def _is_building() -> bool:
    """Whether a process builds a datastore in the cache: one that was killed leaves its file there."""
    for path in paths.cache().glob("*.lock"):
        try:
            os.kill(json.loads(path.read_text(encoding="utf-8"))["pid"], 0)
        except (ProcessLookupError, FileNotFoundError):
            continue
        except (ValueError, KeyError, TypeError, OSError):
            return True  # nobody knows: the file has just been made, say
        return True
    return False


def _kernel_manager(sockets: Path, made: list[Any]) -> dict[str, Any]:
    """A kernel over local sockets: no port can be taken, and no warning about unencrypted TCP is printed.

    Their names begin with ``sockets / "kernel"``. Without a folder of its own a run would find its sockets in the
    working directory, which is the same for all runs. The manager of the kernel joins ``made``.
    """
    if sys.platform == "win32":
        return {}
    from jupyter_client.manager import AsyncKernelManager

    class IpcKernelManager(AsyncKernelManager):
        def __init__(self, **kwargs: Any):
            super().__init__(**kwargs)
            self.transport = "ipc"
            self.ip = str(sockets / "kernel")
            made.append(self)

    return {"kernel_manager_class": IpcKernelManager}


@contextmanager
def _environment(values: dict[str, str | None]) -> Iterator[None]:
    """Set variables for the kernel, which inherits them; None removes one."""
    before = {name: os.environ.get(name) for name in values}
    try:
        for name, value in values.items():
            _set(name, value)
        yield
    finally:
        for name, value in before.items():
            _set(name, value)


def _set(name: str, value: str | None) -> None:
    if value is None:
        os.environ.pop(name, None)
    else:
        os.environ[name] = value
