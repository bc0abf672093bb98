"""Where a number comes from: code, versions, machine, parameters."""

from __future__ import annotations

import os
import platform
import subprocess
from collections.abc import Mapping
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path
from typing import Any

from specdec_lib import paths
from specdec_lib.files import read_json
from specdec_lib.report import run_context
from specdec_lib.report.display import tables

PACKAGES = ("torch", "transformers", "numpy", "numba", "faiss-cpu", "pandas", "matplotlib", "papermill")
"""Packages whose versions can change a result."""

FILE = "provenance.json"
"""Where an executed notebook leaves it, among its files."""


def versions() -> dict[str, str]:
    """Return the version of each package of :data:`PACKAGES` that is installed, and of Python."""
    found = {"python": platform.python_version()}
    for name in PACKAGES:
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return found


def _first_words(*words: str) -> str | None:
    """The first words that a program prints, None where it cannot be run."""
    try:
        done = subprocess.run(words, capture_output=True, text=True, check=True, timeout=20)
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.strip()


def commit() -> str:
    """Return the commit of the repository, followed by ``+changes`` where tracked files differ from it.

    ``unknown`` outside of a git repository, for example in an archive.
    """
    if paths.ROOT is None:
        return "unknown"
    head = _first_words("git", "-C", str(paths.ROOT), "rev-parse", "HEAD")
    if head:
        return head + (
            "+changes" if _first_words("git", "-C", str(paths.ROOT), "status", "--porcelain", "-uno") else ""
        )
    return "unknown"


def cpu_model() -> str:
    """Return the name of the processor as the system gives it."""
    try:
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.split(":", 1)[1].strip()
    except OSError:
        pass
    return platform.processor() or platform.machine()


def device_class() -> str:
    """Return ``cpu`` or the name of the first CUDA device."""
    import torch

    return torch.cuda.get_device_name(0) if torch.cuda.is_available() else "cpu"


def machine() -> dict[str, str]:
    """Return what the hardware is: processor, cores, threads of torch, device and CUDA."""
    import torch

    facts = {
        "system": f"{platform.system()} {platform.machine()}",
        "processor": cpu_model(),
        "cores": str(os.cpu_count()),
        "torch threads": str(torch.get_num_threads()),
        "device": device_class(),
    }
    if torch.cuda.is_available():
        facts["CUDA"] = str(torch.version.cuda)
        driver = _first_words("nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader") or "unknown"
        facts["driver"] = driver.splitlines()[0]
    return facts


def of_command(command: str) -> dict[str, str]:
    """Where a file of results comes from; to be called before the work, because the checkout may move on meanwhile."""
    return {
        "commit": commit(),
        "date": datetime.now(UTC).strftime("%Y-%m-%d"),
        "machine": f"{cpu_model()}, {os.cpu_count()} cores",
        "command": f"python -m specdec_lib {command}",
    }


def collect(parameters: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """Return what is written with a result."""
    run = run_context.current()
    return {
        "date": datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC"),
        "commit": commit(),
        "notebook": run.notebook if run else "run outside of the runner",
        "notebook sha256": run.sha256 if run else "not known",
        "parameters": dict(parameters or {}),
        "versions": versions(),
        "machine": machine(),
        "load average": f"{os.getloadavg()[0]:.1f}" if hasattr(os, "getloadavg") else "not known",
    }


class Provenance:
    """A table of :func:`collect`, without number and caption."""

    def __init__(self, facts: Mapping[str, Any]):
        self.facts = facts

    def rows(self) -> list[tuple[str, str]]:
        """Return what is shown, nested facts as one row each."""
        rows: list[tuple[str, str]] = []
        for key, value in self.facts.items():
            if isinstance(value, Mapping):
                prefix = "parameter " if key == "parameters" else ""
                rows += [(prefix + name, str(item)) for name, item in value.items()]
            else:
                rows.append((key, str(value)))
        return rows

    def _repr_mimebundle_(self, include: Any = None, exclude: Any = None) -> dict[str, str]:
        import html

        rows = self.rows()
        lines = "\n".join(f"| {tables.literal_cell(name)} | {tables.code_cell(value)} |" for name, value in rows)
        cells = "".join(f"<tr><td>{html.escape(n)}</td><td><code>{html.escape(v)}</code></td></tr>" for n, v in rows)
        return {
            "text/plain": "\n".join(f"{name}: {value}" for name, value in rows),
            "text/html": f"<table>{cells}</table>",
            "text/markdown": f":::{{dropdown}} How this page was made\n\n| | |\n|:--|:--|\n{lines}\n:::\n",
        }


def target_of(path: Path) -> str:
    """The target model of the run that wrote a file of numbers, by what it says of its origin."""
    about = read_json(path.with_name(FILE)) or {}
    return str(about.get("parameters", {}).get("target", "not known"))
