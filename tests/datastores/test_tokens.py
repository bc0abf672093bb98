"""Token stores: round trips, what is refused, and what a kill, a full disk or a second builder leaves
behind."""

from __future__ import annotations

import errno
import fcntl
import json
import os
import random
import select
import shutil
import signal
import threading
import time
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tqdm.auto import tqdm

from specdec_lib import datastores
from specdec_lib.chapters.a1_pocket_models import training_rows
from specdec_lib.datastores import StoreBusy, StoreError, SuffixIndex, TokenStore, store_files
from tests.datastores.stores import WIDTHS, document_lists
from tests.datastores.stores import build as in_memory

CODE = "def f(x):\n    return x + 1  # the next one\n"


def contents(store: TokenStore) -> list[list[int]]:
    return [store.document(i).tolist() for i in range(len(store))]


def build(path: Path, documents, vocabulary: int = 50, **options) -> TokenStore:
    return datastores.build_tokens(path, documents, vocabulary, progress=False, **options)


def with_index(folder: Path) -> None:
    datastores.build_suffix_array(folder, progress=False)


@given(
    st.sampled_from(WIDTHS).flatmap(lambda width: st.tuples(st.just(width[0]), document_lists(width[1]))),
    st.integers(1, 30),
)
@settings(max_examples=40, deadline=None)
def test_documents_come_back_as_they_went_in_for_any_chunk(case, chunk_tokens):
    vocabulary, documents = case
    with in_memory(documents, vocabulary, chunk_tokens=chunk_tokens) as index:
        store = index.store
        assert contents(store) == documents
        assert store.tokens.dtype == (np.uint16 if vocabulary < 65536 else np.uint32)
        assert (store.count, len(store), store.vocabulary) == (sum(map(len, documents)), len(documents), vocabulary)
        assert np.flatnonzero(store.tokens == vocabulary).tolist() == [0, *(store.starts[1:] - 1).tolist()]
        store.verify()


def test_the_arrays_are_mapped_read_only_and_the_manifest_says_what_they_are(tmp_path):
    store = build(tmp_path / "store", [np.array([1, 2, 3]), [4, 5]], sources=[{"name": "two documents"}])
    with pytest.raises(ValueError, match="read-only"):
        store.tokens[0] = 1
    assert isinstance(store.tokens.base, np.memmap)
    about = json.loads((tmp_path / "store" / "manifest.json").read_text())
    assert about["sources"] == [{"name": "two documents"}]
    assert about["vocabulary"] == 50 and about["dtype"] == "uint16"
    assert (about["documents"], about["tokens"]) == (2, 5)
    assert sorted(about["files"]) == sorted(p.name for p in (tmp_path / "store").iterdir() if p.suffix == ".npy")
    assert sorted(p.name for p in tmp_path.iterdir()) == ["store"]


@pytest.mark.parametrize(
    "documents, message",
    [
        ([], "the corpus is empty"),
        ([[1, 2], [3]], "document 2 has 1 tokens; expected two or more"),
        ([[1, 2], []], "document 2 has 0 tokens"),
        ([[1, 50]], "document 1 has the token id 50, outside the vocabulary of 50"),
        ([[1, 2], [3, -1]], "document 2 has the token id -1"),
        ([[1.0, 2.0]], "document 1 is an array of float64"),
        (["text"], "document 1 is an array of <U4 .*texts need an encoder"),
    ],
)
def test_bad_documents_are_refused_and_leave_nothing(tmp_path, documents, message):
    with pytest.raises((ValueError, TypeError), match=message):
        build(tmp_path / "store", documents)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    "options, message",
    [
        ({"vocabulary": 0}, "vocabulary is 0"),
        ({"vocabulary": 2**32}, "vocabulary is 4294967296"),
        ({"vocabulary": 10.5}, "vocabulary is 10.5"),
        ({"chunk_tokens": 0}, "chunk_tokens is 0"),
        ({"max_tokens": -3}, "max_tokens is -3"),
        ({"short_documents": "keep"}, "expected one of error, skip"),
    ],
)
def test_bad_parameters_are_refused_before_any_work(tmp_path, options, message):
    with pytest.raises(ValueError, match=message):
        build(tmp_path / "sub" / "store", [[1, 2]], **options)
    assert list(tmp_path.iterdir()) == []


