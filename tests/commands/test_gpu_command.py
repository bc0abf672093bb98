"""The command that measures wide models: tiny shapes, and a machine that has little installed."""

from __future__ import annotations

import csv
import json
import os
import signal
import subprocess
import sys
import time

import pytest

from specdec_lib import paths
from specdec_lib.chapters.ch06_gpu_benchmarks import speedups, widened_study
from specdec_lib.chapters.ch06_gpu_benchmarks.hardware import Machine, Rate, folder_of
from specdec_lib.commands import gpu

BLOCKED = """
import sys

# An entry that is None is a module that cannot be found, neither to import nor to look whether it is there.
sys.modules.update(dict.fromkeys({missing!r}))
from specdec_lib.__main__ import main
sys.exit(main(sys.argv[1:]))
"""
NOT_THERE = [
    "faiss", "pydivsufsort", "pandas", "matplotlib", "papermill", "nbformat", "nbclient", "IPython", "ipykernel",
    "jupyter_book", "sphinx", "scipy", "sklearn", "accelerate",
]  # fmt: skip

#: Modules with tests of a GPU, which need no more than the command and pytest (``make test-gpu``).
GPU_TESTS = [
    "tests/decoding/test_gpu.py", "tests/decoding/test_runtime.py", "tests/drafters/test_specdec_pp.py",
    "tests/chapters/ch06_gpu_benchmarks/test_hardware.py", "tests/chapters/ch06_gpu_benchmarks/test_widen.py",
]  # fmt: skip
COLLECTED = """
import sys

class Without:
    def __init__(self, finder):
        self.finder = finder

    def __getattr__(self, name):
        return getattr(self.finder, name)

    def find_spec(self, name, path=None, target=None):
        return None if name.partition(".")[0] in {missing!r} else self.finder.find_spec(name, path, target)

sys.meta_path[:] = [Without(finder) for finder in sys.meta_path]
import pytest
sys.exit(pytest.main(["-q", "-m", "gpu", "--collect-only", "-p", "no:cacheprovider", *{tests!r}]))
"""


