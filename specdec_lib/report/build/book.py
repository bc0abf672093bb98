"""The pages, rendered from the executed notebooks; warnings count as errors."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import yaml

from specdec_lib import files, paths
from specdec_lib.report.build import rerun
from specdec_lib.report.build.plan import strip_ansi
from specdec_lib.report.params import UsageError

GENERATED = "generated"
"""Folder in ``book/api`` for the pages of the library, which Sphinx makes from ``book/api/index.md``."""


def toc_files(toc: Path) -> list[str]:
    """Return every page that a table of contents names, in order and without suffix."""
    pages: list[str] = []

    def walk(node: Any) -> None:
        if isinstance(node, dict):
            pages.extend(str(node[key]) for key in ("root", "file") if key in node)
            for key in ("parts", "chapters", "sections"):
                walk(node.get(key))
        elif isinstance(node, list):
            for item in node:
                walk(item)

    walk(yaml.safe_load(toc.read_text(encoding="utf-8")))
    return pages


def check_executed(book: Path) -> None:
    """UsageError if a notebook that the table of contents names has not been executed."""
    names = [Path(file).name for file in toc_files(book / "_toc.yml") if file.startswith("notebooks/")]
    missing = [name for name in names if not (book / "notebooks" / f"{name}.ipynb").is_file()]
    if missing:
        raise UsageError(f"not executed yet: {', '.join(missing)}. Run: python -m specdec_lib run")


#: jupyter-book, which ends with the process that renders, and whose own processes end with it. Sphinx reads and writes pages in
#: as many processes as it is told, for which jupyter-book has no option.
#: Documents are trees of millions of nodes, most of them kept to the end: looking for garbage took a fifth of the time, and
#: without it the process takes 1.6 GB. From Python 3.13 on this text is the source of every function that Python itself made
#: from a text, such as those of named tuples, and Sphinx fails on it.
_JUPYTER_BOOK = """
import functools, gc, linecache, os, sys
from specdec_lib.processes import end_with_parent
end_with_parent(int(sys.argv.pop(1)))
os.register_at_fork(after_in_child=lambda: end_with_parent(os.getppid()))
linecache.cache.pop("<string>", None)
gc.disable()
import jupyter_book.sphinx
jupyter_book.sphinx.build_sphinx = functools.partial(jupyter_book.sphinx.build_sphinx, jobs=int(sys.argv.pop(1)))
from jupyter_book.cli.main import main
main()
"""


def build() -> None:
    """Render the book; UsageError if a notebook is not executed, or jupyter-book warned or failed."""
    root = paths.root()
    check_executed(root / "book")
    start = time.perf_counter()
    rerun.write_pages(root)
    (root / "book" / "pictures").mkdir(parents=True, exist_ok=True)  # for the pictures that Sphinx draws
    # Sphinx writes these, and would leave out as strangers those that it finds: they are not in _toc.yml.
    files.remove(root / "book" / "api" / GENERATED, ("specdec_lib*.rst",), marked=False)
    jobs = len(os.sched_getaffinity(0)) if sys.platform == "linux" else 1
    command = [sys.executable, "-c", _JUPYTER_BOOK, str(os.getpid()), str(jobs), "build", "book"]
    path = os.pathsep.join(filter(None, [str(root), os.environ.get("PYTHONPATH")]))
    variables = {name: value for name, value in os.environ.items() if name != "MPLBACKEND"}  # pages show their figures
    log = root / "_build" / "book.log"
    print(f"Rendering the book; what jupyter-book says goes to {log}", flush=True)
    with log.open("w", encoding="utf-8") as output:
        done = subprocess.run(
            [*command, "--all", "-W", "--keep-going", "-n"],
            cwd=root,
            env=variables | {"PYTHONPATH": path, "PYTHONUNBUFFERED": "1"},
            stdout=output,
            stderr=subprocess.STDOUT,
            check=False,
        )
    if done.returncode:
        raise UsageError(
            f"the book was not built; the warnings count as errors\n{_complaints(log)}\n  whole log: {log}"
        )
    page = root / "_build" / "html" / "intro.html"
    print(f"The book is built ({time.perf_counter() - start:.0f} s). Open {page.as_uri()}")


def _complaints(log: Path) -> str:
    lines = strip_ansi(log.read_text(encoding="utf-8", errors="replace")).splitlines()
    marked = [line for line in lines if "WARNING" in line or "ERROR" in line or "rror:" in line]
    return "\n".join(f"  {line}" for line in (marked or lines[-20:])[:40])