def test_what_is_no_datastore_is_neither_replaced_nor_opened(tmp_path):
    (tmp_path / "notes").mkdir()
    (tmp_path / "notes" / "a.txt").write_text("mine")
    with pytest.raises(ValueError, match="exists and is no datastore"):
        build(tmp_path / "notes", [[1, 2]])
    with pytest.raises(StoreError, match="has no manifest.json"):
        TokenStore.open(tmp_path / "notes")
    with pytest.raises(StoreError, match="no datastore at"):
        TokenStore.open(tmp_path / "none")
    with pytest.raises(TypeError, match="can be read only once"):
        build(tmp_path / "store", iter([[1, 2]]))
    assert (tmp_path / "notes" / "a.txt").read_text() == "mine"


def test_short_documents_are_counted_when_skipped_and_max_tokens_takes_whole_documents(tmp_path):
    documents = [[1], [1, 2, 3], [], [4, 5], [6, 7], [8]]
    store = build(tmp_path / "a", documents, short_documents="skip")
    assert contents(store) == [[1, 2, 3], [4, 5], [6, 7]] and store.manifest["skipped_documents"] == 3
    for limit, count in ((3, 1), (4, 1), (5, 2), (100, 3)):
        assert (
            contents(build(tmp_path / "a", documents, short_documents="skip", max_tokens=limit))
            == contents(store)[:count]
        )


def test_truncated_altered_and_foreign_stores_are_refused(tmp_path):
    path = tmp_path / "store"
    build(path, [[1, 2, 3], [4, 5]])

    def refused(change, message, verify=False):
        copy = tmp_path / "copy"
        shutil.copytree(path, copy)
        change(copy)
        with pytest.raises(StoreError, match=message):
            opened = TokenStore.open(copy)
            if verify:
                opened.verify()
        shutil.rmtree(copy)

    def rewrite(name, change):
        def apply(folder):
            file = folder / name
            file.write_bytes(change(file.read_bytes()))

        return apply

    def manifest(**changes):
        return rewrite("manifest.json", lambda data: json.dumps(json.loads(data) | changes).encode())

    refused(rewrite("tokens.npy", lambda data: data[:-2]), "tokens.npy has 142 bytes, its manifest says 144")
    refused(rewrite("documents.npy", lambda data: b""), "documents.npy has 0 bytes")
    refused(lambda folder: (folder / "tokens.npy").unlink(), "tokens.npy is missing")
    refused(rewrite("tokens.npy", lambda data: data[:-2] + b"\1\0"), "does not begin and end with a separator")
    refused(
        rewrite("tokens.npy", lambda data: data[:130] + b"\7" + data[131:]),
        "was altered after it was built",
        verify=True,
    )
    refused(rewrite("tokens.npy", lambda data: b"\0" * len(data)), "cannot be read")
    refused(manifest(version=7), "version 7 of the format, this library reads version 1")
    refused(manifest(format="other"), "no manifest of a token store")
    refused(manifest(tokens=6), "expected uint16 of shape")
    refused(rewrite("manifest.json", lambda data: data[:20]), "no manifest of a token store")


@pytest.fixture(scope="module")
def tokenizer():
    return training_rows.train_tokenizer([CODE * 20], 300, 512)


def test_texts_become_documents_of_their_tokenizer_and_another_tokenizer_is_refused(tmp_path, tokenizer):
    texts = [CODE, "y = 3\n" * 4]
    store = datastores.build_from_texts(tmp_path / "store", texts, tokenizer, progress=False)
    assert contents(store) == [tokenizer(text, add_special_tokens=False)["input_ids"] for text in texts]
    TokenStore.open(tmp_path / "store", tokenizer)
    SuffixIndex.open(store).verify()
    other = training_rows.train_tokenizer(["something else entirely, 1234567890 " * 30], 300, 512)
    with pytest.raises(StoreError, match="holds the tokens of another tokenizer"):
        TokenStore.open(tmp_path / "store", other)
    with pytest.raises(StoreError, match="without a tokenizer"):
        build(tmp_path / "ids", [[1, 2]]).check_tokenizer(tokenizer)


@pytest.mark.draws
def test_a_tokenizers_settings_do_not_change_its_fingerprint_and_a_new_token_does(tokenizer):
    before = datastores.tokenizer_fingerprint(tokenizer)
    tokenizer([CODE, "a"], truncation=True, max_length=4, padding="max_length" if tokenizer.pad_token else False)
    assert datastores.tokenizer_fingerprint(tokenizer) == before
    grown = training_rows.train_tokenizer([CODE * 20], 300, 512)
    assert datastores.tokenizer_fingerprint(grown) == before
    grown.add_tokens(["<a new one>"])
    assert datastores.tokenizer_fingerprint(grown) != before
    assert datastores.tokenizer_vocabulary(grown) == datastores.tokenizer_vocabulary(tokenizer) + 1


