"""What holds for every test: no network, no window, one thread, and reasons for what is skipped."""

from __future__ import annotations

import os

os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("MPLBACKEND", "Agg")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")

import pytest
import torch
from hypothesis import settings

#: ``make test-random`` draws other cases with each seed; everywhere else a test draws the same ones each time.
RANDOM = os.environ.get("SPECDEC_TESTS") == "random"
settings.register_profile("same", derandomize=True, database=None, deadline=None, max_examples=50, print_blob=True)
settings.register_profile("random", derandomize=False, database=None, deadline=None, max_examples=200, print_blob=True)
settings.load_profile("random" if RANDOM else "same")

# The models of the tests are tiny: more threads would only wait for each other, above all on a busy machine.
torch.set_num_threads(1)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Skip what this machine lacks the data or the device for."""
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
    """Of what a test draws itself: always the same, and that of the campaign in ``make test-random``."""
    return int(request.config.getoption("--hypothesis-seed") or 0) if RANDOM else 0


@pytest.fixture(scope="session")
def library(tmp_path_factory):
    """Tiny random models by family, loaded from local directories (:class:`tests.families.Library`)."""
    from tests.families import Library

    return Library(tmp_path_factory.mktemp("models"))


@pytest.fixture(scope="session")
def llama(library):
    """The model most tests run: grouped-query attention under SDPA."""
    return library["llama-gqa"]
