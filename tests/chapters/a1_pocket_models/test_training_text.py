"""The text that the pocket models are trained on: what a package gives, and what is left out of it."""

from __future__ import annotations

import gzip
import io
import json
import tarfile
import zipfile

import numpy as np
import pytest
import yaml
from transformers import PreTrainedTokenizerFast

from specdec_lib import paths
from specdec_lib.chapters.a1_pocket_models import training_text
from specdec_lib.chapters.a1_pocket_models.training_text import Corpus, Package
from specdec_lib.experiments.corpus import Module

LIST = {
    "train": [{"name": "first", "version": "1.0", "licence": "MIT"}],
    "heldout": [{"name": "Held-Out", "version": "2.1", "licence": "GPL-3.0 or Apache-2.0", "archive": "sdist"}],
    "chat": [],
    "suffixes": [".py", ".md"],
    "largest_file": 5000,
    "package_bytes": 6000,
}


def corpus_of(folder, **changes) -> Corpus:
    file = folder / "corpus.yml"
    file.write_text(yaml.safe_dump(LIST | changes), encoding="utf-8")
    return Corpus.read(file)


def code(name: str, lines: int = 12) -> str:
    """A module with lines of its own, long enough that three of them are told from any other three."""
    return "".join(f"    {name}_value_of_line_{i} = compute_something_from({name}, {i})\n" for i in range(lines))


def write_wheel(folder, stem: str, files: dict[str, str | bytes]) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    with zipfile.ZipFile(folder / f"{stem}-py3-none-any.whl", "w") as archive:
        for name, content in files.items():
            archive.writestr(name, content)


def write_sdist(folder, stem: str, files: dict[str, str]) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    with tarfile.open(folder / f"{stem}.tar.gz", "w:gz") as archive:
        for name, content in files.items():
            entry = tarfile.TarInfo(f"{stem}/{name}")
            entry.size = len(content.encode())
            archive.addfile(entry, io.BytesIO(content.encode()))


def test_the_list_of_the_repository_is_sound_and_takes_nothing_twice():
    corpus = Corpus.read()
    names = [package.name for package in (*corpus.train, *corpus.heldout)]
    assert len(names) > 10 and len(set(names)) == len(names)


def test_a_licence_that_cannot_be_passed_on_is_refused(tmp_path):
    assert corpus_of(tmp_path).heldout[0].licence == "GPL-3.0 or Apache-2.0"  # one of the two may be chosen
    with pytest.raises(ValueError, match="corpus.yml: first has the licence 'GPL-3.0'; expected one of MIT, "):
        corpus_of(tmp_path, train=[{"name": "first", "version": "1.0", "licence": "GPL-3.0"}])


def test_a_package_is_trained_on_or_held_out_and_not_both(tmp_path):
    both = {"name": "held-out", "version": "2.0", "licence": "MIT"}
    with pytest.raises(ValueError, match="held-out is named twice; a package is trained on or held out"):
        corpus_of(tmp_path, train=[both])


def test_readable_files_of_a_wheel_are_taken_and_others_left(tmp_path):
    good = code("first")
    write_wheel(
        tmp_path,
        "first-1.0",
        {
            "first/good.py": good,
            "first/windows.md": good.replace("first", "second").replace("\n", "\r\n"),
            "first/short.py": "x = 1\n",
            "first/long.py": code("long", 200),
            "first/data.json": good,
            "first-1.0.dist-info/notes.md": good,
            "first/latin.py": b"\xe9" + good.encode(),
            "first/numbers.py": "1.25, 3.75, 8.125, 9.5,\n" * 40,
        },
    )
    modules = training_text.package_files(LISTED, corpus_of(tmp_path), tmp_path)
    texts = {module.name: module.text for module in modules}
    assert texts == {"first/first/good.py": good, "first/first/windows.md": good.replace("first", "second")}


LISTED = Package("first", "1.0", "MIT")


def test_a_package_gives_so_many_bytes_in_the_same_order_for_everyone(tmp_path):
    files = {f"first/m{i}.py": code(f"m{i}") for i in range(20)}
    whole = corpus_of(tmp_path, package_bytes=10**9)
    write_wheel(tmp_path / "a", "first-1.0", files)
    write_wheel(tmp_path / "b", "first-1.0", dict(reversed(files.items())))
    names, again = (
        [module.name for module in training_text.package_files(LISTED, whole, tmp_path / folder)] for folder in "ab"
    )
    assert names == again and sorted(names) == sorted(f"first/{name}" for name in files) != names
    some = training_text.package_files(LISTED, corpus_of(tmp_path), tmp_path / "a")
    assert [module.name for module in some] == names[: len(some)]
    assert 0 < sum(len(module.text) for module in some) <= 6000 < 20 * len(some[0].text)


def test_an_archive_of_sources_is_read_too_and_a_missing_one_is_named(tmp_path):
    corpus = corpus_of(tmp_path)
    (package,) = corpus.heldout
    with pytest.raises(FileNotFoundError, match="Held-Out 2.1 is not in .*; run make pocket-data"):
        training_text.package_files(package, corpus, tmp_path)
    write_wheel(tmp_path, "held_out-2.1", {"held/a.py": code("wheel")})  # the list asks for the sources
    assert package.find(tmp_path) is None
    write_sdist(tmp_path, "held_out-2.1", {"held/a.py": code("sources"), "Held_Out.egg-info/a.md": code("about")})
    (module,) = training_text.package_files(package, corpus, tmp_path)
    assert module == Module("Held-Out/held_out-2.1/held/a.py", code("sources"))