def random_texts(seed: int, count: int) -> list[str]:
    rng = random.Random(seed)
    return ["".join(rng.choice("abcdefghij") for _ in range(rng.randrange(2, 120))) for _ in range(count)]


def as_ids(batch: list[str]) -> list[list[int]]:
    return [[ord(c) - 97 for c in text] for text in batch]


def test_an_interrupted_build_continues_after_its_last_chunk_and_ends_as_if_it_had_not_been(tmp_path):
    texts = random_texts(0, 1000)
    whole = build(tmp_path / "whole", texts, encode=as_ids, chunk_tokens=5000)
    seen: list[str] = []

    def stops(batch):
        if len(seen) >= 700:
            raise KeyboardInterrupt
        seen.extend(batch)
        return as_ids(batch)

    with pytest.raises(KeyboardInterrupt):
        build(tmp_path / "store", texts, encode=stops, chunk_tokens=5000)
    with pytest.raises(StoreError, match="is not built yet: there is only an unfinished store.partial"):
        TokenStore.open(tmp_path / "store")
    again: list[str] = []
    store = build(
        tmp_path / "store", texts, encode=lambda batch: again.extend(batch) or as_ids(batch), chunk_tokens=5000
    )
    assert again == texts[-len(again) :]
    lost = len(again) - (len(texts) - len(seen))
    assert 0 <= sum(map(len, seen[len(seen) - lost :])) < 5000 + 120
    assert store.manifest == whole.manifest
    store.verify()


def test_a_build_that_is_interrupted_after_its_last_token_goes_on_although_a_document_did_not_fit(
    tmp_path, monkeypatch
):
    texts = random_texts(2, 200)
    limit = sum(map(len, texts[:100])) + 1
    whole = build(tmp_path / "whole", texts, encode=as_ids, chunk_tokens=1000, max_tokens=limit)
    write_json = store_files.write_json

    def stops(path, content):
        if path.name == "manifest.json":
            raise KeyboardInterrupt
        write_json(path, content)

    monkeypatch.setattr(store_files, "write_json", stops)
    with pytest.raises(KeyboardInterrupt):
        build(tmp_path / "store", texts, encode=as_ids, chunk_tokens=1000, max_tokens=limit)
    monkeypatch.undo()
    again: list[str] = []
    store = build(
        tmp_path / "store",
        texts,
        encode=lambda batch: again.extend(batch) or as_ids(batch),
        chunk_tokens=1000,
        max_tokens=limit,
    )
    assert texts[0] not in again and store.manifest == whole.manifest


@pytest.mark.parametrize("change", ["texts", "vocabulary", "sources", "shorter", "damaged"])
def test_an_interrupted_build_of_something_else_starts_anew(tmp_path, change):
    texts = random_texts(1, 300)
    calls = 0

    def stops(batch):
        nonlocal calls
        calls += 1
        if calls == 4:
            raise KeyboardInterrupt
        return as_ids(batch)

    with pytest.raises(KeyboardInterrupt):
        build(tmp_path / "store", texts, encode=stops, chunk_tokens=1000)
    options = {"vocabulary": 51} if change == "vocabulary" else {}
    options |= {"sources": [{"name": "other"}]} if change == "sources" else {}
    if change == "texts":
        texts = ["ab", *texts[1:]]
    elif change == "shorter":
        texts = texts[:20]
    elif change == "damaged":
        os.truncate(tmp_path / "store.partial" / "tokens.npy", 200)
    again: list[str] = []
    store = build(
        tmp_path / "store",
        texts,
        encode=lambda batch: again.extend(batch) or as_ids(batch),
        chunk_tokens=1000,
        **options,
    )
    assert again == texts and contents(store) == as_ids(texts)


def test_a_full_disk_leaves_the_old_store_at_every_write_and_the_build_can_continue(tmp_path, monkeypatch):
    path, texts, sound = tmp_path / "store", random_texts(2, 60), store_files.write
    old = build(path, [[1, 2, 3]], finish=with_index).manifest
    left = 10**9

    def fills_up(file, data):
        nonlocal left
        if left == 0:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        left -= 1
        sound(file, data)

    monkeypatch.setattr(store_files, "write", fills_up)
    build(tmp_path / "other", texts, encode=as_ids, chunk_tokens=1500, finish=with_index)
    writes = 10**9 - left
    assert writes > 10
    for count in range(writes):
        left = count
        with pytest.raises(OSError, match="No space left"):
            build(path, texts, encode=as_ids, chunk_tokens=1500, finish=with_index)
        assert TokenStore.open(path).manifest == old
        SuffixIndex.open(path).verify()
        if count < writes - 1:
            shutil.rmtree(tmp_path / "store.partial")
    left = writes - 1  # enough only for a build that continues
    assert contents(build(path, texts, encode=as_ids, chunk_tokens=1500, finish=with_index)) == as_ids(texts)
    SuffixIndex.open(path).verify()
    assert sorted(p.name for p in tmp_path.iterdir()) == ["other", "store"]


