"""Index files of REST's released code, written here as its Writer writes them."""

from __future__ import annotations

import struct
from pathlib import Path

import numpy as np
import pytest

from specdec_lib import datastores
from specdec_lib.chapters.a1_pocket_models import training_rows
from specdec_lib.datastores import SuffixIndex
from specdec_lib.datastores.rest_import import RestIndex, import_rest


def write_idx(path: Path, chunks: list[list[int]], wide: bool = False) -> Path:
    code = "i" if wide else "H"
    data = b""
    for tokens in chunks:
        order = sorted(range(len(tokens)), key=lambda i: tokens[i:])
        text = struct.pack(f"<{len(tokens)}{code}", *tokens)
        suffixes = struct.pack(f"<{len(tokens)}i", *order)
        data += struct.pack("<I", len(text)) + text + struct.pack("<I", len(suffixes)) + suffixes
    path.write_bytes(data)
    return path


CHUNKS = [[1, 5, 6, 7, 1, 8, 9], [1, 9, 9, 9]]


@pytest.mark.parametrize("wide", [False, True])
def test_each_chunk_becomes_a_document_or_each_text_where_its_first_token_is_named(tmp_path, wide):
    chunks = [[70000 if wide and t == 9 else t for t in chunk] for chunk in CHUNKS]
    source = write_idx(tmp_path / "a.idx", chunks, wide)
    vocabulary = 70001 if wide else 10
    store = import_rest(source, tmp_path / "whole", vocabulary=vocabulary, wide=wide, progress=False)
    assert [store.document(i).tolist() for i in range(len(store))] == chunks
    apart = import_rest(source, tmp_path / "apart", vocabulary=vocabulary, wide=wide, starts_with=1, progress=False)
    assert [apart.document(i).tolist() for i in range(len(apart))] == [chunks[0][:4], chunks[0][4:], chunks[1]]
    index = SuffixIndex.open(store)
    index.verify()
    assert index.longest([5, 6, 7]).length == 3 and SuffixIndex.open(apart).longest([5, 6, 7]).length == 0


def test_the_source_and_the_tokenizer_are_in_the_manifest(tmp_path):
    tokenizer = training_rows.train_tokenizer(["some text to learn from " * 30], 300, 512)
    store = import_rest(write_idx(tmp_path / "a.idx", CHUNKS), tmp_path / "s", tokenizer=tokenizer, progress=False)
    store.check_tokenizer(tokenizer)
    assert store.manifest["sources"][0]["name"] == "a.idx"
    for both in ({}, {"tokenizer": tokenizer, "vocabulary": 300}):
        with pytest.raises(ValueError, match="either the tokenizer .* or the number"):
            import_rest(tmp_path / "a.idx", tmp_path / "t", progress=False, **both)


def test_the_wrong_width_is_named(tmp_path):
    narrow, wide = write_idx(tmp_path / "n.idx", CHUNKS), write_idx(tmp_path / "w.idx", CHUNKS, wide=True)
    with pytest.raises(ValueError, match="tokens of 16 bits, not 32: leave the flag"):
        RestIndex(narrow, wide=True)
    with pytest.raises(ValueError, match="tokens of 32 bits, not 16: pass the flag"):
        RestIndex(wide)


def test_a_file_cut_anywhere_is_refused_unless_a_chunk_ends_there(tmp_path):
    data = write_idx(tmp_path / "a.idx", CHUNKS).read_bytes()
    first_chunk = 8 + 6 * len(CHUNKS[0])
    for length in range(len(data)):
        (tmp_path / "cut.idx").write_bytes(data[:length])
        if length == first_chunk:
            assert len(RestIndex(tmp_path / "cut.idx").chunks) == 1
            continue
        with pytest.raises(ValueError, match="truncated|expected an index"):
            RestIndex(tmp_path / "cut.idx")


def test_other_files_are_refused(tmp_path):
    (tmp_path / "text").write_bytes(np.arange(2000, dtype=np.uint16).tobytes())
    with pytest.raises(ValueError, match="truncated, or no index of REST|is no index of REST"):
        RestIndex(tmp_path / "text")
    with pytest.raises(FileNotFoundError, match="no file"):
        RestIndex(tmp_path / "none.idx")
    with pytest.raises(ValueError, match="token id 9, outside the vocabulary of 9"):
        datastores.import_rest(write_idx(tmp_path / "a.idx", CHUNKS), tmp_path / "s", vocabulary=9, progress=False)
    assert not (tmp_path / "s").exists() and not (tmp_path / "s.partial").exists()
