"""``python -m specdec_lib datastore``: build, describe, verify and import the stores that drafts are
retrieved from."""

from __future__ import annotations

import argparse
import hashlib
import io
import math
import platform
import shutil
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from specdec_lib import datastores, files, paths
from specdec_lib.cluster import Here, OnRay, Place
from specdec_lib.commands import exit_status
from specdec_lib.datastores import DenseIndex, StoreError, SuffixIndex, TokenStore, encoder
from specdec_lib.datastores.dense import FOLDER, sample_moments
from specdec_lib.datastores.ray_data import PIECE_BYTES
from specdec_lib.datastores.reduction import Moments
from specdec_lib.datastores.sharded import MANIFEST as SHARDS
from specdec_lib.datastores.sharded_build import DenseJob, DenseOptions, build_sharded, build_sharded_dense
from specdec_lib.datastores.states import COVERS, States
from specdec_lib.datastores.storage import Storage, fetch_shards, read_shards_at
from specdec_lib.datastores.tokens import tokenizer_fingerprint, tokenizer_vocabulary
from specdec_lib.decoding.served_models import decoder_config
from specdec_lib.experiments import corpus
from specdec_lib.experiments.published_sets.reading import opened, read_jsonl
from specdec_lib.models.fingerprint import fingerprint

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase


