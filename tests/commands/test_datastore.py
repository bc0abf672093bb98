"""The command ``datastore``: what it builds, prints and refuses."""

from __future__ import annotations

import gzip
import json
import sys

import pytest

from specdec_lib.__main__ import main
from specdec_lib.commands.datastore import Texts, load_tokenizer
from specdec_lib.datastores import DenseIndex, SuffixIndex, TokenStore
from specdec_lib.datastores.states import States
from specdec_lib.models import embedding



@pytest.fixture
def inputs(tmp_path):
    (tmp_path / "a.txt").write_text("def f(x):\n    return x\n")
    with gzip.open(tmp_path / "b.jsonl.gz", "wt") as file:
        file.write('{"output": "first answer"}\n\n{"output": "second answer"}\n')
    return tmp_path


def test_build_info_and_verify_of_a_store_of_texts(inputs, capsys):
    path = inputs / "store"
    words = [
        "datastore",
        "build",
        str(path),
        "--text",
        str(inputs / "a.txt"),
        "--jsonl",
        str(inputs / "b.jsonl.gz"),
        "--field",
        "output",
    ]
    assert main(words) == 0
    built = capsys.readouterr().out
    store, tokenizer = TokenStore.open(path), load_tokenizer("pocket")
    assert [tokenizer.decode(store.document(i)) for i in range(3)] == [
        "def f(x):\n    return x\n",
        "first answer",
        "second answer",
    ]
    assert [source["name"] for source in store.manifest["sources"]] == ["a.txt", "b.jsonl.gz"]
    assert main(["datastore", "info", str(path), "--tokenizer", "pocket"]) == 0
    assert capsys.readouterr().out == built
    assert f"{store.count:,} in 3 documents" in built
    assert f"{len(SuffixIndex.open(store).suffixes):,} entries" in built
    assert main(["datastore", "verify", str(path)]) == 0
    data = bytearray((path / "suffix_array.npy").read_bytes())
    data[-1] ^= 1
    (path / "suffix_array.npy").write_bytes(data)
    assert main(["datastore", "verify", str(path)]) == 2
    assert "was altered" in capsys.readouterr().err


def test_import_of_an_index_of_rest(tmp_path, capsys):
    source = write_idx(tmp_path / "a.idx", CHUNKS, wide=True)
    assert (
        main(
            [
                "datastore",
                "import-rest",
                str(source),
                str(tmp_path / "s"),
                "--vocabulary",
                "10",
                "--u32",
                "--starts-with",
                "1",
            ]
        )
        == 0
    )
    assert "11 in 3 documents" in capsys.readouterr().out
    assert main(["datastore", "import-rest", str(source), str(tmp_path / "t"), "--vocabulary", "10"]) == 2
    assert "pass the flag for 32-bit tokens" in capsys.readouterr().err


@pytest.mark.parametrize(
    "words, message",
    [
        (["build", "{}/s"], "no documents are named"),
        (["build", "{}/s", "--text", "{}/none.txt"], "no file"),
        (["build", "{}/s", "--jsonl", "{}/b.jsonl.gz"], "b.jsonl.gz, line 1: has no text in a field 'text'"),
        (["build", "{}/s", "--jsonl", "{}/bytes"], "bytes, line 1: is not UTF-8 text"),
        (["build", "{}/s", "--jsonl", "{}/cut.gz", "--field", "output"], "cut.gz: cannot be unpacked"),
        (["build", "{}/s", "--text", "{}/b.jsonl.gz", "{}/bytes"], "bytes is no text in UTF-8"),
        (["build", "{}/s", "--text", "{}/cut.gz"], "cut.gz: cannot be unpacked"),
        (["build", "{}/s", "--text", "{}/a.txt", "--tokenizer", "{}/none"], "no tokenizer can be loaded"),
        (["build", "{}/s", "--text", "{}/a.txt", "--max-tokens", "1"], "the corpus is empty"),
        (["info", "{}/s"], "no datastore at"),
        (["import-rest", "{}/a.txt", "{}/s", "--vocabulary", "10"], "no index of REST"),
    ],
)
def test_errors_are_one_sentence_and_leave_nothing(inputs, capsys, words, message):
    (inputs / "bytes").write_bytes(b"\xff\xfe\xfd")
    (inputs / "cut.gz").write_bytes((inputs / "b.jsonl.gz").read_bytes()[:-12])
    assert main(["datastore", *(word.format(inputs) for word in words)]) == 2
    error = capsys.readouterr().err
    assert message in error and "Traceback" not in error
    assert not list(inputs.glob("s*"))


