"""Build, describe and verify the stores that drafts are retrieved from."""

from __future__ import annotations

import hashlib
import io
import json
from collections.abc import Iterator, Sequence
from contextlib import nullcontext
from functools import cache, lru_cache, partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from specdec_lib import datastores
from specdec_lib.commands import options
from specdec_lib.datastores import (
    DenseIndex,
    SuffixIndex,
    TokenStore,
    faiss_index,
    ray_data,
    sharded_build,
    suffix_array,
)
from specdec_lib.datastores import build as store_build
from specdec_lib.datastores import dense as dense_index
from specdec_lib.datastores import states as hidden_states
from specdec_lib.datastores.sharded import ShardedStore, dense_slots, is_sharded
from specdec_lib.files import beside, located, named, printable, sha256
from specdec_lib.records import is_json_lines, open_unpacked, packing, read_jsonl

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

app = typer.Typer(help=__doc__, no_args_is_help=True, add_completion=False, pretty_exceptions_enable=False)


class Texts:
    """Documents named on the command line, read as they are needed: text files, and lines of JSON lines files.

    Of each line ``field`` is the text. With ``part`` (number from 0, of how many) all texts, one after another, are cut into
    parts of equally many bytes, and a document is in the part where its first byte is; a packed file is not cut.
    """

    def __init__(self, texts: Sequence[Path], lines: Sequence[Path], field: str, part: tuple[int, int] = (0, 1)):
        self.field, self.part = field, part
        self.texts, self.lines = ([located(path.parent) / path.name for path in some] for some in (texts, lines))
        for path in self.paths:
            if not path.is_file():
                raise FileNotFoundError(f"{path} is a folder: name its files" if path.is_dir() else f"no file {path}")

    @property
    def paths(self) -> list[Path]:
        """All files."""
        return [*self.texts, *self.lines]

    def sources(self) -> list[dict]:
        """The entry of a manifest for each file."""
        about = []
        for kind, some in (("text", self.texts), ("JSON lines", self.lines)):
            for path in some:
                now = path.stat()
                about.append({"name": path.name, "format": kind, "sha256": _sha256(path, now.st_size, now.st_mtime_ns)})
        return about

    @property
    def key(self) -> str:
        """What these documents are known by: the content of the files, the field, and the part of them."""
        content = [(about["format"], about["sha256"]) for about in self.sources()]
        return hashlib.sha256(json.dumps([content, self.field, self.part]).encode()).hexdigest()

    def split(self, count: int) -> list[Texts]:
        """The same documents in ``count`` parts, one after another."""
        at, of = self.part
        return [Texts(self.texts, self.lines, self.field, (at * count + i, of * count)) for i in range(count)]

    def pieces(self) -> list[Texts]:
        """The same documents in parts that one task of Ray Data reads each."""
        return self.split(max(1, -(-self.bytes() // self.part[1] // ray_data.PIECE_BYTES)))

    def bytes(self) -> int:
        """Bytes of all parts together, of packed files as they are packed."""
        return sum(path.stat().st_size for path in self.paths)

    def __iter__(self) -> Iterator[str]:
        (number, count), total, at = self.part, self.bytes(), 0
        begin, end = total * number // count, total * (number + 1) // count
        for path in self.texts:
            if begin <= at < end:
                yield _read_text(path)
            at += path.stat().st_size
        for path in self.lines:
            size = path.stat().st_size
            whole = bool(packing(path))
            if (begin <= at if whole else begin < at + size) and at < end:
                for record in read_jsonl(path) if whole else read_jsonl(path, begin=begin - at, end=end - at):
                    if not isinstance(record.get(self.field), str):
                        raise record.bad(f"has no text in a field {self.field!r}: name it with --field")
                    yield record[self.field]
            at += size


@cache
def _sha256(path: Path, size: int, changed: int) -> str:
    return sha256(path)


def _read_text(path: Path) -> str:
    with open_unpacked(path) as stream:
        try:
            return io.TextIOWrapper(stream, encoding="utf-8-sig").read()
        except UnicodeDecodeError as error:
            raise ValueError(f"{path} is no text in UTF-8: {error}") from None


def load_tokenizer(name: str) -> PreTrainedTokenizerBase:
    """The tokenizer of ``"smollm2"`` or another shipped model, of a directory, of a GGUF file, or of a name on the hub."""
    from specdec_lib.models import loading

    try:
        return loading.load_tokenizer(_expanded(name))
    except (OSError, ValueError) as error:
        raise ValueError(
            f"no tokenizer can be loaded from {name!r} ({str(error).splitlines()[0]}); expected "
            "'smollm2', 'pocket', a directory, a GGUF file or a name on the hub"
        ) from None


def _expanded(name: str) -> str:
    """A model's name; a path from ``~`` on is written out."""
    return str(named(name)) if name.startswith("~") else name


@lru_cache(maxsize=1)
def _load_model(name: str, device: str, dtype: str) -> PreTrainedModel:
    from specdec_lib.models.loading import load_model

    return load_model(_expanded(name), device, dtype)[0]


def _embed(
    store: TokenStore, place: Path, replace: bool, *, model: tuple[str, str, str], how: dict[str, Any]
) -> datastores.States:
    """Embed a store; on a cluster each worker loads the model once."""
    from specdec_lib.models.embedding import embed_store

    return embed_store(_load_model(*model), store, place, replace=replace, **how)


def describe(path: Path) -> str:
    """What a store holds, one fact a line."""
    if is_sharded(path):
        shards = ShardedStore.open(path).shards()
        count, documents = sum(shard.count for shard in shards), sum(map(len, shards))
        known = printable(shards[0].manifest["tokenizer"] or "unknown")
        return "\n".join(
            [
                f"shards              {len(shards)}",
                f"tokens              {count:,} in {documents:,} documents",
                f"vocabulary          {shards[0].vocabulary:,}, tokenizer {known[:12]}",
                *(f"{shard.path.name:20}{shard.count:,} tokens in {len(shard):,} documents" for shard in shards),
            ]
        )
    store = TokenStore.open(path)
    about = store.manifest
    lines = [
        f"tokens              {store.count:,} in {len(store):,} documents ({about['skipped_documents']:,} too short)",
        f"vocabulary          {store.vocabulary:,} ({about['dtype']}), tokenizer {(about['tokenizer'] or 'unknown')[:12]}",
    ]
    if (store.path / suffix_array.MANIFEST).is_file():
        index = SuffixIndex.open(store)
        lines.append(
            f"suffix array        {index.entries:,} entries, {index.bytes_per_token:.2f} bytes a token with the tokens"
        )
    else:
        lines.append("suffix array        none")
    if (store.path / dense_index.FOLDER).is_dir():
        dense = DenseIndex.open(store)
        explained = dense.explained_variance[: dense.dims].sum()
        lines.append(
            f"dense index         {len(dense):,} states, {dense.width} values in {dense.dims} ({explained:.1%} of the "
            f"variance), {dense.manifest['factory']}, {dense.bytes_per_state:.1f} bytes a state, model "
            f"{(dense.manifest['model'] or 'unknown')[:12]}"
        )
    else:
        lines.append("dense index         none: add one with 'python -m specdec_lib datastore dense'")
    lines += [f"source              {', '.join(f'{k} {v}' for k, v in source.items())}" for source in about["sources"]]
    return "\n".join(map(printable, lines))


Store = Annotated[Path, typer.Argument(help="folder of the store, with or without shards")]
Known = Annotated[str | None, typer.Option("--tokenizer", help="check that the tokens are this tokenizer's")]
On = Annotated[Literal["ray"] | None, typer.Option(help="work on the cores and nodes of a Ray cluster (the extra ray)")]
Address = Annotated[str | None, typer.Option(help="address of a running cluster; auto: this machine's")]


@app.command()
def build(
    store: Store,
    named: Annotated[
        list[Path],
        typer.Argument(
            metavar="FILES...", help="texts, or JSON lines if the name has .jsonl or .ndjson; plain, .gz or .zip"
        ),
    ],
    field: Annotated[str | None, typer.Option(help="field of JSON lines that has the text (default: text)")] = None,
    tokenizer: Annotated[str, typer.Option(help="smollm2, pocket, a directory or a name on the hub")] = "smollm2",
    max_tokens: Annotated[int | None, typer.Option(help="stop before the first document that would exceed it")] = None,
    shards: Annotated[int | None, typer.Option(help="number of shards to cut the texts into")] = None,
    on: On = None,
    address: Address = None,
) -> None:
    """Tokenize documents and sort their suffixes; finished shards are kept."""
    path, lines = located(store), [one for one in named if is_json_lines(one)]
    plain = [one for one in named if one not in lines]
    other = [one for one in plain if ".json" in map(str.lower, one.suffixes)]
    if field is not None and (other or not lines):
        raise ValueError(
            f"--field is {field!r}, but {(other or plain)[0]} is read as plain text; name files of JSON lines .jsonl or .ndjson, "
            "or leave --field out"
        )
    texts = Texts(plain, lines, field or "text")
    for source in texts.paths:
        if source.resolve().is_relative_to(path):
            raise ValueError(f"{source} lies in {path}, which the new store replaces: move it, or name another folder")
    if shards is not None and shards < 1:
        raise ValueError(f"--shards is {shards}; expected their number, 1 or more")
    if on and shards is None:
        raise ValueError("--on ray works on shards: give --shards")
    (store_build if shards is None else sharded_build).check_target(path)
    cutter, how = load_tokenizer(tokenizer), {"sources": texts.sources(), "max_tokens": max_tokens}
    if shards is None:
        datastores.build_from_texts(path, texts, cutter, **how)
    else:
        with ray_data.started(address) if on else nullcontext():
            builder = ray_data.build_shards if on else sharded_build.build_here
            sharded_build.build_sharded(path, texts.split(shards), cutter, build=builder, **how)
    print(describe(path))


@app.command()
def dense(
    store: Store,
    model: Annotated[
        str, typer.Option(help="whose states: smollm2, pocket, a directory or a name on the hub")
    ] = "smollm2",
    device: Annotated[str, typer.Option(help="where the model runs")] = "auto",
    dtype: Annotated[str, typer.Option(help="type of the weights, such as float32 or bfloat16")] = "auto",
    dims: Annotated[int, typer.Option(help="principal components kept")] = 64,
    factory: Annotated[str, typer.Option(help="FAISS factory string, such as IVF1024,PQ16x8 or HNSW32")] = "Flat",
    nprobe: Annotated[int | None, typer.Option(help="lists of an IVF index to search")] = None,
    ef_search: Annotated[int | None, typer.Option(help="candidates of an HNSW index to search")] = None,
    window: Annotated[int, options.whole_number("tokens run at once")] = 1024,
    cover: Annotated[
        Literal["truncate", "windows"],
        typer.Option(help="what to embed of a long document: its first window, or overlapping windows over all of it"),
    ] = "truncate",
    overlap: Annotated[int | None, typer.Option(help="tokens that windows share (default: a quarter)")] = None,
    max_states: Annotated[int | None, options.whole_number("stop after so many states")] = None,
    keep_states: Annotated[
        bool, typer.Option("--keep-states", help="keep the hidden states, next to the store")
    ] = False,
    on: On = None,
    address: Address = None,
) -> None:
    """Add a dense index of a model's hidden states to a store; the same command continues after an interruption."""
    path = located(store)
    if on and not is_sharded(path):
        raise ValueError("--on ray works on shards: name a store of shards")
    parts = ShardedStore.open(path).shards() if is_sharded(path) else [TokenStore.open(path)]
    own = load_tokenizer(model)
    for part in parts:
        if part.manifest["tokenizer"] is not None:
            part.check_tokenizer(own)
        for folder in dense_slots(path) if is_sharded(path) else (dense_index.FOLDER,):
            dense_index.check_target(located(part.path / folder))
        for name in (hidden_states.KEPT, hidden_states.UNKEPT):
            hidden_states.check_target(beside(part.path, name))
    index = {"factory": factory, "nprobe": nprobe, "ef_search": ef_search}
    width, context = options.hidden_size_and_context(model)
    empty = faiss_index.empty_index(width, dims, **index)
    options.check_length("--window", window, context)
    overlap = window // 4 if overlap is None else overlap
    hidden_states.check_overlap(window, overlap, cover)
    how = {
        "window": window,
        "cover": cover,
        "overlap": overlap,
        "max_states": None if max_states is None else max(1, max_states // len(parts)),
    }
    for part in parts:
        plan = hidden_states.plan_windows(part, window, overlap, cover, how["max_states"])
        faiss_index.check_lists(empty, factory, int((plan[:, 2] - plan[:, 1]).sum()))
    embed = partial(_embed, model=(model, device, dtype), how=how)
    if is_sharded(path):
        with ray_data.started(address) if on else nullcontext():
            each = ray_data.map_on_ray if on else map
            sharded_build.build_sharded_dense(path, embed, dims=dims, keep_states=keep_states, each=each, **index)
    else:
        states = hidden_states.states_of_store(parts[0], embed, keep_states)
        datastores.build_dense_index(path / dense_index.FOLDER, states, parts[0], dims=dims, **index)
        hidden_states.remove_unkept(path)
    print(describe(path))


@app.command()
def info(store: Store, tokenizer: Known = None) -> None:
    """Say what a store holds."""
    _open(store, tokenizer)
    print(describe(store))


@app.command()
def verify(store: Store, tokenizer: Known = None) -> None:
    """Compare every byte of a store with the checksums."""
    folder = dense_slots(located(store))[0] if is_sharded(store) else dense_index.FOLDER
    for part in _open(store, tokenizer):
        part.verify()
        if (part.path / suffix_array.MANIFEST).is_file():
            SuffixIndex.open(part).verify()
        if (part.path / folder).is_dir():
            DenseIndex.open(part.path / folder, part).verify()
    print("every file is as it was built")


def _open(path: Path, tokenizer: str | None) -> list[TokenStore]:
    parts = ShardedStore.open(path).shards() if is_sharded(path) else [TokenStore.open(path)]
    if tokenizer is not None:
        parts[0].check_tokenizer(load_tokenizer(tokenizer))
    return parts