class Texts:
    """Documents named on the command line, read as they are needed.

    Parameters
    ----------
    library : {"train", "heldout"}, optional
        Modules of the Python standard library, one document each.
    texts : sequence of path
        Text files, one document each; these and the next plain, ``.gz`` or ``.zip``.
    lines : sequence of path
        JSON lines files, one document a line.
    field : str
        Name of the text in each of these lines.
    part : (int, int)
        Number of a part, from 0, and of how many: all texts, one after another, are cut into parts of equally many bytes,
        and a document is in the part where its first byte is. A packed file is not cut.

    Raises
    ------
    ValueError
        If nothing is named; on reading, if a file is no text or a line has no such field.
    FileNotFoundError
        If a file is not there.
    """

    def __init__(
        self,
        library: str | None,
        texts: Sequence[Path],
        lines: Sequence[Path],
        field: str,
        part: tuple[int, int] = (0, 1),
    ):
        self.part = part
        self.library, self.texts, self.lines, self.field = library, list(texts), list(lines), field
        if not (library or texts or lines):
            raise ValueError("no documents are named: give --python-library, --text or --jsonl")
        for path in (*self.texts, *self.lines):
            if not path.is_file():
                raise FileNotFoundError(f"no file {path}")

    def sources(self) -> list[dict]:
        """What a manifest says of them."""
        about = []
        if self.library:
            about.append(
                {"name": "Python standard library", "split": self.library, "python": platform.python_version()}
            )
        for kind, named in (("text", self.texts), ("JSON lines", self.lines)):
            for path in named:
                with path.open("rb") as file:
                    digest = hashlib.file_digest(file, "sha256").hexdigest()
                about.append({"name": path.name, "format": kind, "sha256": digest})
        return about

    def split(self, count: int) -> list[Texts]:
        """The same documents in ``count`` parts, one after another."""
        return [self.cut(i, count) for i in range(count)]

    def cut(self, number: int, count: int) -> Texts:
        """One of these parts."""
        at, of = self.part
        return Texts(self.library, self.texts, self.lines, self.field, (at * count + number, of * count))

    def pieces(self) -> list[Texts]:
        """The same documents in parts that one task of Ray Data reads each."""
        return self.split(max(1, -(-self.bytes() // self.part[1] // PIECE_BYTES)))

    @property
    def packed(self) -> bool:
        """Whether a file is packed, so that its bytes say little of its tokens."""
        return any(path.suffix in (".gz", ".zip") for path in (*self.texts, *self.lines))

    def bytes(self) -> int:
        """Bytes of all parts together, of packed files as they are packed."""
        modules = corpus.stdlib_modules(self.library) if self.library else ()
        return sum(len(module.text) for module in modules) + sum(
            path.stat().st_size for path in (*self.texts, *self.lines)
        )

    def __iter__(self) -> Iterator[str]:
        number, count = self.part
        total = self.bytes()
        begin, end = total * number // count, total * (number + 1) // count
        at = 0
        for module in corpus.stdlib_modules(self.library) if self.library else ():
            if begin <= at < end:
                yield module.text
            at += len(module.text)
        for path in self.texts:
            if begin <= at < end:
                yield _read_text(path)
            at += path.stat().st_size
        for path in self.lines:
            size = path.stat().st_size
            if path.suffix in (".gz", ".zip"):
                records = read_jsonl(path) if begin <= at < end else ()
            else:
                records = read_jsonl(path, begin=begin - at, end=end - at) if begin < at + size and at < end else ()
            for record in records:
                if not isinstance(record.get(self.field), str):
                    raise record.bad(f"has no text in a field {self.field!r}: name it with --field")
                yield record[self.field]
            at += size


#: The sample that tells how many tokens a byte of the texts has: its places, and the bytes of each.
SAMPLES, SAMPLE_BYTES = 64, 2**16


def count_shards(
    texts: Texts, tokenizer: PreTrainedTokenizerBase, shard_tokens: int, max_tokens: int | None = None
) -> int:
    """Number of shards of about ``shard_tokens`` tokens each, from the tokens of a sample of the texts.

    The sample depends on the texts alone, so that the same build is cut in the same way again.

    Raises
    ------
    ValueError
        If ``shard_tokens`` is below 1, or a file is packed.
    """
    if shard_tokens < 1:
        raise ValueError(f"--shard-tokens is {shard_tokens}; expected a number of tokens, 1 or more")
    if texts.packed:
        raise ValueError("--shard-tokens cannot tell how many tokens a packed file has; unpack it, or give --shards")
    encode, size = encoder(tokenizer), texts.bytes()
    count = max(1, size // SAMPLE_BYTES)
    places = sorted({count * i // SAMPLES for i in range(SAMPLES)})
    found = sum(len(ids) for place in places for text in texts.cut(place, count) for ids in encode([text]))
    tokens = found * count / len(places)
    return max(1, math.ceil(min(tokens, max_tokens or tokens) / shard_tokens))


def _read_text(path: Path) -> str:
    with opened(path) as stream:
        try:
            return io.TextIOWrapper(stream, encoding="utf-8").read()
        except UnicodeDecodeError as error:
            raise ValueError(f"{path} is no text in UTF-8: {error}") from None


def load_tokenizer(name: str) -> PreTrainedTokenizerBase:
    """The tokenizer of ``"pocket"``, of a local directory, or of a name on the hub.

    Raises
    ------
    ValueError
        If there is none.
    """
    from transformers import AutoTokenizer

    try:
        return AutoTokenizer.from_pretrained(paths.POCKET / "target" if name == "pocket" else name)
    except (OSError, ValueError) as error:
        raise ValueError(
            f"no tokenizer can be loaded from {name!r} ({str(error).splitlines()[0]}); expected "
            "'pocket', a directory or a name on the hub"
        ) from None


def describe(path: Path) -> str:
    """What a store holds, one fact a line."""
    store = TokenStore.open(path)
    about = store.manifest
    lines = [
        f"tokens              {store.count:,} in {len(store):,} documents ({about['skipped_documents']:,} too short)",
        f"vocabulary          {store.vocabulary:,} ({about['dtype']}), tokenizer "
        f"{(about['tokenizer'] or 'unknown')[:12]}",
    ]
    try:
        index = SuffixIndex.open(store)
        lines.append(
            f"suffix array        {len(index.suffixes):,} entries, {index.bytes_per_token:.2f} "
            "bytes a token with the tokens"
        )
    except StoreError as error:
        if (store.path / datastores.suffix_array.MANIFEST).is_file():
            raise  # it is there and damaged
        lines.append(f"suffix array        none: {error}")
    try:
        dense = DenseIndex.open(store, device="cpu")
        explained = dense.explained_variance[: dense.dims].sum()
        built = dense.manifest
        lines.append(
            f"dense index         {len(dense):,} states, {dense.width} values in {dense.dims} "
            f"({explained:.1%} of the variance), {built['factory']}, {dense.bytes_per_state:.1f} "
            f"bytes a state, model {(built['model'] or 'unknown')[:12]}"
        )
    except (StoreError, ImportError) as error:
        if isinstance(error, StoreError) and (store.path / FOLDER).is_dir():
            raise
        lines.append(f"dense index         none: {error}")
    lines += [f"source              {', '.join(f'{k} {v}' for k, v in source.items())}" for source in about["sources"]]
    return "\n".join(lines)


def _add_dense_options(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("dense index")
    group.add_argument(
        "--model",
        default="pocket",
        help="whose states are indexed: pocket, a directory or a name on the hub (default: %(default)s)",
    )
    group.add_argument("--device", default="auto", help="where the model runs (default: %(default)s)")
    group.add_argument("--dtype", default="auto", help="as which it is loaded, float32 or bfloat16 say")
    group.add_argument("--dims", type=int, default=64, help="principal components kept (default: %(default)s)")
    group.add_argument(
        "--factory",
        default="Flat",
        help="FAISS factory string, Flat, IVF1024,Flat, IVF1024,PQ16x8 or HNSW32 say (default: %(default)s)",
    )
    group.add_argument("--nprobe", type=int, help="lists searched of an IVF index")
    group.add_argument("--ef-search", type=int, help="candidates searched of an HNSW index")
    group.add_argument("--window", type=int, default=1024, help="tokens run at once (default: %(default)s)")
    group.add_argument(
        "--cover",
        choices=COVERS,
        default="truncate",
        help="what of a longer document is embedded: its first window, or overlapping windows "
        "over all of it (default: %(default)s)",
    )
    group.add_argument(
        "--overlap",
        type=int,
        help="tokens that such windows share, seen and not stored again (default: a quarter of the window)",
    )
    group.add_argument("--max-states", type=int, help="stop after so many states")
    group.add_argument("--keep-states", action="store_true", help="keep the hidden states beside the store")


def check_dense(model: PreTrainedModel, options: argparse.Namespace) -> None:
    """Refuse options of the index that do not fit each other or the model.

    Raises
    ------
    ValueError
    """
    width = decoder_config(model).hidden_size
    datastores.faiss_index.empty_index(width, options.dims, options.factory, options.nprobe, options.ef_search)


def add_dense_index(path: Path, model: PreTrainedModel, options: argparse.Namespace) -> DenseIndex:
    """Embed a store and index its states; interrupted, the same call continues after the last whole shard.

    The states lie in ``<path>.states`` until the index is built.

    Parameters
    ----------
    path : path
        Folder of the store.
    model : PreTrainedModel
    options : argparse.Namespace
        ``dims``, ``factory``, ``nprobe``, ``ef_search``, ``window``, ``cover``, ``overlap``,
        ``max_states``, ``keep_states``.
    """
    from specdec_lib.models.embedding import embed_store

    store, place = TokenStore.open(path), files.beside(path, ".states")
    overlap = options.window // 4 if options.overlap is None else options.overlap
    states = embed_store(
        model, store, place, window=options.window, cover=options.cover, overlap=overlap, max_states=options.max_states
    )
    index = datastores.build_dense_index(
        store.path / FOLDER,
        states,
        store,
        dims=options.dims,
        factory=options.factory,
        nprobe=options.nprobe,
        ef_search=options.ef_search,
    )
    if not options.keep_states:
        shutil.rmtree(place)
    return index


class Embedder:
    """A worker that embeds one shard after another with a model that it loads once."""

    def __init__(self, model: str, device: str, dtype: str):
        from specdec_lib.models.loading import load_model

        self._model, _ = load_model(model, device, dtype)

    def __call__(self, job: DenseJob) -> Moments:
        """Embed a shard, unless its states are there, and return the moments of its share of the sample."""
        from specdec_lib.models.embedding import embed_store

        store, options = TokenStore.open(job.shard), job.options
        share = None if options.max_states is None else max(1, options.max_states // job.shards)
        asked = {
            "model": fingerprint(self._model),
            "window": options.window,
            "cover": options.cover,
            "overlap": options.overlap if options.cover == "windows" else 0,
            "max_states": share,
        }
        if job.states.is_dir():
            states = States.open(job.states, store)
            if {name: states.manifest[name] for name in asked} == asked:
                return sample_moments(states, max(1, options.sample // job.shards))
        states = embed_store(
            self._model,
            store,
            job.states,
            window=options.window,
            overlap=options.overlap,
            cover=options.cover,
            max_states=share,
            progress=False,
        )
        return sample_moments(states, max(1, options.sample // job.shards))


def add_dense_shards(path: str, options: argparse.Namespace, place: Place) -> None:
    """Embed and index every shard of a store; options as for :func:`add_dense_index`."""
    overlap = options.window // 4 if options.overlap is None else options.overlap
    build_sharded_dense(
        path,
        partial(Embedder, options.model, options.device, options.dtype),
        DenseOptions(
            window=options.window,
            overlap=overlap,
            cover=options.cover,
            max_states=options.max_states,
            dims=options.dims,
            factory=options.factory,
            nprobe=options.nprobe,
            ef_search=options.ef_search,
        ),
        place=place,
        keep_states=options.keep_states,
    )


def describe_shards(path: str) -> str:
    """What a store of shards holds, one fact a line."""
    about = read_shards_at(path)
    shards = about["shards"]
    tokens, documents = (sum(shard[name] for shard in shards) for name in ("tokens", "documents"))
    lines = [
        f"shards              {len(shards)}",
        f"tokens              {tokens:,} in {documents:,} documents",
        f"vocabulary          {about['vocabulary']:,}, tokenizer {(about['tokenizer'] or 'unknown')[:12]}",
    ]
    lines += [f"{shard['name']:20}{shard['tokens']:,} tokens in {shard['documents']:,} documents" for shard in shards]
    return "\n".join(lines)


def _add_cluster_options(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("shards and clusters")
    group.add_argument(
        "--on", choices=("ray",), help="work on the cores and nodes of a Ray cluster (the extra ray); same result"
    )
    group.add_argument("--address", help="of a cluster that runs, auto for this machine's; without it one is started")


def _add_respond_parser(commands: argparse._SubParsersAction) -> None:
    """An in-distribution store of the target's own responses."""
    parser = commands.add_parser("respond", help="store a model's own responses to prompts; run again, it continues")
    parser.add_argument("path", type=Path, help="folder of the store")
    parser.add_argument(
        "--model", default="pocket", help="pocket, a directory or a name on the hub (default: %(default)s)"
    )
    parser.add_argument("--device", default="auto", help="where it runs (default: %(default)s)")
    parser.add_argument("--dtype", default="auto", help="as which it is loaded, float32 or bfloat16 say")
    parser.add_argument(
        "--task",
        nargs="+",
        default=["code-completion"],
        help="whose prompts are answered (default: code-completion); mechanical tasks give those of the training side",
    )
    parser.add_argument("--count", type=int, default=100, help="prompts of each task (default: %(default)s)")
    parser.add_argument("--samples", type=int, default=1, help="responses to each (default: %(default)s)")
    parser.add_argument("--temperature", type=float, default=0.0, help="0 is greedy (default: %(default)s)")
    parser.add_argument("--top-p", type=float, default=1.0, help="nucleus (default: %(default)s)")
    parser.add_argument("--seed", type=int, default=0, help="of prompts and draws (default: %(default)s)")
    parser.add_argument("--max-new-tokens", type=int, default=128, help="longest response (default: %(default)s)")
    parser.add_argument("--batch", type=int, default=16, help="requests at a time (default: %(default)s)")


def answer(options: argparse.Namespace) -> TokenStore:
    """Answer the prompts and build the store; the responses are kept in ``<path>.responses.jsonl``."""
    from specdec_lib.decoding.sampling import Sampling
    from specdec_lib.experiments.made_tasks import TASKS
    from specdec_lib.experiments.responses import generate_responses
    from specdec_lib.experiments.tasks import load_task
    from specdec_lib.models.loading import load_model

    sampling = Sampling(options.temperature, options.top_p, seed=options.seed)
    prompts = []
    for task in options.task:
        side = {"split": "train"} if task in TASKS else {}
        prompts += load_task(task, limit=options.count, seed=options.seed, **side)
    model, tokenizer = load_model(options.model, options.device, options.dtype)
    documents = generate_responses(
        model,
        tokenizer,
        prompts,
        files.beside(options.path, ".responses.jsonl"),
        sampling,
        options.samples,
        options.max_new_tokens,
        options.batch,
    )
    about = {
        "name": "responses",
        "model": options.model,
        "tasks": " ".join(options.task),
        "samples": options.samples,
        "temperature": options.temperature,
        "top_p": options.top_p,
        "seed": options.seed,
    }
    return datastores.build_tokens(
        options.path,
        documents,
        tokenizer_vocabulary(tokenizer),
        fingerprint=tokenizer_fingerprint(tokenizer),
        sources=[about],
        short_documents="skip",
        finish=datastores.build_suffix_array,
    )


def build_parser() -> argparse.ArgumentParser:
    """The options of the command."""
    parser = argparse.ArgumentParser(prog="python -m specdec_lib datastore", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True, metavar="command")
    build = commands.add_parser("build", help="tokenize documents and sort their suffixes; run again, it continues")
    build.add_argument("path", help="folder of the store")
    build.add_argument(
        "--tokenizer", help="pocket, a directory or a name on the hub (default: the model's with --dense, else pocket)"
    )
    build.add_argument(
        "--python-library", choices=corpus.SPLITS, help="modules of the Python standard library of one side"
    )
    build.add_argument("--text", type=Path, nargs="+", default=[], metavar="FILE", help="text files, one document each")
    build.add_argument(
        "--jsonl", type=Path, nargs="+", default=[], metavar="FILE", help="JSON lines, one document a line"
    )
    build.add_argument("--field", default="text", help="the text's name in JSON lines (default: %(default)s)")
    build.add_argument("--max-tokens", type=int, help="stop before the first document that would exceed this many")
    build.add_argument("--dense", action="store_true", help="add a dense index of a model's hidden states")
    build.add_argument(
        "--shards", type=int, help="cut the texts into so many shards; the path may then be s3://... or gs://..."
    )
    build.add_argument(
        "--shard-tokens",
        type=int,
        metavar="N",
        help="cut the texts into shards of about N tokens each; their number follows from a sample of the texts",
    )
    _add_cluster_options(build)
    _add_dense_options(build)
    dense = commands.add_parser("dense", help="add a dense index to a store that is there; run again, it continues")
    dense.add_argument("path", help="folder of the store, of shards or not")
    _add_cluster_options(dense)
    _add_dense_options(dense)
    _add_respond_parser(commands)
    for name, text in (("info", "say what a store holds"), ("verify", "compare every byte with the checksums")):
        one = commands.add_parser(name, help=text)
        one.add_argument("path", help="folder of the store, of shards or not")
        one.add_argument("--tokenizer", help="check that the tokens are this tokenizer's")
    add = commands.add_parser("add-shard", help="add a finished store to a store of shards, or begin one with it")
    add.add_argument("path", help="folder of the store of shards")
    add.add_argument("store", type=Path, help="folder of the store to add")
    remove = commands.add_parser("remove-shard", help="take a shard out of a store of shards")
    remove.add_argument("path", help="folder of the store of shards")
    remove.add_argument("name", help="of the shard, shard-00001 say")
    fetch = commands.add_parser("fetch", help="bring a store of shards from an object store into a folder")
    fetch.add_argument("source", help="s3://... or gs://...")
    fetch.add_argument("path", help="the folder")
    take = commands.add_parser("import-rest", help="make a store of an index file (.idx) of REST's released code")
    take.add_argument("source", type=Path, help="the .idx file")
    take.add_argument("path", type=Path, help="folder of the store")
    take.add_argument("--tokenizer", help="the tokenizer the index was made with")
    take.add_argument("--vocabulary", type=int, help="the number of its token ids, where no tokenizer is at hand")
    take.add_argument("--u32", action="store_true", help="tokens are 32 bits wide (REST's branch for Llama 3)")
    take.add_argument(
        "--starts-with", type=int, metavar="ID", help="token that every document starts with, to part them"
    )
    return parser


def _holds_shards(options: argparse.Namespace) -> bool:
    return Storage(options.path).read_json(SHARDS) is not None


def _run_shards(options: argparse.Namespace) -> None:
    """The commands for a store of shards."""
    if options.command == "build":
        if options.shards is not None and options.shard_tokens is not None:
            raise ValueError("--shards and --shard-tokens both say how the texts are cut; give one of them")
        if options.shards is None and options.shard_tokens is None:
            raise ValueError(
                f"{options.path} is a store of shards: give their number with --shards or their size with "
                "--shard-tokens, or name another folder"
            )
        if options.shards is not None and options.shards < 1:
            raise ValueError(f"--shards is {options.shards}; expected their number, 1 or more")
        texts = Texts(options.python_library, options.text, options.jsonl, options.field)
        tokenizer = load_tokenizer(options.tokenizer or (options.model if options.dense else "pocket"))
        count = options.shards or count_shards(texts, tokenizer, options.shard_tokens, options.max_tokens)
        build_sharded(
            options.path,
            texts.split(count),
            tokenizer,
            sources=texts.sources(),
            max_tokens=options.max_tokens,
            text_bytes=texts.bytes(),
            place=OnRay(options.address) if options.on else Here(),
        )
    if options.command == "dense" or getattr(options, "dense", False):
        add_dense_shards(options.path, options, OnRay(options.address) if options.on else Here())
    if options.command in ("info", "verify"):
        if options.tokenizer:
            known = tokenizer_fingerprint(load_tokenizer(options.tokenizer))
            if read_shards_at(options.path)["tokenizer"] != known:
                raise StoreError(f"{options.path} holds the tokens of another tokenizer; build a store for this model")
    if options.command == "verify":
        datastores.ShardedSuffixIndex.open(options.path).verify()
        store = datastores.sharded.ShardedStore(Path(options.path), read_shards_at(options.path))
        for name in store.names:
            if (store.path / name / FOLDER).is_dir():
                DenseIndex.open(store.path / name, device="cpu").verify()
        print("every file is as it was built")
    else:
        print(describe_shards(options.path))


def _run(options: argparse.Namespace) -> None:
    if options.command == "respond":
        answer(options)
        print(describe(options.path))
        return
    if options.command == "add-shard":
        datastores.add_shard(options.path, options.store)
    elif options.command == "remove-shard":
        datastores.remove_shard(options.path, options.name)
    elif options.command == "fetch":
        fetch_shards(options.source, options.path)
    if options.command in ("add-shard", "remove-shard", "fetch"):
        print(describe_shards(options.path))
        return
    cut = any(getattr(options, name, None) is not None for name in ("shards", "shard_tokens"))
    if cut or (options.command != "import-rest" and _holds_shards(options)):
        _run_shards(options)
        return
    if getattr(options, "on", None):
        raise ValueError("--on ray works on shards: give --shards or --shard-tokens, or name a store of shards")
    options.path = Path(options.path)
    name = getattr(options, "tokenizer", None)
    tokenizer, model = load_tokenizer(name) if name else None, None
    if options.command == "build":
        texts = Texts(options.python_library, options.text, options.jsonl, options.field)
    if options.command == "dense" or getattr(options, "dense", False):
        from specdec_lib.models.loading import load_model

        model, own = load_model(options.model, options.device, options.dtype)
        tokenizer = own if tokenizer is None else tokenizer
        # A wrong word is told before the long runs.
        check_dense(model, options)
    if options.command == "build":
        tokenizer = load_tokenizer("pocket") if tokenizer is None else tokenizer
        datastores.build_from_texts(
            options.path,
            texts,
            tokenizer,
            sources=texts.sources(),
            max_tokens=options.max_tokens,
            short_documents="skip",
        )
    elif options.command == "import-rest":
        datastores.import_rest(
            options.source,
            options.path,
            tokenizer=tokenizer,
            vocabulary=options.vocabulary,
            wide=options.u32,
            starts_with=options.starts_with,
        )
    store = TokenStore.open(options.path, tokenizer)
    if model is not None:
        add_dense_index(options.path, model, options)
    if options.command == "verify":
        store.verify()
        if (store.path / datastores.suffix_array.MANIFEST).exists():
            SuffixIndex.open(store).verify()
        if (store.path / FOLDER).is_dir():
            DenseIndex.open(store, device="cpu").verify()
        print("every file is as it was built")
    else:
        print(describe(options.path))


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; returns the exit status.

    Parameters
    ----------
    argv : sequence of str, optional
        Words of the command line behind ``datastore``.
    """
    options = build_parser().parse_args(argv)
    return exit_status(lambda: _run(options), "interrupted; the same command continues after the last whole chunk")