def test_a_side_of_the_standard_library_is_read_again_with_each_iteration():
    texts = Texts("heldout", [], [], "text")
    assert list(texts) == list(texts) and len(list(texts)) > 5
    assert json.dumps(texts.sources())


SMALL = ["--max-states", "120", "--dims", "8", "--window", "64", "--device", "cpu"]


def test_build_info_and_verify_of_a_store_with_a_dense_index(inputs, capsys):
    path = inputs / "store"
    words = [
        "build",
        str(path),
        "--text",
        str(inputs / "a.txt"),
        "--jsonl",
        str(inputs / "b.jsonl.gz"),
        "--field",
        "output",
    ]
    assert main(["datastore", *words, "--dense", *SMALL]) == 0
    built = capsys.readouterr().out
    index = DenseIndex.open(path, device="cpu", tokenizer=load_tokenizer("pocket"))
    assert f"dense index         {len(index):,} states, 320 values in 8" in built
    # The last token of each document has no state: nothing follows it.
    assert len(index) == index.store.count - len(index.store)
    assert main(["datastore", "info", str(path)]) == 0
    assert capsys.readouterr().out == built
    assert main(["datastore", "verify", str(path)]) == 0
    data = bytearray((index.path / "index.faiss").read_bytes())
    data[-1] ^= 1
    (index.path / "index.faiss").write_bytes(data)
    assert main(["datastore", "verify", str(path)]) == 2
    assert "index.faiss was altered" in capsys.readouterr().err
    assert main(["datastore", "dense", str(path), *SMALL, "--factory", "HNSW4", "--keep-states"]) == 0
    assert "HNSW4" in capsys.readouterr().out
    assert sorted(p.name for p in inputs.glob("store*")) == ["store", "store.states"]


@pytest.mark.parametrize("asked, overlap", [([], 8), (["--overlap", "0"], 0)])
def test_short_windows_cover_a_longer_document_and_overlap_by_a_quarter_or_as_asked(inputs, asked, overlap):
    path = inputs / "store"
    (inputs / "long.txt").write_text("\n".join(f"value_{i} = {i}" for i in range(60)))
    assert (
        main(
            [
                "datastore",
                "build",
                str(path),
                "--text",
                str(inputs / "long.txt"),
                "--dense",
                "--window",
                "32",
                "--cover",
                "windows",
                *asked,
                "--dims",
                "8",
                "--device",
                "cpu",
                "--keep-states",
            ]
        )
        == 0
    )
    states, store = States.open(inputs / "store.states"), TokenStore.open(path)
    assert states.manifest["overlap"] == overlap
    assert len(states) == store.count - 1 > 200


@pytest.mark.parametrize(
    "words, message",
    [
        (["dense", "{}/none"], "no datastore at"),
        (["dense", "{}/store", "--window", "64", "--cover", "windows", "--overlap", "64"], "overlap is 64; expected"),
        (["dense", "{}/store", "--factory", "Nope"], "factory is 'Nope'; expected a factory string of FAISS"),
        (["dense", "{}/store", "--model", "{}/none"], "no model in"),
        (["dense", "{}/store", "--window", "4096"], "window is 4096 with a prefix of 0, the model's context"),
        (["dense", "{}/store", "--device", "abacus"], "device is 'abacus'"),
    ],
)
def test_errors_of_the_dense_index_are_one_sentence_and_leave_the_store(inputs, capsys, words, message):
    assert main(["datastore", "build", str(inputs / "store"), "--text", str(inputs / "a.txt")]) == 0
    assert main(["datastore", *(word.format(inputs) for word in words)]) == 2
    error = capsys.readouterr().err
    assert message in error and "Traceback" not in error
    assert [p.name for p in inputs.glob("store*")] == ["store"]
    TokenStore.open(inputs / "store").verify()


