"""Python files of packages: which are taken, in which order, and from where."""

import pickle
import zipfile

import pytest

from specdec_lib import load_model
from specdec_lib.drafters import Rest
from specdec_lib.experiments import stores
from specdec_lib.experiments.package_files import package_files
from tests.datastores.test_sharded import propose


def body(i: int) -> str:
    return "".join(f"def function_{i}_{j}(x):\r\n    return x + {i * j}\r\n" for j in range(20))


@pytest.fixture
def folders(tmp_path, monkeypatch):
    """Installed files 0 to 5, and a wheel with files 4 to 9 and one file that is too small."""
    monkeypatch.setenv("SPECDEC_CACHE", str(tmp_path / "cache"))
    installed, wheels = tmp_path / "site-packages", tmp_path / "wheels"
    (installed / "a").mkdir(parents=True)
    wheels.mkdir()
    for i in range(6):
        (installed / "a" / f"m{i}.py").write_bytes(body(i).encode())
    with zipfile.ZipFile(wheels / "b-1.0-py3-none-any.whl", "w") as wheel:
        for i in range(4, 10):
            wheel.writestr(f"b/n{i}.py", body(i).encode())
        wheel.writestr("b/small.py", "x = 1\n")
        wheel.writestr("b/data.txt", "text " * 100)
    return installed, wheels


def test_each_content_is_taken_once_and_parts_are_all_files_in_order(folders):
    installed, wheels = folders
    texts = package_files([wheels], [installed])
    expected = {body(i).replace("\r\n", "\n") for i in range(10)}
    assert set(texts) == expected and len(list(texts)) == 10
    assert sum(file.packed for file in texts.files) == 4
    assert len(list(package_files(installed=[installed]))) == 6
    # Texts go to other processes.
    assert list(pickle.loads(pickle.dumps(texts))) == list(texts)
    for count in (1, 2, 3, 7):
        parts = texts.split(count)
        assert len(parts) == count and [file for part in parts for file in part.files] == list(texts.files)
    assert [file for part in texts.pieces() for file in part.files] == list(texts.files)


def test_a_folder_without_wheels_is_refused(tmp_path):
    with pytest.raises(FileNotFoundError, match="no wheels in"):
        package_files([tmp_path], [tmp_path])
    with pytest.raises(FileNotFoundError, match="no Python files in"):
        package_files([], [tmp_path])


def test_a_store_of_shards_is_built_once_and_its_first_shards_are_a_store(folders, monkeypatch):
    installed, wheels = folders
    tokenizer = load_model("pocket")[1]
    texts = package_files([wheels], [installed])
    index = stores.text_shards("packages", tokenizer, 3000, texts, shard_tokens=1000)
    counts = [shard.store.count for shard in index.shards]
    assert len(counts) == 3 and max(counts) <= 1000 and index.store.count == sum(counts)
    monkeypatch.setattr(stores, "build_sharded", lambda *_, **__: pytest.fail("built a second time"))
    again = stores.text_shards("packages", tokenizer, 3000, texts, shard_tokens=1000)
    first = again.first(1)
    assert first.store.count == counts[0] and len(first.shards) == 1
    whole = again.shards[0]
    context, vocabulary = whole.store.document(0)[:9].tolist(), whole.store.vocabulary
    assert propose(Rest(first), context, vocabulary) == propose(Rest(whole), context, vocabulary)
    with pytest.raises(ValueError, match="the first 4 of 3 shards"):
        again.first(4)