def in_child(work) -> int:
    """Fork a process that runs ``work``: no second start of Python and its libraries for each of many
    kills."""
    pid = os.fork()
    if pid == 0:
        # tqdm's lock is shared with forked processes: killed while holding it, the child would stop the parent for ever.
        tqdm.set_lock(threading.RLock())
        try:
            work()
        finally:
            os._exit(0)
    return pid


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_kill_at_any_moment_leaves_the_old_store_or_the_new_one_whole(tmp_path, seed):
    rng = random.Random(seed)
    path, sides = tmp_path / "store", [random_texts(3, 400), random_texts(4, 500)]

    def work():
        build(path, sides[wanted], encode=as_ids, chunk_tokens=2000, finish=with_index)

    began = time.perf_counter()
    wanted = 0
    work()
    duration = time.perf_counter() - began
    unfinished = 0
    for kill in range(20):
        wanted = kill % 2
        pid = in_child(work)
        time.sleep(rng.random() * 1.3 * duration)
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        index = SuffixIndex.open(path)
        index.verify()
        documents = contents(index.store)
        assert documents in (as_ids(sides[0]), as_ids(sides[1]))
        unfinished += documents != as_ids(sides[wanted]) or (tmp_path / "store.partial").exists()
    assert unfinished > 0, "no kill came in time: the test shows nothing"
    work()
    assert contents(TokenStore.open(path)) == as_ids(sides[wanted])
    assert sorted(p.name for p in tmp_path.iterdir()) == ["store"]


@pytest.mark.parametrize("moment", ["before", "between", "after"])
def test_a_kill_around_the_two_renames_leaves_one_of_the_two_stores(tmp_path, monkeypatch, moment):
    path = tmp_path / "store"
    build(path, [[1, 2, 3]])
    real = os.rename
    renames = {"before": 0, "between": 1, "after": 2}[moment]

    class Killed(BaseException):
        pass

    def rename(source, target):
        nonlocal renames
        if renames == 0:
            raise Killed
        renames -= 1
        real(source, target)

    monkeypatch.setattr(os, "rename", rename)
    remove = shutil.rmtree

    def rmtree(folder, **options):
        if folder.name == "store.old" and folder.exists():
            raise Killed
        remove(folder, **options)

    monkeypatch.setattr(shutil, "rmtree", rmtree)
    with pytest.raises(Killed):
        build(path, [[4, 5, 6]])
    monkeypatch.undo()
    assert contents(TokenStore.open(path)) == ([[4, 5, 6]] if moment == "after" else [[1, 2, 3]])
    assert contents(build(path, [[7, 8]])) == [[7, 8]]
    assert sorted(p.name for p in tmp_path.iterdir()) == ["store"]


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_second_builder_is_told_who_builds_and_takes_over_when_that_one_is_dead(tmp_path):
    path = tmp_path / "store"
    read, write = os.pipe()

    def waits(batch):
        os.write(write, b"x")
        time.sleep(60)

    pid = in_child(lambda: build(path, ["abc"], encode=waits))
    try:
        assert select.select([read], [], [], 120)[0], "the first builder has not begun"
        with pytest.raises(StoreBusy, match=f"is being built by another process \\(process {pid}, since 20"):
            build(path, [[1, 2]])
    finally:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        os.close(read)
        os.close(write)
    assert (tmp_path / "store.lock").exists()
    assert contents(build(path, [[1, 2]])) == [[1, 2]]
    assert sorted(p.name for p in tmp_path.iterdir()) == ["store"]


def test_a_file_system_without_locks_is_not_taken_for_another_builder(tmp_path, monkeypatch):
    def refuses(handle, how):
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    monkeypatch.setattr(fcntl, "flock", refuses)
    with pytest.raises(OSError, match="No locks available .*store.lock") as told:
        build(tmp_path / "store", [[1, 2]])
    assert not isinstance(told.value, StoreBusy) and told.value.errno == errno.ENOLCK


def test_a_store_stays_readable_while_and_after_it_is_replaced(tmp_path):
    path = tmp_path / "store"
    old = build(path, [[1, 2, 3]])
    build(path, [[4, 5]], finish=lambda folder: contents(TokenStore.open(path)) == [[1, 2, 3]] or pytest.fail("gone"))
    assert contents(old) == [[1, 2, 3]] and contents(TokenStore.open(path)) == [[4, 5]]