def test_the_tests_of_a_gpu_are_collected_where_little_is_installed():
    code = COLLECTED.format(missing=[*NOT_THERE, "hypothesis"], tests=GPU_TESTS)
    told = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=300, cwd=paths.ROOT,
                          env={**os.environ, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"})  # fmt: skip
    assert told.returncode == 0, told.stdout + told.stderr
    assert {line.partition("::")[0] for line in told.stdout.splitlines() if "::" in line} == set(GPU_TESTS)
    text = (paths.ROOT / "Makefile").read_text()
    assert all(name in text for name in GPU_TESTS)


def run(arguments: list[str], environment: dict | None = None, missing: list[str] | None = None):
    code = BLOCKED.format(missing=missing or [])
    return subprocess.run(
        [sys.executable, "-W", "default", "-c", code, "gpu", *arguments],
        capture_output=True,
        text=True,
        timeout=600,
        env=environment,
    )


@pytest.mark.slow  # the whole command
def test_torch_transformers_numpy_and_numba_are_enough(tmp_path, monkeypatch):
    monkeypatch.setenv("SPECDEC_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    told = run(
        ["--shapes", "own", "--pairs", "--device", "cpu", "--dtype", "float32", "--per-task", "1",
         "--max-new-tokens", "6", "--repeats", "1", "--context", "16", "--runtime", "static",
         "--out", str(tmp_path / "out")],
        missing=NOT_THERE,
    )  # fmt: skip
    assert told.returncode == 0, told.stderr
    assert "pydivsufsort is not installed" in told.stderr
    found = json.loads((tmp_path / "out" / "wide.json").read_text())
    (study,) = found["runs"]
    assert found["machine"]["bandwidth"]["best"] > 0 and found["provenance"]["versions"]["torch"]
    assert study["notes"]["dense search"] == "torch-cpu"
    assert {row["runtime"] for row in study["steps"]} == {"eager", "static", "transformers"}
    assert {row["sampling"] for row in study["speedups"]} == {"greedy", "sampled"}
    assert all(row["equal"] == row["outputs"] for row in study["divergences"] + study["one_width"])
    assert sum(count for width, count in study["passes"].items() if width != "eager") > 10
    assert {"steps", "kernels", "speedups", "peers", "width"} <= set(study["parts"])
    assert set(study["attention"]) == {"masked", "unmasked"} and found["machine"]["bandwidth"]["what"] == "sum"
    assert study["ceiling_ms"]["1"] > 0 and study["kernels"][0]["launches"] > 10
    with (tmp_path / "out" / "wide_speedups.csv").open() as file:
        assert len(list(csv.DictReader(file))) == len(study["speedups"])
    assert gpu.results(tmp_path) == {}, "a CPU's results are not shown as a GPU's"
    found["machine"]["device"] = "NVIDIA H200"
    (tmp_path / "out" / "wide.json").write_text(json.dumps(found))
    assert list(gpu.results(tmp_path)) == ["out"]


@pytest.mark.parametrize("words, message", [
    (["--shapes", "9t", "--device", "cpu"], "shape is '9t'; expected one of"),
    (["--device", "cuda:99"], "device is 'cuda:99', which cannot be used here"),
    (["--device", "meta"], "device is 'meta'; expected 'auto', 'cpu', 'cuda'"),
    (["--shapes", "--pairs", "34b", "--device", "cpu"], "--pairs has '34b'; expected target/draft"),
    (["--only", "steps,speed", "--device", "cpu"], "--only has 'speed'; expected some of steps, kernels"),
])  # fmt: skip
def test_bad_input_is_told_in_a_sentence_before_anything_is_written(tmp_path, capsys, words, message):
    assert gpu.main([*words, "--out", str(tmp_path / "out")]) == 2
    assert message in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


def test_a_device_names_its_folder():
    assert folder_of("NVIDIA A100-SXM4-80GB") == "nvidia-a100-sxm4-80gb"
    assert folder_of("GPU (engineering sample)") == "gpu-engineering-sample"
    assert folder_of("cpu") == "cpu"


def test_rows_with_different_fields_make_one_table():
    assert gpu.as_csv([{"a": 1}, {"a": 2, "b": "x, y"}]) == 'a,b\n1,\n2,"x, y"\n'


def test_a_shape_that_does_not_fit_is_left_out_and_told(tmp_path, monkeypatch, capsys):
    def too_large(*args, **kwargs):
        raise MemoryError("the model takes 99 bytes")

    monkeypatch.setattr(gpu, "build_pair", too_large)
    out = ["--device", "cpu", "--dtype", "float32", "--out", str(tmp_path / "out")]
    assert gpu.main(["--shapes", "7b", "--pairs", *out]) == 1
    found = json.loads((tmp_path / "out" / "wide.json").read_text())
    assert found["runs"] == [] and found["left_out"][0]["shape"] == "7b"
    assert "left out: the model takes 99 bytes" in capsys.readouterr().out


RATE = Rate(1e9, 1e9, 1, 1, "sum")
STEP = {"runtime": "eager", "width": 1, "ms": 1.0}


@pytest.fixture
def quick(monkeypatch):
    """The pocket pair as it is, with a machine and steps that cost nothing to measure."""
    monkeypatch.setattr(gpu, "measure_machine", lambda device, dtype: Machine("cpu", 1, "float32", RATE, RATE))
    monkeypatch.setattr(widened_study, "steps", lambda *args: [STEP])
    monkeypatch.setattr(widened_study, "draft_ms", lambda *args: 0.5)


def small(out, *words: str) -> list[str]:
    return ["--shapes", "own", "--pairs", "--device", "cpu", "--dtype", "float32", "--per-task", "1", "--max-new-tokens",
            "4", "--repeats", "1", "--out", str(out), *words]  # fmt: skip


@pytest.mark.parametrize("end", [signal.SIGINT, signal.SIGTERM])
def test_an_interruption_keeps_the_parts_that_were_measured(tmp_path, monkeypatch, capsys, quick, end):
    monkeypatch.setattr(speedups, "measure", lambda *args: os.kill(os.getpid(), end) or time.sleep(20))
    monkeypatch.setattr(widened_study.ModelPair, "choose_heads", lambda self, prompts: None)
    before = signal.getsignal(end)
    assert gpu.main(small(tmp_path, "--only", "steps,speedups,peers")) == 130
    assert signal.getsignal(end) is before
    (run,) = json.loads((tmp_path / "wide.json").read_text())["runs"]
    assert run["parts"] == ["steps"] and run["steps"] == [STEP] and run["speedups"] == run["peers"] == []
    assert "interrupted" in capsys.readouterr().err


def test_an_error_in_one_shape_keeps_its_parts_and_the_other_shapes(tmp_path, monkeypatch, capsys, quick):
    def broken(pair, *args, **kwargs):
        if not seen:
            seen.append(pair)
            raise RuntimeError("CUDA error: an illegal memory access\nmore")
        return []

    seen = []
    monkeypatch.setattr(widened_study.speedups, "peers", broken)
    monkeypatch.setattr(widened_study, "record_prompts", lambda *args, **kwargs: [])
    # A pair is measured besides the shape: here of the same models.
    monkeypatch.setattr(gpu, "PAIRS", {"cpu": ("own/own",)})
    own = gpu.build_pair
    monkeypatch.setattr(gpu, "build_pair", lambda *args, draft_named="", **kwargs: own(*args, **kwargs))
    words = small(tmp_path, "--only", "steps,peers")
    words.remove("--pairs")
    assert gpu.main(words) == 1
    found = json.loads((tmp_path / "wide.json").read_text())
    assert [(run["draft_shape"], run["parts"]) for run in found["runs"]] == [
        ("", ["steps"]),
        ("own", ["steps", "peers"]),
    ]
    assert found["left_out"] == [{"shape": "own", "draft_shape": "", "why": "CUDA error: an illegal memory access"}]
    assert "illegal memory access" in capsys.readouterr().err


def test_parts_are_chosen_and_none_begins_after_the_time_is_over(tmp_path, quick, capsys):
    assert gpu.main(small(tmp_path, "--only", "steps")) == 0
    (run,) = json.loads((tmp_path / "wide.json").read_text())["runs"]
    assert run["parts"] == ["steps"] and run["peers"] == []
    assert gpu.main(small(tmp_path / "none", "--seconds", "0")) == 1
    found = json.loads((tmp_path / "none" / "wide.json").read_text())
    assert found["runs"] == [] and found["left_out"][0]["why"] == "out of time"


def test_other_shapes_of_the_same_device_stay_in_the_folder(tmp_path, quick):
    assert gpu.main(small(tmp_path, "--only", "steps")) == 0
    found = json.loads((tmp_path / "wide.json").read_text())
    found["runs"][0] |= {"shape": "7b", "steps": [STEP, STEP]}
    (tmp_path / "wide.json").write_text(json.dumps(found))
    for _ in range(2):
        assert gpu.main(small(tmp_path, "--only", "steps")) == 0
    assert [run["shape"] for run in json.loads((tmp_path / "wide.json").read_text())["runs"]] == ["7b", "its own"]
    found["machine"]["device"] = "another"
    (tmp_path / "wide.json").write_text(json.dumps(found))
    assert gpu.main(small(tmp_path, "--only", "steps")) == 0
    assert [run["shape"] for run in json.loads((tmp_path / "wide.json").read_text())["runs"]] == ["its own"]
