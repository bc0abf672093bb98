"""How long OpenMP's threads should spin before they sleep: passes of SmolLM2 in float32, on idle cores and on busy ones.

    PYTHONPATH=. python benchmarks/waiting.py

A thread that spins is there at once when the next product begins, and takes a core from other programs meanwhile. Each setting
has processes of its own, in turns. Prints how much longer passes take than with the fastest setting on idle cores.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections import defaultdict

import numpy as np

#: The settings, as they are given to a new process; ``active`` is what OpenMP does by itself.
SETTINGS = {
    "active": {},
    "passive": {"OMP_WAIT_POLICY": "PASSIVE"},
    **{f"spin {count}": {"GOMP_SPINCOUNT": str(count)} for count in (300, 1_000, 3_000, 10_000, 30_000, 100_000)},
}
WIDTHS = (1, 5, 16, 64)
ROUNDS = 3
ONE_PROCESS = """
import sys, time
import numpy as np, torch
from specdec_lib import DraftTree, load_model
from specdec_lib.decoding.target import Target
from specdec_lib.experiments.costs.measured_passes import chain_of
torch.set_num_threads(int(sys.argv[1]))
model, _ = load_model("smollm2", "cpu", "float32")
with torch.inference_mode(), Target(model, 500) as target:
    target.extend(chain_of(model, 300))
    for width in map(int, sys.argv[2:]):
        tree, spent = DraftTree.chain(chain_of(model, width - 1)), []
        for _ in range(12):
            began = time.perf_counter()
            target.verify(5, tree)
            spent.append(time.perf_counter() - began)
        print(np.median(spent[2:]))
"""


def passes(setting: dict[str, str]) -> list[float]:
    """Seconds of passes of each width, in a new process on all threads."""
    environment = {
        name: value for name, value in os.environ.items() if name not in ("OMP_WAIT_POLICY", "OMP_NUM_THREADS")
    }
    command = [sys.executable, "-c", ONE_PROCESS, str(os.cpu_count()), *map(str, WIDTHS)]
    done = subprocess.run(command, check=True, env=environment | setting, stdout=subprocess.PIPE, text=True)
    return [float(line) for line in done.stdout.split()]


def measured() -> dict[str, np.ndarray]:
    """The least of all rounds, by setting."""
    found = defaultdict(list)
    for _ in range(ROUNDS):
        for name, setting in SETTINGS.items():
            found[name].append(passes(setting))
    return {name: np.min(each, axis=0) for name, each in found.items()}


def main() -> None:
    """Measure with idle cores, then with a program on each."""
    idle = measured()
    others = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(os.cpu_count() or 1)]
    try:
        busy = measured()
    finally:
        for other in others:
            other.kill()
    best = np.min(list(idle.values()), axis=0)
    print("over the fastest on idle cores, passes of", *WIDTHS, "tokens: idle | busy")
    for name in SETTINGS:
        print(
            f"{name:12}",
            *(f"{value:6.2f}" for value in idle[name] / best),
            " |",
            *(f"{value:6.2f}" for value in busy[name] / best),
        )


if __name__ == "__main__":
    main()
