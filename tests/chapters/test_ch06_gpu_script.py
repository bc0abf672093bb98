"""``make gpu`` and ``make test-gpu``, also on a machine that has little installed."""

import os
import re
import subprocess
import sys

import pytest
import typer

from benchmarks import gpu
from specdec_lib import paths
from specdec_lib.report import numbers

NOT_THERE = [
    "faiss", "pydivsufsort", "pandas", "matplotlib", "papermill", "nbformat", "nbclient", "IPython", "ipykernel",
    "jupyter_book", "sphinx", "scipy", "sklearn", "accelerate",
]  # fmt: skip
SMALL = ["--target", "pocket", "--shape", "68m", "--device", "cpu", "--dtype", "float32", "--context", "16",
         "--repeats", "1", "--tokens", "4"]  # fmt: skip
CODE = "import typer; from benchmarks import gpu; sys.argv[1:] = {}; typer.run(gpu.main)"


def run_without(missing: list[str], code: str, **environment: str) -> subprocess.CompletedProcess:
    without = f"import sys; sys.modules.update(dict.fromkeys({missing!r}))\n"
    return subprocess.run(
        [sys.executable, "-c", without + code],
        capture_output=True, text=True, timeout=300, cwd=paths.ROOT,
        env={**os.environ, "PYTHONPATH": str(paths.ROOT), "OMP_NUM_THREADS": "1", **environment},
    )  # fmt: skip


@pytest.mark.slow
def test_the_tests_of_a_gpu_are_collected_where_little_is_installed():
    text = (paths.ROOT / "Makefile").read_text()
    tests = re.search(r"^GPU_TESTS = ((?:.*\\\n)*.*)$", text, re.MULTILINE)[1].replace("\\", " ").split()
    words = ["-q", "-m", "gpu", "--collect-only", "-p", "no:cacheprovider", *tests]
    code = f"import pytest; sys.exit(pytest.main({words!r}))"
    told = run_without([*NOT_THERE, "hypothesis"], code, PYTEST_DISABLE_PLUGIN_AUTOLOAD="1")
    assert told.returncode == 0, told.stdout + told.stderr
    assert {line.partition("::")[0] for line in told.stdout.splitlines() if "::" in line} == set(tests)


@pytest.mark.slow  # the whole script
def test_torch_transformers_numpy_and_numba_are_enough(tmp_path):
    words = [*SMALL, "--draft", "pocket-draft", "--out", str(tmp_path)]
    told = run_without(NOT_THERE, CODE.format(words), SPECDEC_CACHE=str(tmp_path / "c"))
    assert told.returncode == 0, told.stderr
    found = numbers.read(tmp_path / "06.csv")
    assert found["timed_equal"].value == found["timed_compared"].value > 0
    measured = ("shape_pass_ms", "shape_w8_over_w1", "pass_w8_over_w1", "timed_pld_over_plain", "peer_generate",
                "timed_specdec_over_plain", "peer_assisted_over_specdec")  # fmt: skip
    assert all(found[key].value > 0 and found[key].measured for key in measured)
    assert found["timed_dresd_over_plain"].words == numbers.MISSING and found["target"].words == "pocket"


@pytest.mark.parametrize(("words", "error", "message"), [
    (["--shape", "9t"], ValueError, "shape is '9t'; expected one of 68m"),
    (["--device", "cuda:99"], ValueError, "device is 'cuda:99', which cannot be used here"),
    (["--method", "Sequoia"], SystemExit, "2"),
])  # fmt: skip
def test_bad_input_is_refused_before_anything_is_written(tmp_path, words, error, message, monkeypatch):
    monkeypatch.setattr("sys.argv", ["", *SMALL, "--out", str(tmp_path / "out"), *words])
    with pytest.raises(error, match=message):
        typer.run(gpu.main)
    assert not (tmp_path / "out").exists()


def test_a_device_names_its_folder():
    assert paths.folder_of("NVIDIA A100-SXM4-80GB") == "nvidia-a100-sxm4-80gb"
    assert paths.folder_of("GPU (engineering sample)") == "gpu-engineering-sample"
