"""Building stores of shards: the same bytes wherever and however often."""

import json
import sys
from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path

import numpy as np
import pytest

from specdec_lib import datastores
from specdec_lib.__main__ import main
from specdec_lib.commands.datastore import Texts
from specdec_lib.datastores import StoreError, ray_data, states
from specdec_lib.datastores.sharded import ShardedStore
from specdec_lib.datastores.sharded_build import ShardJob, build_here, build_sharded, build_sharded_dense
from specdec_lib.drafters import Rest

TEXTS = [f"def f{i}(x):\n    return x + {i}\n" for i in range(9)]


def parts(count: int) -> list[list[str]]:
    return [TEXTS[len(TEXTS) * i // count : len(TEXTS) * (i + 1) // count] for i in range(count)]


def lines(path: Path, texts: list[str]) -> Path:
    """A file of texts, an object a line."""
    path.write_text("".join(json.dumps({"text": text}) + "\n" for text in texts), encoding="utf-8")
    return path


def contents(folder: Path) -> dict[str, bytes]:
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_the_parts_of_files_are_all_documents_once_and_in_order(tmp_path):
    plain = tmp_path / "c.txt"
    plain.write_text("one document\n")
    long = ["é" * 40, "short", "", "x" * 300]
    texts = Texts([plain], [lines(tmp_path / "a.jsonl", TEXTS[:4]), lines(tmp_path / "b.jsonl", long)], "text")
    whole = list(texts)
    assert len(whole) == 9
    for count in (1, 2, 3, 7, 40):
        assert [text for part in texts.split(count) for text in part] == whole
    for part in texts.split(3):
        for pieces in (part.split(4), part.pieces()):
            assert [text for piece in pieces for text in piece] == list(part)
    even = Texts([], [lines(tmp_path / "even.jsonl", ["ten letters"] * 60)], "text")
    assert [len(list(part)) for part in even.split(4)] == [15] * 4


def rows(documents: list, tokenizer) -> Iterator[ray_data.Row]:
    """What the stream of Ray Data yields, made here."""
    work = ray_data.ReadAndTokenize(list(enumerate(documents)), tokenizer)
    return (ray_data.Row(**row) for number in range(len(documents)) for row in work({"id": number}))


def jobs(folder: Path, tokenizer, max_tokens: int | None = None) -> list[ShardJob]:
    options = {"max_tokens": max_tokens}
    return [ShardJob(folder / f"shard-{i:05d}", part, tokenizer, options) for i, part in enumerate(parts(3))]


@pytest.mark.parametrize("max_tokens", [None, 30])
def test_shards_of_a_stream_have_the_bytes_of_shards_built_here(tmp_path, tokenizer, max_tokens):
    here, streamed = (jobs(tmp_path / name, tokenizer, max_tokens) for name in ("here", "there"))
    list(build_here(here))
    for store in ray_data.write_from(rows([job.documents for job in streamed], tokenizer), streamed):
        ray_data.sort_shard(store.path)
    assert contents(tmp_path / "here") == contents(tmp_path / "there")
    assert (max_tokens is None) == (len(store) == 3)


def test_what_is_wrong_with_documents_is_named_with_their_shard_here_and_in_a_stream(tmp_path, tokenizer):
    path = tmp_path / "a.jsonl"
    path.write_text('{"text": "good"}\n' * 10 + "{bad\n")
    with pytest.raises(ValueError, match=r"a.jsonl, line \d+ after byte \d+: is not JSON"):
        list(Texts([], [path], "text").split(2)[1])
    for documents, words in (
        (
            [TEXTS[:2], ["good text", "half \ud800"]],
            "shard-00001: .*begins with 'half .* has half of a surrogate pair as its character 6",
        ),
        ([TEXTS[:2], [], TEXTS[2:]], "shard-00001: .*corpus is empty.* ask for fewer shards"),
        ([], "there are no parts"),
    ):
        with pytest.raises(ValueError, match=words):
            build_sharded(tmp_path / "here", documents, tokenizer, progress=False)
        with pytest.raises(ValueError, match=words) if documents else nullcontext():
            list(ray_data.write_from(rows(documents, tokenizer), jobs(tmp_path / "there", tokenizer)[: len(documents)]))


def test_shards_built_twice_or_after_an_interruption_have_the_same_bytes(tmp_path, tokenizer):
    build_sharded(tmp_path / "a", parts(3), tokenizer, progress=False)

    def stops(missing):
        for job, folder in zip(missing, build_here(missing), strict=True):
            if job.folder.name == "shard-00001":
                raise KeyboardInterrupt
            yield folder

    with pytest.raises(KeyboardInterrupt):
        build_sharded(tmp_path / "b", parts(3), tokenizer, progress=False, build=stops)
    with pytest.raises(StoreError, match="no datastore|is not built yet"):
        Rest(tmp_path / "b")
    known = []
    noting = lambda jobs: known.extend(jobs) or build_here(jobs)  # noqa: E731
    build_sharded(tmp_path / "b", parts(3), tokenizer, progress=False, build=noting)
    assert [job.folder.name for job in known] == ["shard-00002"]
    build_sharded(tmp_path / "b", parts(3), tokenizer, progress=False, build=lambda jobs: pytest.fail("built again"))
    assert contents(tmp_path / "a") == contents(tmp_path / "b")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a", "b"]
    for shard in datastores.open_suffix_index(tmp_path / "b").shards:
        shard.verify()


def test_an_interrupted_build_of_something_else_begins_again_and_another_store_is_left_as_it_is(tmp_path, tokenizer):
    with pytest.raises(ZeroDivisionError):
        build_sharded(tmp_path / "a", parts(2), tokenizer, progress=False, build=lambda jobs: 1 / 0)
    build_sharded(tmp_path / "a", parts(3), tokenizer, progress=False)
    assert len(datastores.open_suffix_index(tmp_path / "a").shards) == 3
    before = contents(tmp_path / "a")
    with pytest.raises(StoreError, match="holds another store of shards"):
        build_sharded(tmp_path / "a", parts(2), tokenizer, progress=False)
    assert contents(tmp_path / "a") == before


def test_other_texts_are_another_store_also_after_an_interruption(tmp_path, tokenizer):
    build = lambda texts, **options: build_sharded(tmp_path / "a", texts, tokenizer, progress=False, **options)  # noqa: E731
    other = [[text.replace("x", "y") for text in part] for part in parts(2)]

    def stops(missing):
        yield next(build_here(missing))
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        build(parts(2), build=stops)
    build(other)
    texts = [tokenizer.decode(shard.document(0)) for shard in ShardedStore.open(tmp_path / "a").shards()]
    assert texts == [part[0] for part in other]
    before = contents(tmp_path / "a")
    build([tuple(part) for part in other], build=lambda missing: pytest.fail("built again"))
    for wrong in (
        parts(2),
        [iter(part) for part in other],
        [other[0], other[1][:-1]],
        [other[0], [*other[1], "more text"]],
    ):
        with pytest.raises(StoreError, match="holds another store of shards"):
            build(wrong)
    assert contents(tmp_path / "a") == before


def test_the_same_files_with_another_field_are_other_texts(tmp_path, capsys):
    path = tmp_path / "a.jsonl"
    path.write_text("".join(json.dumps({"text": text, "other": f"# {text}"}) + "\n" for text in TEXTS))
    words = ["datastore", "build", str(tmp_path / "s"), str(path), "--tokenizer", "pocket", "--shards", "2"]
    assert main(words) == main(words) == 0 and main([*words, "--field", "other"]) == 2
    assert "holds another store of shards" in capsys.readouterr().err


def test_new_indexes_of_all_shards_count_at_once(tmp_path, tokenizer):
    path, seen = tmp_path / "a", []
    build_sharded(path, parts(3), tokenizer, progress=False)

    def embed(store, place, replace):
        def compute(batch):
            return [np.cumsum(tokens)[:, None] % np.arange(3, 9) + 0.5 for tokens in batch]

        return states.write_states(place, store, compute, 6, progress=False, replace=replace)

    def each(work, jobs):
        for job in jobs:
            yield work(job)
            if seen:
                seen.append(datastores.open_dense_index(path).shards[0].dims)

    for dims in (2, 3, 4):
        build_sharded_dense(path, embed, dims=dims, each=each, progress=False)
        assert set(seen[1:]) <= {dims - 1}  # all of the old ones, until the new ones are finished
        seen = [None]
        index = datastores.open_dense_index(path)
        assert [shard.dims for shard in index.shards] == [dims] * 3
        assert len([folder for folder in path.glob("*/dense*") if folder.is_dir()]) == 3 and not list(
            path.glob("*states")
        )
        for shard in index.shards:
            shard.verify()


def test_the_command_builds_describes_and_verifies_shards(tmp_path, capsys):
    path, store = lines(tmp_path / "a.jsonl", TEXTS), str(tmp_path / "store")
    assert main(["datastore", "build", store, str(path), "--tokenizer", "pocket", "--shards", "3"]) == 0
    built = capsys.readouterr().out
    assert "shards              3" in built and "in 9 documents" in built
    assert main(["datastore", "dense", store, "--model", "pocket", "--dims", "4", "--device", "cpu"]) == 0
    assert capsys.readouterr().out == built
    assert main(["datastore", "info", store]) == 0 and capsys.readouterr().out == built
    assert main(["datastore", "verify", store, "--tokenizer", "pocket"]) == 0
    index = datastores.open_dense_index(store)
    assert len(index.shards) == 3 and not list(Path(store).glob("*.states"))


def test_without_ray_the_error_names_the_extra(monkeypatch, tmp_path, capsys):
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(ImportError, match=r"need Ray Data.*pip install 'specdec-lib\[ray\]'"), ray_data.started():
        pass
    (tmp_path / "a.txt").write_text("text of a document")
    words = ["datastore", "build", str(tmp_path / "s"), str(tmp_path / "a.txt"), "--tokenizer", "pocket"]
    assert main([*words, "--shards", "1", "--on", "ray"]) == 2
    assert "specdec-lib[ray]" in capsys.readouterr().err and not (tmp_path / "s").exists()
