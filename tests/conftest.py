"""What holds for every test: no network, no window, one thread, the same cases each time, a reason for each skip."""

import os
import sys
from importlib.util import find_spec
from pathlib import Path
from zlib import crc32

os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("MPLBACKEND", "Agg")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")

import pytest
import torch

from specdec_lib import paths
from specdec_lib.experiments.runs import all_cores

try:
    from hypothesis import settings
except ImportError:  # tests that need it are not collected then; those of a GPU do not
    settings = None

#: Which cases are drawn: the "same" ones each time, or of ``make test-random`` "random" ones by ``--hypothesis-seed``.
DRAWN = os.environ.get("SPECDEC_TESTS_DRAW", "same")
if DRAWN not in ("same", "random"):
    raise pytest.UsageError(f"SPECDEC_TESTS_DRAW is {DRAWN!r}; expected 'same' or 'random'")
if settings is not None:
    same = DRAWN == "same"
    settings.register_profile(
        "own", derandomize=same, database=None, deadline=None, max_examples=50, print_blob=not same
    )
    settings.load_profile("own")

# ``make test-vllm`` has an environment of its own.
collect_ignore = [] if find_spec("vllm") else ["serving"]

#: What ``make test-core`` works without: the extra ``book``, and what only tables and figures need.
if os.environ.get("SPECDEC_TESTS_CORE"):
    extras = ("pandas", "matplotlib", "papermill", "nbformat", "nbclient", "jupyter_client", "IPython", "sphinx")
    sys.modules.update(dict.fromkeys(extras))

# The models of the tests are tiny: more threads would only wait for each other, above all on a busy machine.
torch.set_num_threads(1)


@pytest.fixture(autouse=True)
def products_as_they_were():
    """A script that a test runs may let products be in bfloat16, for the whole process: that ends with the test."""
    before = torch.get_float32_matmul_precision()
    yield
    torch.set_float32_matmul_precision(before)


@pytest.fixture(scope="session", autouse=True)
def own_recordings(tmp_path_factory):
    """Recordings of other runs, and of tiny models, stay out of the tests and of the cache."""
    os.environ["SPECDEC_FRESH"] = str(tmp_path_factory.mktemp("recordings"))


@pytest.fixture(scope="session", autouse=True)
def shipped_data_stays():
    """No test writes over what the project ships: a head of one epoch once took the place of the shipped one."""
    before = stamps(paths.DATA)
    yield
    after = stamps(paths.DATA)
    changed = sorted(str(file) for file in before.keys() | after.keys() if before.get(file) != after.get(file))
    assert not changed, f"these tests wrote to data/, which is shipped: {changed}"


def stamps(folder: Path) -> dict[Path, tuple[int, int]]:
    """Size and time of the last change of each file."""
    found = {file: file.stat() for file in folder.rglob("*") if file.is_file()}
    return {file: (state.st_size, state.st_mtime_ns) for file, state in found.items()}


@pytest.fixture(autouse=True)
def work_in_this_process(monkeypatch):
    """The tests use all cores already, and a copy of a process with threads of its own may wait for one it lacks."""
    monkeypatch.setattr(all_cores, "ALONE_SECONDS", float("inf"))


def pytest_make_parametrize_id(val: object, argname: str) -> str | None:
    """Bytes are named by their argument: packed files differ each second, and every worker must collect the same."""
    return argname if isinstance(val, bytes) else None


def in_core(item: pytest.Item) -> bool:
    """Whether ``make test-core`` runs this case: of long tests it runs a part, the same one each time."""
    marker = item.get_closest_marker("core_cases")
    return marker is None or (marker.args[0] > 0 and crc32(item.nodeid.encode()) % marker.args[0] == 0)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out what ``make test-core`` does not run; skip what this machine lacks the data or the device for."""
    if os.environ.get("SPECDEC_TESTS_CORE"):
        config.hook.pytest_deselected(items=[item for item in items if not in_core(item)])
        items[:] = filter(in_core, items)
    reasons = {}
    if not os.environ.get("SPECDEC_DATASETS"):
        reasons["realdata"] = "SPECDEC_DATASETS is not set: it names the folder of the published data sets"
    if not torch.cuda.is_available():
        reasons["gpu"] = "no CUDA device"
    for item in items:
        for marker, reason in reasons.items():
            if item.get_closest_marker(marker):
                item.add_marker(pytest.mark.skip(reason=reason))


@pytest.fixture
def seed(request) -> int:
    """Of what a test draws itself, without hypothesis."""
    return int(request.config.getoption("--hypothesis-seed") or 0) if DRAWN == "random" else 0


@pytest.fixture(scope="session")
def library(tmp_path_factory):
    """Tiny random models by family, loaded from local directories (:class:`tests.families.Library`)."""
    from tests.families import Library

    return Library(tmp_path_factory.mktemp("models"))


@pytest.fixture(scope="session")
def llama(library):
    """The model most tests run: grouped-query attention under SDPA."""
    return library["llama-gqa"]


@pytest.fixture(scope="session")
def pocket():
    """The pocket target in float32, and its tokenizer."""
    from specdec_lib import load_model

    return load_model("pocket", "cpu", "float32")


@pytest.fixture(scope="session")
def tokenizer(pocket):
    """That of the pocket pair."""
    return pocket[1]
