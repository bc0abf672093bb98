from __future__ import annotations

import pytest

from tests.families import Library


@pytest.fixture(scope="session")
def library(tmp_path_factory) -> Library:
    """Tiny random models by family, loaded from local directories."""
    return Library(tmp_path_factory.mktemp("models"))


@pytest.fixture(scope="session")
def llama(library):
    """The model most tests run: grouped-query attention under SDPA."""
    return library["llama-gqa"]
