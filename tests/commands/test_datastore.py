"""The command ``datastore``: what it builds, prints and refuses."""

import gzip
import shutil

import pytest

from specdec_lib.__main__ import main
from specdec_lib.commands import datastore
from specdec_lib.commands.datastore import load_tokenizer
from specdec_lib.datastores import DenseIndex, SuffixIndex, TokenStore, build_tokens
from specdec_lib.datastores.states import States
from specdec_lib.models import embedding, loading

SMALL = ["--max-states", "120", "--dims", "8", "--window", "64", "--device", "cpu"]
DENSE = ["dense", "{}/store"]


@pytest.fixture
def inputs(tmp_path):
    (tmp_path / "a.txt").write_text("def f(x):\n    return x\n")
    (tmp_path / "b.jsonl.gz").symlink_to("blob")  # as in the cache of the hub
    with gzip.open(tmp_path / "blob", "wt") as file:
        file.write('{"output": "first answer"}\n\n{"output": "second answer"}\n')
    return tmp_path


def run(command, *words) -> int:
    own = {"build": ["--tokenizer", "pocket"], "dense": ["--model", "pocket"]}.get(command, [])
    return main(["datastore", command, *own, *map(str, words)])


def test_a_store_and_its_dense_index_are_built_described_and_verified(inputs, capsys):
    path = inputs / "store"
    assert run("build", path, inputs / "a.txt", inputs / "b.jsonl.gz", "--field", "output") == 0
    built = capsys.readouterr().out
    store, tokenizer = TokenStore.open(path), load_tokenizer("pocket")
    expected = ["def f(x):\n    return x\n", "first answer", "second answer"]
    assert [tokenizer.decode(store.document(i)) for i in range(3)] == expected
    assert [source["name"] for source in store.manifest["sources"]] == ["a.txt", "b.jsonl.gz"]
    assert run("info", path, "--tokenizer", "pocket") == 0 and capsys.readouterr().out == built
    assert f"{store.count:,} in 3 documents" in built
    assert f"{len(SuffixIndex.open(store).suffixes):,} entries" in built
    assert run("verify", path) == 0
    assert run("dense", path, *SMALL) == 0
    built = capsys.readouterr().out
    index = DenseIndex.open(path)
    assert f"dense index         {len(index):,} states, 320 values in 8" in built
    assert len(index) == index.store.count - len(index.store)  # nothing follows a document's last token
    assert run("info", path) == 0 and capsys.readouterr().out == built[built.index("\ntokens", 1) + 1 :]
    assert run("verify", path) == 0
    shutil.copytree(path, inputs / "store.old")  # a copy of one's own stays
    assert run("dense", path, *SMALL, "--factory", "HNSW4", "--keep-states") == 0
    assert "HNSW4" in capsys.readouterr().out
    assert sorted(p.name for p in inputs.glob("store*")) == ["store", "store.old", "store.states"]


@pytest.mark.parametrize("words, message", [
    (["build", "{}/s"], "Missing argument 'FILES...'"),
    (["build", "{}/s", "{}/none.txt"], "no file"),
    (["build", "{}/s", "{}"], "is a folder: name its files"),
    (["build", "{}/s", "{}/b.jsonl.gz"], "b.jsonl.gz, line 1: has no text in a field 'text'"),
    (["build", "{}/s", "{}/bytes.jsonl"], "bytes.jsonl, line 1: is not UTF-8 text"),
    (["build", "{}/s", "{}/deep.jsonl"], "deep.jsonl, line 2: is nested too deeply to be read"),
    (["build", "{}/s", "{}/digits.jsonl"], "digits.jsonl, line 1: cannot be read"),
    (["build", "{}/s", "{}/cut.jsonl.gz", "--field", "output"], "cut.jsonl.gz: cannot be unpacked"),
    (["build", "{}/s", "{}/a.txt", "{}/bytes"], "bytes is no text in UTF-8"),
    (["build", "{}/s", "{}/cut.gz"], "cut.gz: cannot be unpacked"),
    (["build", "{}/s", "{}/a.txt", "--tokenizer", "{}/none"], "no tokenizer can be loaded"),
    (["build", "{}/s", "{}/a.txt", "--max-tokens", "1"], "the corpus is empty"),
    (["build", "{}/s", "{}/empty.txt"], "the corpus is empty"),
    (["build", "{}/s", "{}/a.txt", "--shards", "0"], "--shards is 0; expected their number, 1 or more"),
    (["build", "{}/s", "{}/a.txt", "--shards", "2"], "shard-00001: the corpus is empty"),
    (["build", "{}/s", "{}/a.txt", "--on", "ray"], "--on ray works on shards"),
    (["build", "{}/bytes", "{}/a.txt"], "bytes exists and is no datastore"),
    (["build", "{}/bytes/s", "{}/a.txt"], "cannot be written (part of it is a file"),
    (["build", "{}", "{}/a.txt"], "which the new store replaces: move it, or name another folder"),
    (["info", "{}/s"], "no datastore at"),
    (["dense", "{}/s"], "no datastore at"),
    ([*DENSE, "--nprobe", "8"], "nprobe is given for an index that has none"),
    ([*DENSE, "--factory", "IVF4,Flat", "--ef-search", "8"], "ef_search is given for an index that has none"),
    ([*DENSE, "--dims", "512"], "dims is 512; expected a whole number from 1 to the states' width, 320"),
    ([*DENSE, "--factory", "IVF9999,Flat"], "with 9999 lists, for "),
    ([*DENSE, "--factory", "Nope"], "factory is 'Nope'; expected a factory string of FAISS"),
    ([*DENSE, "--window", "64", "--cover", "windows", "--overlap", "64"], "overlap is 64; expected"),
    ([*DENSE, "--window", "4096"], "window is 4096, the model's context"),
    ([*DENSE, "--max-states", "0"], "0; expected 1 or more"),
    ([*DENSE, "--dtype", "int3"], "dtype is 'int3'; expected"),
    ([*DENSE, "--model", "{}/none"], "no model in"),
    ([*DENSE, "--device", "abacus"], "device is 'abacus'"),
])  # fmt: skip
def test_errors_are_one_sentence_before_a_model_is_loaded_and_leave_nothing(
    inputs, capsys, monkeypatch, words, message
):
    datastore._load_model.cache_clear()
    loaded = loading.AutoModelForCausalLM
    monkeypatch.setattr(loaded, "from_pretrained", lambda *_, **__: pytest.fail("a model is loaded"))
    assert run("build", inputs / "store", inputs / "a.txt") == 0
    for name in ("bytes", "bytes.jsonl"):
        (inputs / name).write_bytes(b"\xff\xfe\xfd")
    (inputs / "empty.txt").write_text("")
    (inputs / "digits.jsonl").write_text('{"text": "good text", "number": ' + "1" * 5000 + "}\n")
    (inputs / "deep.jsonl").write_text('{"text": "good text"}\n{"text": ' + "[" * 10**5 + "]" * 10**5 + "}\n")
    for name in ("cut.gz", "cut.jsonl.gz"):
        (inputs / name).write_bytes((inputs / "b.jsonl.gz").read_bytes()[:-12])
    assert run(*(word.format(inputs) for word in words)) == 2
    error = capsys.readouterr().err
    assert message in error and "Traceback" not in error
    assert not list(inputs.glob("s")) and (inputs / "a.txt").is_file()
    assert [p.name for p in inputs.glob("store*")] == ["store"]


