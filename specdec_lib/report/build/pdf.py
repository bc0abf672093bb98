"""The book as one PDF, printed by a headless Chromium from the book as one page.

Nothing is fetched: the page, its pictures and MathJax are served from this machine. What a page offers to click (a
folded cell, a table's CSV file) is unfolded or left out, because paper has nothing to click.
"""

from __future__ import annotations

import functools
import http.server
import os
import re
import shutil
import subprocess
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from specdec_lib import paths
from specdec_lib.report.build import book
from specdec_lib.report.build.params import UsageError

BROWSERS = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
_SECONDS = 300
# Virtual time: the browser prints when nothing is left to do, at the latest after so many of its milliseconds.
_BUDGET = 120_000


def find_browser() -> str:
    """Return the path of a Chromium.

    Raises
    ------
    UsageError
        There is none.
    """
    browser = next(filter(None, map(shutil.which, BROWSERS)), None)
    if browser is None:
        raise UsageError(
            f"the PDF is printed by a browser, and none of {', '.join(BROWSERS)} is on the PATH: install Chromium "
            "(Debian and Ubuntu: apt install chromium)"
        )
    return browser


def printable(page: str) -> str:
    """Return the single page as paper needs it.

    Folded boxes are unfolded, except code that the book hides; links lead within the page or to the network, never to a
    file of the machine that prints.
    """
    page = re.sub(r"<details(?![^>]*\bopen\b)(?=[^>]*sd-dropdown)", "<details open", page)
    page = re.sub(
        r"<details(?=[^>]*class=\"[^\"]*\b(?:hide|above-input|below-input)\b)[^>]*>\s*<summary.*?</details>",
        "",
        page,
        flags=re.DOTALL,
    )
    page = page.replace('href="intro.html#', 'href="#')
    return re.sub(r'(<a\b[^>]*?)\shref="(?!#|https?://|mailto:)[^"]*"', r"\1", page)


class _Quiet(http.server.SimpleHTTPRequestHandler):
    def log_message(self, *args: object) -> None:
        pass


@contextmanager
def served(folder: Path) -> Iterator[str]:
    """Serve a folder to this machine alone; gives its address."""
    handler = functools.partial(_Quiet, directory=str(folder))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_address[1]}"
        finally:
            server.shutdown()
            thread.join()


def print_page(folder: Path, name: str, output: Path) -> None:
    """Print one page of a folder, whole or not at all.

    Parameters
    ----------
    folder : Path
        Served while the browser prints.
    name : str
        Of the page in it.
    output : Path

    Raises
    ------
    UsageError
        No browser is there, or it wrote no PDF.
    """
    browser = find_browser()
    with (
        tempfile.TemporaryDirectory(prefix="specdec-pdf-", ignore_cleanup_errors=True) as scratch,
        served(folder) as site,
    ):
        aside = Path(scratch) / "book.pdf"
        options = [
            "--headless=new",
            "--disable-gpu",
            "--disable-dev-shm-usage",
            "--no-first-run",
            f"--user-data-dir={scratch}/profile",
            "--no-pdf-header-footer",
            f"--virtual-time-budget={_BUDGET}",
            f"--print-to-pdf={aside}",
        ]
        if hasattr(os, "geteuid") and os.geteuid() == 0:
            options.append("--no-sandbox")  # Chromium refuses to sandbox itself as root
        try:
            done = subprocess.run(
                [browser, *options, f"{site}/{name}"], capture_output=True, text=True, timeout=_SECONDS, check=False
            )
        except subprocess.TimeoutExpired:
            raise UsageError(f"{browser} did not print within {_SECONDS} s") from None
        if not aside.is_file() or aside.read_bytes()[:5] != b"%PDF-":
            last = "\n".join(done.stderr.splitlines()[-5:])
            raise UsageError(f"{browser} wrote no PDF (exit status {done.returncode})\n{last}")
        output.parent.mkdir(parents=True, exist_ok=True)
        shutil.move(aside, output.with_name(output.name + ".new"))
        os.replace(output.with_name(output.name + ".new"), output)


def build(root: Path | None = None) -> Path:
    """Render the book as one page and print it; returns ``_build/book.pdf``. Fails like
    :func:`specdec_lib.report.build.book.render` and :func:`print_page`."""
    root = root or paths.root()
    find_browser()  # before the minute that rendering takes
    start = time.perf_counter()
    page = book.render(root, "singlehtml")
    ready = page.with_name("print.html")
    ready.write_text(printable(page.read_text(encoding="utf-8")), encoding="utf-8")
    output = root / "_build" / "book.pdf"
    print_page(page.parent, ready.name, output)
    print(f"{output} ({output.stat().st_size / 1e6:.1f} MB, {time.perf_counter() - start:.0f} s)")
    return output