@pytest.mark.parametrize(
    "words, message",
    [
        (["--nprobe", "8"], "nprobe is given for an index that has none"),
        (["--factory", "IVF4,Flat", "--ef-search", "8"], "ef_search is given for an index that has none"),
        (["--dims", "512"], "dims is 512; expected a whole number from 1 to the states' width, 320"),
        (["--factory", "Nope"], "factory is 'Nope'"),
    ],
)
def test_a_wrong_word_about_the_index_is_told_before_any_text_is_read(inputs, capsys, monkeypatch, words, message):
    def too_late(*args, **kwargs):
        pytest.fail("told too late")

    monkeypatch.setattr(embedding, "embed_store", too_late)
    monkeypatch.setattr(Texts, "__iter__", too_late)
    assert main(["datastore", "build", str(inputs / "store"), "--text", str(inputs / "a.txt"), "--dense", *words]) == 2
    assert message in capsys.readouterr().err
    assert not list(inputs.glob("store*"))


def test_the_same_build_with_or_without_its_dense_index_is_done_again_and_keeps_it(inputs, capsys):
    path, words = inputs / "store", ["datastore", "build", str(inputs / "store"), "--text", str(inputs / "a.txt")]
    assert main([*words, "--dense", *SMALL]) == main([*words, "--dense", *SMALL, "--dims", "6"]) == 0
    assert main(words) == 0
    assert DenseIndex.open(path, device="cpu").dims == 6
    capsys.readouterr()
    (inputs / "a.txt").write_text("something else\n")
    assert main(words) == 2
    assert "dense index is not of the tokens that were built now" in capsys.readouterr().err
    assert main(["datastore", "verify", str(path)]) == 0


def test_a_missing_faiss_is_told_without_a_traceback(inputs, capsys, monkeypatch):
    path = inputs / "store"
    assert main(["datastore", "build", str(path), "--text", str(inputs / "a.txt"), "--dense", *SMALL]) == 0
    monkeypatch.setitem(sys.modules, "faiss", None)
    for words in (["verify", str(path)], ["dense", str(path), *SMALL]):
        assert main(["datastore", *words]) == 2
        assert "install the extra 'cpu' or 'gpu', never both" in capsys.readouterr().err


def test_a_models_own_responses_become_a_store_and_are_not_asked_for_twice(tmp_path, capsys):
    words = [
        "datastore",
        "respond",
        str(tmp_path / "own"),
        "--dtype",
        "float32",
        "--task",
        "replace-word",
        "code-completion",
        "--count",
        "2",
        "--samples",
        "2",
        "--temperature",
        "0.7",
        "--top-p",
        "0.95",
        "--max-new-tokens",
        "6",
    ]
    assert main(words) == 0
    assert "suffix array" in capsys.readouterr().out
    store = TokenStore.open(tmp_path / "own")
    assert len(store) == 8 and store.manifest["sources"][0]["samples"] == 2
    kept = tmp_path / "own.responses.jsonl"
    before = kept.stat().st_mtime_ns
    assert main(words) == 0 and kept.stat().st_mtime_ns == before
    assert main([*words[:-2], "--max-new-tokens", "7"]) == 2
    assert "other settings" in capsys.readouterr().err


def test_several_greedy_responses_are_refused(tmp_path, capsys):
    assert main(["datastore", "respond", str(tmp_path / "own"), "--count", "1", "--samples", "3"]) == 2
    assert "greedy responses to one prompt are all the same" in capsys.readouterr().err
    assert not list(tmp_path.iterdir())