def test_short_windows_cover_a_longer_document_and_overlap_by_a_quarter_or_as_asked(inputs):
    path = inputs / "store"
    (inputs / "long.txt").write_text("\n".join(f"value_{i} = {i}" for i in range(60)))
    assert run("build", path, inputs / "long.txt") == 0
    for asked, overlap in (([], 8), (["--overlap", "0"], 0)):
        window = ["--window", "32", "--cover", "windows", *asked]
        assert run("dense", path, *window, "--dims", "8", "--device", "cpu", "--keep-states") == 0
        states = States.open(inputs / "store.states")
        assert states.manifest["overlap"] == overlap and len(states) == TokenStore.open(path).count - 1 > 200
        states.path.rename(inputs / f"kept-{overlap}")


def test_states_that_were_kept_stay_and_are_used_where_they_are_those_that_are_asked_for(inputs, monkeypatch, capsys):
    path, kept = inputs / "store", inputs / "store.states"
    assert run("build", path, inputs / "a.txt") == 0 and run("dense", path, *SMALL, "--keep-states") == 0
    known = {each: each.read_bytes() for each in kept.iterdir()}
    with monkeypatch.context() as patched:
        patched.setattr(embedding, "last_states", lambda *_, **__: pytest.fail("embedded again"))
        assert run("dense", path, *SMALL) == run("dense", path, *SMALL, "--keep-states") == 0
    other = [*SMALL, "--dtype", "bfloat16"]
    assert run("dense", path, *other) == 0
    assert DenseIndex.open(path).manifest["states"]["compute"] == "model (torch.bfloat16)"
    capsys.readouterr()
    assert run("dense", path, *other, "--keep-states") == 2
    assert "store.states holds other states" in capsys.readouterr().err
    assert {each: each.read_bytes() for each in kept.iterdir()} == known
    assert sorted(each.name for each in inputs.glob("store*")) == ["store", "store.states"]


def test_names_in_a_store_do_not_steer_the_terminal(inputs, capsys):
    path, name = inputs / "store", "a\x1b]0;owned\x07\x1b[2J\u202e.txt"
    build_tokens(path, [[1, 2, 3]], 10, progress=False, sources=[{"name": name}], fingerprint="\x1b[2Jx")
    assert run("info", path) == 0
    assert run("info", inputs / "none\x1b[2J") == 2
    said = "".join(capsys.readouterr())
    assert "\x1b" not in said and "\u202e" not in said and r"a\x1b]0;owned\x07\x1b[2J\u202e.txt" in said


@pytest.mark.parametrize("shards", [[], ["--shards", "2"]])
def test_a_folder_of_an_app_is_not_taken_for_a_store(inputs, capsys, shards):
    app = inputs / "app"
    (app / ".git").mkdir(parents=True)
    for name in ("manifest.json", "shards.json"):
        (app / name).write_text('{"name": "my extension", "manifest_version": 3}')
    before = sorted(inputs.rglob("*"))
    assert run("build", app, inputs / "a.txt", *shards) == 2
    assert "exists and is no" in capsys.readouterr().err and sorted(inputs.rglob("*")) == before


def test_an_index_that_could_not_be_written_is_made_from_the_states_that_are_there(inputs, monkeypatch):
    path = inputs / "store"
    assert run("build", path, inputs / "a.txt") == 0
    with monkeypatch.context() as patched, pytest.raises(KeyError):
        patched.setattr(datastore.datastores, "build_dense_index", lambda *_, **__: {}["killed"])
        run("dense", path, *SMALL)
    monkeypatch.setattr(embedding, "last_states", lambda *_, **__: pytest.fail("embedded again"))
    assert run("dense", path, *SMALL) == 0
    assert [p.name for p in inputs.glob("store*")] == ["store"]