@pytest.fixture
def small(tmp_path, monkeypatch):
    """A corpus with a package on each side and a standard library of two modules."""
    sides = {
        "train": [Module("std_a", code("std")), Module("std_b", code("std_other", 4))],
        "heldout": [Module("std_held", code("held"))],
    }
    monkeypatch.setattr(training_text, "stdlib_modules", sides.__getitem__)
    archives = tmp_path / "packages"
    write_wheel(
        archives,
        "first-1.0",
        {
            "first/new.py": code("new"),
            "first/copy_of_std.py": code("std") + code("added", 4),  # 13 of its 17 runs of three lines were seen
            "first/little_of_std.py": code("mostly", 12) + code("std", 6),
            "first/held_stdlib.py": code("around") + code("held", 8),  # 6 runs of the held-out library
            "first/held_package.py": code("about") + code("away", 8),  # 6 runs of the held-out package
            "first/held_little.py": code("nearly") + code("held", 6),  # 4 such runs, which idioms may share
        },
    )
    write_sdist(archives, "held_out-2.1", {"held/a.py": code("away")})
    return corpus_of(tmp_path, package_bytes=10**6), archives


def test_near_duplicates_and_held_out_text_are_left_out(small):
    modules = list(training_text.training_modules(*small))
    assert [module.name for module in modules[:2]] == ["std_a", "std_b"]
    assert {module.name for module in modules[2:]} == {
        f"first/first/{name}.py" for name in ("new", "little_of_std", "held_little")
    }


def test_of_two_copies_in_packages_one_is_taken(tmp_path, monkeypatch):
    monkeypatch.setattr(training_text, "stdlib_modules", lambda side: [])
    write_wheel(tmp_path, "first-1.0", {"first/a.py": code("one"), "first/vendored/a.py": code("one")})
    corpus = corpus_of(tmp_path, heldout=[])
    assert len(list(training_text.training_modules(corpus, tmp_path))) == 1


def test_conversations_are_english_and_of_bounded_length(tmp_path):
    rows = [{"q": "What is it?", "a": "A test."}, {"q": "Was ist es?", "a": "Ein Würfel."}, {"q": "x", "a": "y" * 9000}]
    lines = "".join(json.dumps(row) + "\n" for row in rows)
    (tmp_path / "plain.jsonl").write_text(lines)
    with gzip.open(tmp_path / "packed.jsonl.gz", "wt") as file:
        file.write(lines)
    chat = [{"file": name, "fields": ["q", "a"]} for name in ("plain.jsonl", "packed.jsonl.gz")]
    said = "<|user|>What is it?<|assistant|>A test.<|end|>"
    assert training_text.conversations(corpus_of(tmp_path, chat=chat), tmp_path) == [said, said]


def test_conversations_without_a_folder_of_sets_are_refused(tmp_path, monkeypatch):
    monkeypatch.delenv("SPECDEC_DATASETS", raising=False)
    with pytest.raises(FileNotFoundError, match="set SPECDEC_DATASETS"):
        training_text.conversations(corpus_of(tmp_path))


def test_what_was_prepared_is_what_is_opened(small, tmp_path, monkeypatch):
    corpus, _ = small
    monkeypatch.setattr(training_text, "conversations", lambda corpus: ["<|user|>Why?<|assistant|>So.<|end|>"])
    tokenizer = PreTrainedTokenizerFast.from_pretrained(paths.POCKET / "target")
    with pytest.raises(FileNotFoundError, match="holds no prepared corpus; run make pocket-data"):
        training_text.load(tmp_path)
    training_text.prepare(tokenizer, tmp_path, corpus)
    text = training_text.load(tmp_path)
    documents = tokenizer.decode(text.stream).split(tokenizer.eos_token)
    modules = training_text.training_modules(*small)
    # Each document is ended by the end token; the conversation ends with one of its own before it.
    expected = [module.text for module in modules] + ["<|user|>Why?<|assistant|>So.", ""]
    assert sorted(documents) == sorted([*expected, ""]) and text.stream[-1] == tokenizer.eos_token_id
    assert {name: tokenizer.decode(tokens) for name, tokens in text.heldout.items()} == {
        "stdlib": code("held") + tokenizer.eos_token,
        "Held-Out": code("away") + tokenizer.eos_token,
    }
    story = json.loads((tmp_path / "corpus.json").read_text())
    assert story["tokens"] == len(text.stream) and story["fingerprint"] == text.fingerprint
    assert story["packages"] == ["first 1.0"] and story["heldout_packages"] == ["Held-Out 2.1"]
    before = np.array(text.stream)
    training_text.prepare(tokenizer, tmp_path, corpus)
    again = training_text.load(tmp_path)
    assert np.array_equal(again.stream, before) and again.fingerprint == text.fingerprint
