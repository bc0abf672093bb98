"""A headless Chromium, driven through its DevTools protocol."""

from __future__ import annotations

import functools
import http.server
import json
import os
import shutil
import subprocess
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

PROGRAMS = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
_SECONDS = 30.0

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
    links: [...document.querySelectorAll("a[href]")].map(link => link.href),
    texts: texts,
    formulas: math.length,
    unrendered: math.filter(e => !e.querySelector("mjx-container")).map(e => e.textContent.slice(0, 80)),
    broken: [...document.querySelectorAll("mjx-merror, [data-mjx-error]")].map(e => e.textContent),
    images: [...document.images].filter(i => i.complete && !i.naturalWidth).map(i => i.src),
    without_alt: [...document.querySelectorAll("article img:not([alt])")].map(i => i.src),
    width: [document.scrollingElement.scrollWidth, document.scrollingElement.clientWidth],
  };
})()
"""


def find_browser() -> str | None:
    """Return the path of a Chromium, or None."""
    return next(filter(None, map(shutil.which, PROGRAMS)), None)


class Browser:
    """One tab. :meth:`visit` loads a page and tells what happened and what is on it."""

    def __init__(self, program: str, profile: Path):
        options = [
            "--headless=new",
            "--disable-gpu",
            "--hide-scrollbars",
            "--remote-debugging-port=0",
            "--no-first-run",
        ]
        options += [
            "--disable-dev-shm-usage",
            "--disable-background-networking",
            f"--user-data-dir={profile}",
        ]
        if hasattr(os, "geteuid") and os.geteuid() == 0:
            options.append("--no-sandbox")  # Chromium refuses to sandbox itself as root
        self._process = subprocess.Popen(
            [program, *options, "--remote-allow-origins=*", "about:blank"],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        self._events: list[dict[str, Any]] = []
        self._number = 0
        try:
            self._socket = self._connect(profile / "DevToolsActivePort")
        except BaseException:
            self.close()
            raise
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.call(f"{domain}.enable")

    def _connect(self, port_file: Path) -> Any:
        import urllib.request

        import websocket

        deadline = time.monotonic() + _SECONDS
        while not port_file.is_file() or not port_file.read_text().strip():
            if time.monotonic() > deadline or self._process.poll() is not None:
                raise RuntimeError("the browser did not start")
            time.sleep(0.05)
        port = port_file.read_text().splitlines()[0]
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/json") as answer:
            tabs = json.load(answer)
        address = next(tab["webSocketDebuggerUrl"] for tab in tabs if tab["type"] == "page")
        return websocket.create_connection(address, timeout=_SECONDS)

    def call(self, method: str, **params: Any) -> dict[str, Any]:
        """Send one command and return its result; events that come meanwhile are kept."""
        self._number += 1
        self._socket.send(json.dumps({"id": self._number, "method": method, "params": params}))
        while True:
            message = json.loads(self._socket.recv())
            if message.get("id") == self._number:
                if "error" in message:
                    raise RuntimeError(f"{method}: {message['error']}")
                return message["result"]
            self._events.append(message)

    def wait_for(self, method: str) -> None:
        """Return when an event of this name has come."""
        while not any(event.get("method") == method for event in self._events):
            self._events.append(json.loads(self._socket.recv()))

    def evaluate(self, expression: str) -> Any:
        """Return the value of a JavaScript expression, waiting for a promise."""
        answer = self.call("Runtime.evaluate", expression=expression, awaitPromise=True, returnByValue=True)
        if "exceptionDetails" in answer:
            raise RuntimeError(str(answer["exceptionDetails"])[:500])
        return answer["result"].get("value")

    def visit(self, address: str, width: int = 1400, height: int = 900) -> dict[str, Any]:
        """Load a page; returns what :data:`INSPECTION` says, with ``errors`` and ``requests``."""
        self.call(
            "Emulation.setDeviceMetricsOverride",
            width=width,
            height=height,
            deviceScaleFactor=1,
            mobile=False,
        )
        self._events.clear()
        self.call("Page.navigate", url=address)
        self.wait_for("Page.loadEventFired")
        facts = self.evaluate(INSPECTION)
        facts["errors"] = [text for event in self._events for text in _error(event)]
        facts["requests"] = [
            event["params"]["request"]["url"]
            for event in self._events
            if event.get("method") == "Network.requestWillBeSent"
        ]
        return facts

    def close(self) -> None:
        """End the browser."""
        if hasattr(self, "_socket"):
            self._socket.close()
        self._process.terminate()
        self._process.wait(timeout=_SECONDS)


def _error(event: dict[str, Any]) -> list[str]:
    params = event.get("params", {})
    match event.get("method"):
        case "Runtime.exceptionThrown":
            details = params["exceptionDetails"]
            return [details.get("exception", {}).get("description", details["text"])]
        case "Runtime.consoleAPICalled" if params["type"] in ("error", "assert"):
            return [" ".join(str(a.get("value", a.get("description"))) for a in params["args"])]
        case "Log.entryAdded" if params["entry"]["level"] == "error":
            return [f"{params['entry']['text']} {params['entry'].get('url', '')}"]
        case "Network.loadingFailed" if not params.get("canceled"):
            return [f"not loaded: {params['errorText']}"]
    return []


@contextmanager
def open_browser(program: str) -> Iterator[Browser]:
    """Start a browser with a profile of its own and end it afterwards."""
    with tempfile.TemporaryDirectory(prefix="specdec-browser-", ignore_cleanup_errors=True) as profile:
        browser = Browser(program, Path(profile))
        try:
            yield browser
        finally:
            browser.close()


class _QuietHandler(http.server.SimpleHTTPRequestHandler):
    def log_message(self, *args: Any) -> None:
        pass


@contextmanager
def serve(folder: Path) -> Iterator[str]:
    """Serve a folder on a free port of this machine; gives its address without a slash at the end."""
    handler = functools.partial(_QuietHandler, directory=str(folder))
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()


def lacking(reason: str) -> None:
    """Skip a test for want of a browser or of pages; fail it where both must be there."""
    if os.environ.get("SPECDEC_REQUIRE_BROWSER"):
        pytest.fail(reason, pytrace=False)
    pytest.skip(reason)
