"""The installed Chromium, driven by playwright."""

import functools
import http.server
import os
import shutil
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser, Page, sync_playwright

BROWSERS = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
OPTIONS = (
    "--headless=new", "--no-sandbox", "--disable-gpu", "--disable-background-networking", "--disable-component-update",
    "--disable-sync",
)  # fmt: skip

# Everything a test wants to know of a page, in one evaluation. Text in code is the reader's business, not the
# book's.
INSPECTION = r"""
(async () => {
  if (window.MathJax && MathJax.startup) { await MathJax.startup.promise; }
  const texts = [];
  const skip = "pre, code, script, style, mjx-container, .notranslate:not(.math)";
  const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  while (walker.nextNode()) {
    const node = walker.currentNode;
    if (node.textContent.trim() && !node.parentElement.closest(skip)) texts.push(node.textContent);
  }
  const math = [...document.querySelectorAll(".math")];
  return {
    title: document.title,
    // A link of a drawing keeps its address as written.
    links: [...document.querySelectorAll("a[href]")].map(link => new URL(link.href.baseVal ?? link.href, document.baseURI).href),
    texts: texts,
    unrendered: math.filter(e => !e.querySelector("mjx-container")).map(e => e.textContent.slice(0, 80)),
    broken: [...document.querySelectorAll("mjx-merror, [data-mjx-error]")].map(e => e.textContent),
    images: [...document.images].filter(i => i.complete && !i.naturalWidth).map(i => i.src),
    without_alt: [...document.querySelectorAll("article img:not([alt])")].map(i => i.src),
    width: [document.scrollingElement.scrollWidth, document.scrollingElement.clientWidth],
  };
})()
"""


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


@contextmanager
def open_browser() -> Iterator[Browser]:
    """Start a browser and end it afterwards; without one the test is skipped.

    The plugin pytest-playwright keeps its event loop running until the last test of the suite, and notebooks cannot be
    executed in a thread whose loop is running: so each module opens its own.
    """
    program = next(filter(None, map(shutil.which, BROWSERS)), None)
    if program is None:
        lacking("no Chromium on this machine")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=program, args=list(OPTIONS))
        try:
            yield browser
        finally:
            browser.close()


def visit(page: Page, address: str, width: int = 1400) -> dict[str, Any]:
    """Load a page; returns what :data:`INSPECTION` says, with ``errors`` and ``requests``."""
    errors: list[str] = []
    requests: list[str] = []

    def heard(message):
        if message.type in ("error", "assert"):
            errors.append(f"{message.text} {message.location['url']}")

    def not_loaded(request):
        if request.failure != "net::ERR_ABORTED":  # a page that is left takes its requests back
            errors.append(f"not loaded: {request.url} {request.failure}")

    listeners = {"pageerror": lambda error: errors.append(str(error)), "console": heard, "requestfailed": not_loaded}
    listeners["request"] = lambda request: requests.append(request.url)
    page.set_viewport_size({"width": width, "height": 900})
    for event, listener in listeners.items():
        page.on(event, listener)
    page.goto(address, timeout=120_000)  # a busy machine takes long
    facts = page.evaluate(INSPECTION)
    for event, listener in listeners.items():
        page.remove_listener(event, listener)
    return facts | {"errors": errors, "requests": requests}


def lacking(reason: str) -> None:
    """Skip a test for want of a browser or of pages; fail it where both must be there."""
    if os.environ.get("SPECDEC_REQUIRE_BROWSER"):
        pytest.fail(reason, pytrace=False)
    pytest.skip(reason)
