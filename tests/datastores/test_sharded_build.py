"""Building stores of shards: the same bytes wherever and however often, on local and other file systems."""

from __future__ import annotations

import gzip
import json
import sys
from collections.abc import Iterator
from pathlib import Path

import fsspec
import pytest

from specdec_lib import cluster, datastores, paths
from specdec_lib.__main__ import main
from specdec_lib.commands.datastore import Texts, count_shards, load_tokenizer
from specdec_lib.datastores import StoreError, ray_data, sharded_build, storage
from specdec_lib.datastores.sharded_build import ShardJob, build_sharded
from specdec_lib.drafters import Rest


@pytest.fixture(scope="module")
def tokenizer():
    return load_tokenizer("pocket")


TEXTS = [f"def f{i}(x):\n    return x + {i}\n" for i in range(9)]


def parts(count: int) -> list[list[str]]:
    return [TEXTS[len(TEXTS) * i // count : len(TEXTS) * (i + 1) // count] for i in range(count)]


def contents(folder: Path) -> dict[str, bytes]:
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_the_parts_of_files_are_all_documents_once_and_in_order(tmp_path):
    names = []
    for name, texts in (("a.jsonl", TEXTS[:4]), ("b.jsonl", ["é" * 40, "short", "", "x" * 300])):
        names.append(tmp_path / name)
        names[-1].write_text("".join(json.dumps({"text": text}) + "\n" for text in texts), encoding="utf-8")
    plain = tmp_path / "c.txt"
    plain.write_text("one document\n")
    texts = Texts(None, [plain], names, "text")
    whole = list(texts)
    assert len(whole) == 9
    for count in (1, 2, 3, 7, 40):
        assert [text for part in texts.split(count) for text in part] == whole
    even = tmp_path / "even.jsonl"
    even.write_text('{"text": "ten letters"}\n' * 60)
    assert [len(list(part)) for part in Texts(None, [], [even], "text").split(4)] == [15] * 4


def test_parts_of_parts_are_the_same_documents(tmp_path):
    path = tmp_path / "a.jsonl"
    path.write_text("".join(json.dumps({"text": text}) + "\n" for text in TEXTS))
    texts = Texts(None, [], [path], "text")
    for part in texts.split(3):
        assert [text for piece in part.split(4) for text in piece] == list(part)
        assert [text for piece in part.pieces() for text in piece] == list(part)


def rows(documents: list, tokenizer) -> Iterator[ray_data.Row]:
    """What the stream of Ray Data yields, made here."""
    work = ray_data.ReadAndTokenize(list(enumerate(documents)), tokenizer)
    return (ray_data.Row(**row) for number in range(len(documents)) for row in work({"id": number}))


def jobs(url: Path | str, tokenizer, max_tokens: int | None) -> list[ShardJob]:
    return [
        ShardJob(str(url), f"shard-{i:05d}", part, tokenizer, (), max_tokens, "skip") for i, part in enumerate(parts(3))
    ]


@pytest.mark.parametrize("max_tokens", [None, 30])
def test_shards_of_a_stream_have_the_bytes_of_shards_built_here(tmp_path, tokenizer, max_tokens):
    here, streamed = jobs(tmp_path / "here", tokenizer, max_tokens), jobs(tmp_path / "there", tokenizer, max_tokens)
    expected = [sharded_build.build_shard(job) for job in here]
    stream = ray_data.Stream(rows([job.documents for job in streamed], tokenizer))
    for number, job in enumerate(streamed):
        assert ray_data.sort_shard(ray_data.write_tokens(job, stream, number)) == expected[number]
    assert contents(tmp_path / "here") == contents(tmp_path / "there")
    assert (max_tokens is None) == (expected[0]["documents"] == 3)


def test_shards_of_a_stream_in_an_object_store_have_the_bytes_of_shards_built_here(memory, tmp_path, tokenizer):
    (here, *_), (job, *_) = jobs(tmp_path / "here", tokenizer, None), jobs(memory, tokenizer, None)
    expected = sharded_build.build_shard(here)
    sort_job = ray_data.write_tokens(job, ray_data.Stream(rows([job.documents], tokenizer)), 0)
    at = storage.Storage(memory)
    assert at.names() == ["shard-00000.tokens"]
    assert ray_data.sort_shard(sort_job) == expected
    ray_data.remove_tokens(job)
    assert at.names() == ["shard-00000"]
    at.get("shard-00000", tmp_path / "got")
    assert contents(tmp_path / "got") == contents(tmp_path / "here" / "shard-00000")
    assert not list((tmp_path / "cache").rglob("*.npy"))


def test_what_is_wrong_with_a_document_arrives_where_its_shard_is_written(tmp_path, tokenizer):
    job = jobs(tmp_path / "store", tokenizer, None)[1]
    stream = ray_data.Stream(rows([TEXTS[:2], ["good text", "half \ud800"]], tokenizer))
    stream.skip(0)
    with pytest.raises(ValueError, match="shard-00001 of .*half of a surrogate pair"):
        ray_data.write_tokens(job, stream, 1)
    with pytest.raises(ValueError, match="shard-00001 of .* corpus is empty.* ask for fewer shards"):
        ray_data.write_tokens(job, ray_data.Stream(iter(())), 1)


def test_without_ray_data_the_error_names_the_extra(monkeypatch):
    monkeypatch.setitem(sys.modules, "ray.data", None)
    with pytest.raises(ImportError, match=r"need Ray Data.*pip install 'specdec-lib\[ray\]'"):
        ray_data.load_ray_data()


@pytest.mark.core_cases(0)
def test_the_size_of_shards_gives_their_number(tmp_path, tokenizer, capsys):
    path = tmp_path / "a.jsonl"
    path.write_text("".join(json.dumps({"text": text * 9, "number": i}) + "\n" for i, text in enumerate(TEXTS * 900)))
    texts = Texts(None, [], [path], "text")
    tokens = sum(len(ids) for ids in tokenizer(list(texts), add_special_tokens=False)["input_ids"])
    for count in (1, 3, 10):
        found = count_shards(texts, tokenizer, tokens // count)
        assert count <= found <= max(count + 1, 1.1 * count)
    assert count_shards(texts, tokenizer, tokens // 10, max_tokens=tokens // 5) == 2
    words = ["datastore", "build", str(tmp_path / "store"), "--jsonl", str(path)]
    assert main([*words, "--shard-tokens", str(tokens // 3)]) == 0
    assert int(capsys.readouterr().out.split()[1]) in (3, 4)
    assert main([*words, "--shard-tokens", "0"]) == 2
    assert "--shard-tokens is 0" in capsys.readouterr().err
    assert main([*words, "--shard-tokens", "9", "--shards", "2"]) == 2
    assert "give one of them" in capsys.readouterr().err
    packed = tmp_path / "b.jsonl.gz"
    packed.write_bytes(gzip.compress(path.read_bytes()))
    with pytest.raises(ValueError, match="unpack it, or give --shards"):
        count_shards(Texts(None, [], [packed], "text"), tokenizer, 100)


def test_a_bad_line_of_a_part_is_named_by_the_byte_that_the_part_starts_at(tmp_path):
    path = tmp_path / "a.jsonl"
    path.write_text('{"text": "good"}\n' * 10 + "{bad\n")
    with pytest.raises(ValueError, match=r"a.jsonl, line \d+ after byte \d+: is not JSON"):
        list(Texts(None, [], [path], "text").split(2)[1])


def test_shards_built_twice_or_after_an_interruption_have_the_same_bytes(tmp_path, tokenizer, monkeypatch):
    build_sharded(tmp_path / "a", parts(3), tokenizer, progress=False)
    with monkeypatch.context() as patched, pytest.raises(KeyboardInterrupt):
        sort = sharded_build.build_suffix_array

        def stop(store, progress):
            if store.path.name == "shard-00001":
                raise KeyboardInterrupt
            return sort(store, progress)

        patched.setattr(sharded_build, "build_suffix_array", stop)
        build_sharded(tmp_path / "b", parts(3), tokenizer, progress=False)
    with pytest.raises(StoreError, match="no suffix array|no datastore"):
        Rest(tmp_path / "b")
    first = (tmp_path / "b" / "shard-00000" / "tokens.npy").stat()
    build_sharded(tmp_path / "b", parts(3), tokenizer, progress=False)
    assert contents(tmp_path / "a") == contents(tmp_path / "b")
    assert (tmp_path / "b" / "shard-00000" / "tokens.npy").stat() == first
    datastores.open_suffix_index(tmp_path / "b").verify()


def test_another_build_is_refused_and_left_as_it_is(tmp_path, tokenizer):
    build_sharded(tmp_path / "a", parts(3), tokenizer, progress=False)
    before = contents(tmp_path / "a")
    with pytest.raises(StoreError, match="holds something else than this build began"):
        build_sharded(tmp_path / "a", parts(2), tokenizer, progress=False)
    (tmp_path / "b").mkdir()
    (tmp_path / "b" / "mine.txt").write_text("kept")
    with pytest.raises(StoreError, match="holds something else"):
        build_sharded(tmp_path / "b", parts(2), tokenizer, progress=False)
    assert contents(tmp_path / "a") == before and contents(tmp_path / "b") == {"mine.txt": b"kept"}


def test_a_part_without_documents_is_refused_with_what_to_do(tmp_path, tokenizer):
    with pytest.raises(ValueError, match="shard-00001 of .* corpus is empty.* ask for fewer shards"):
        build_sharded(tmp_path / "a", [TEXTS, []], tokenizer, progress=False)


@pytest.fixture
def memory(monkeypatch, tmp_path):
    """An address on fsspec's file system in memory, and a cache of this test's own."""
    monkeypatch.setattr(paths, "cache", lambda: tmp_path / "cache")
    fs = fsspec.filesystem("memory")
    yield "memory://bucket/store"
    fs.rm("/bucket", recursive=True)


def test_a_store_in_memory_has_the_bytes_of_one_in_a_folder(memory, tmp_path, tokenizer):
    build_sharded(tmp_path / "a", parts(3), tokenizer, progress=False)
    build_sharded(memory, parts(3), tokenizer, progress=False)
    fetched = storage.fetch_shards(memory, tmp_path / "fetched")
    expected = contents(tmp_path / "a")
    del expected["build.json"]
    assert contents(fetched) == expected
    assert Rest(fetched).index.store.count == Rest(tmp_path / "a").index.store.count
    assert not list((tmp_path / "cache").rglob("*.npy"))


def test_a_build_in_memory_continues_with_the_shards_that_are_missing(memory, tmp_path, tokenizer, monkeypatch):
    put, names = storage.Storage.put, []

    def stop_at_two(self, folder, name):
        names.append(name)
        if len(names) == 2:
            raise ConnectionError("the network is gone")
        put(self, folder, name)

    monkeypatch.setattr(storage.Storage, "put", stop_at_two)
    with pytest.raises(ConnectionError):
        build_sharded(memory, parts(3), tokenizer, progress=False)
    with pytest.raises(StoreError, match="no store of shards"):
        storage.fetch_shards(memory, tmp_path / "fetched")
    build_sharded(memory, parts(3), tokenizer, progress=False)
    assert names == ["shard-00000", "shard-00001", "shard-00001", "shard-00002"]
    storage.fetch_shards(memory, tmp_path / "fetched")


@pytest.mark.parametrize("file", ["tokens.npy", "suffix_array.npy"])
def test_a_shard_that_was_altered_in_the_object_store_is_refused(memory, tmp_path, tokenizer, file):
    build_sharded(memory, parts(2), tokenizer, progress=False)
    fs, name = fsspec.filesystem("memory"), f"/bucket/store/shard-00001/{file}"
    data = bytearray(fs.cat_file(name))
    data[-6] ^= 1
    fs.pipe_file(name, bytes(data))
    for _ in range(2):  # what failed its checksum is not taken for a shard that is there
        with pytest.raises(StoreError, match="was altered"):
            storage.fetch_shards(memory, tmp_path / "fetched")


def test_a_storage_that_cannot_be_read_is_not_taken_for_an_empty_one(memory, monkeypatch, tokenizer):
    build_sharded(memory, parts(2), tokenizer, progress=False)

    def refuse(self, path, *rest, **options):
        raise PermissionError("the key has expired")

    monkeypatch.setattr(type(fsspec.filesystem("memory")), "cat_file", refuse)
    with pytest.raises(PermissionError, match="the key has expired"):
        storage.read_shards_at(memory)


def test_the_command_builds_describes_verifies_and_changes_shards(tmp_path, capsys):
    path = tmp_path / "a.jsonl"
    path.write_text("".join(json.dumps({"text": text}) + "\n" for text in TEXTS))
    store = str(tmp_path / "store")
    words = ["--model", "pocket", "--dims", "4", "--device", "cpu"]
    assert main(["datastore", "build", store, "--jsonl", str(path), "--shards", "3", "--dense", *words]) == 0
    built = capsys.readouterr().out
    assert "shards              3" in built and "in 9 documents" in built
    assert main(["datastore", "info", store]) == 0 and capsys.readouterr().out == built
    assert main(["datastore", "verify", store, "--tokenizer", "pocket"]) == 0
    index = datastores.open_dense_index(store, device="cpu")
    assert len(index.shards) == 3 and not list(Path(store).glob("*.states"))
    assert main(["datastore", "remove-shard", store, "shard-00001"]) == 0
    assert "shards              2" in capsys.readouterr().out
    assert main(["datastore", "build", str(tmp_path / "one"), "--jsonl", str(path)]) == 0
    assert main(["datastore", "add-shard", store, str(tmp_path / "one")]) == 0
    assert main(["datastore", "build", str(tmp_path / "x"), "--jsonl", str(path), "--on", "ray"]) == 2
    assert "--on ray works on shards" in capsys.readouterr().err
    assert main(["datastore", "build", str(tmp_path / "x"), "--jsonl", str(path), "--shards", "0"]) == 2
    assert "--shards is 0" in capsys.readouterr().err


def test_without_ray_the_error_names_the_extra(monkeypatch, tmp_path, capsys):
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(ImportError, match=r"install the extra 'ray': pip install 'specdec-lib\[ray\]'"):
        cluster.OnRay()
    (tmp_path / "a.txt").write_text("text of a document")
    words = [
        "datastore",
        "build",
        str(tmp_path / "s"),
        "--text",
        str(tmp_path / "a.txt"),
        "--shards",
        "1",
        "--on",
        "ray",
    ]
    assert main(words) == 2
    assert "extra 'ray'" in capsys.readouterr().err and not (tmp_path / "s").exists()
