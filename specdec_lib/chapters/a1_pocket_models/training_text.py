"""Text that the pocket pair is trained on: packages named in ``corpus.yml``, the standard library, and conversations.

``make pocket-data`` fetches the packages' archives with pip and turns all text into one file of tokens. Only someone
who trains again needs it.
"""

from __future__ import annotations

import gzip
import hashlib
import json
import random
import subprocess
import sys
import tarfile
import zipfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

import numpy as np
import yaml
from tqdm.auto import tqdm
from transformers import PreTrainedTokenizerFast

from specdec_lib import paths
from specdec_lib.chapters.a1_pocket_models.training_rows import ASSISTANT, END, USER
from specdec_lib.experiments import made_tasks
from specdec_lib.experiments.corpus import Module, stdlib_modules
from specdec_lib.experiments.stores import RUN_CHARS, SHARED_RUNS, _mixed, _runs
from specdec_lib.files import replacing

CORPUS = paths.POCKET / "corpus.yml"
#: Archives are chosen for one Python and platform, so that everyone trains on the same files.
WHEELS_FOR = (
    "--python-version",
    "3.11",
    "--implementation",
    "cp",
    "--platform",
    "manylinux_2_28_x86_64",
    "--platform",
    "manylinux_2_17_x86_64",
    "--platform",
    "manylinux2014_x86_64",
    "--platform",
    "any",
)
#: Licences that text may have: what is trained on it is passed on under MIT.
LICENCES = ("MIT", "BSD-2-Clause", "BSD-3-Clause", "Apache-2.0", "PSF-2.0", "ISC")
#: A file is a near-duplicate if this share of its runs of three lines was seen in files before it.
DUPLICATE_SHARE = 0.5
#: Bytes of packages' Python that snippets for tasks are cut from; the standard library's training side comes first.
SNIPPET_BYTES = 24_000_000


@dataclass(frozen=True)
class Package:
    """A package of ``corpus.yml``."""

    name: str
    version: str
    licence: str
    archive: str = "wheel"

    def find(self, folder: Path) -> Path | None:
        """Its archive in ``folder``, None if it has not been fetched."""
        stem = self.name.lower().replace("-", "_")
        for file in folder.glob("*"):
            lower = file.name.lower().replace("-", "_")
            suffix = ".whl" if self.archive == "wheel" else ".gz"
            if lower.startswith(f"{stem}_{self.version}") and file.suffix == suffix:
                return file
        return None


@dataclass(frozen=True)
class Corpus:
    """What ``corpus.yml`` says."""

    train: tuple[Package, ...]
    heldout: tuple[Package, ...]
    chat: tuple[dict, ...]
    suffixes: tuple[str, ...]
    largest_file: int
    package_bytes: int

    @classmethod
    def read(cls, path: Path | None = None) -> Corpus:
        """Read and check the list, the project's own without ``path``.

        Raises
        ------
        ValueError
            If a licence is none of :data:`LICENCES`, or a package is named twice.
        """
        path = path or CORPUS
        content = yaml.safe_load(path.read_text(encoding="utf-8"))
        sides = {side: tuple(Package(**row) for row in content[side]) for side in ("train", "heldout")}
        for package in (*sides["train"], *sides["heldout"]):
            if not any(licence in LICENCES for licence in package.licence.split(" or ")):
                raise ValueError(
                    f"{path}: {package.name} has the licence {package.licence!r}; expected one of {', '.join(LICENCES)}"
                )
        names = [package.name.lower() for side in sides.values() for package in side]
        twice = sorted({name for name in names if names.count(name) > 1})
        if twice:
            raise ValueError(f"{path}: {', '.join(twice)} is named twice; a package is trained on or held out")
        return cls(
            sides["train"],
            sides["heldout"],
            tuple(content["chat"]),
            tuple(content["suffixes"]),
            content["largest_file"],
            content["package_bytes"],
        )


def fetch(corpus: Corpus, folder: Path) -> None:
    """Download the archives that ``folder`` lacks with pip.

    Raises
    ------
    OSError
        If pip cannot get one; what it has got stays.
    """
    folder.mkdir(parents=True, exist_ok=True)
    missing = [package for package in (*corpus.train, *corpus.heldout) if package.find(folder) is None]

    def download(package: Package) -> str | None:
        kind = (*WHEELS_FOR, "--only-binary", ":all:") if package.archive == "wheel" else ("--no-binary", ":all:")
        result = subprocess.run(
            [
                sys.executable,
                "-m",
                "pip",
                "download",
                "--quiet",
                "--disable-pip-version-check",
                "--no-deps",
                *kind,
                "--dest",
                str(folder),
                f"{package.name}=={package.version}",
            ],
            capture_output=True,
            text=True,
        )
        return None if result.returncode == 0 else f"{package.name} {package.version}: {result.stderr.strip()[-300:]}"

    with ThreadPoolExecutor(4) as pool:
        outcomes = tqdm(pool.map(download, missing), total=len(missing), desc="packages", disable=not missing)
        failures = [outcome for outcome in outcomes if outcome]
    if failures:
        raise OSError("pip could not fetch " + "; ".join(failures))


def _archived(file: Path) -> Iterator[tuple[str, int, bytes]]:
    """Name, size and content of an archive's files, read in the archive's order."""
    if file.suffix == ".whl":
        with zipfile.ZipFile(file) as archive:
            for entry in archive.infolist():
                yield entry.filename, entry.file_size, archive.read(entry)
    else:
        with tarfile.open(file) as archive:
            for entry in archive:
                if entry.isfile():
                    yield entry.name, entry.size, archive.extractfile(entry).read()


def package_files(package: Package, corpus: Corpus, folder: Path) -> list[Module]:
    """Readable files of one package in the order of their names' hash, up to ``corpus.package_bytes``.

    Raises
    ------
    FileNotFoundError
        If the archive was not fetched.
    """
    archive = package.find(folder)
    if archive is None:
        raise FileNotFoundError(f"{package.name} {package.version} is not in {folder}; run make pocket-data")
    texts: dict[str, str] = {}
    for name, size, content in _archived(archive):
        path = PurePosixPath(name)
        metadata = any(part.endswith((".dist-info", ".egg-info")) for part in path.parts)
        if path.suffix in corpus.suffixes and 200 < size <= corpus.largest_file and not metadata:
            text = content.decode("utf-8", "replace").replace("\r\n", "\n")
            # Tables of numbers and other languages' texts teach this vocabulary little.
            plain = sum(c.isascii() and (c.isalpha() or c in " \n_") for c in text[:20_000])
            if "\ufffd" not in text and plain > 0.6 * len(text[:20_000]):
                texts[f"{package.name}/{name}"] = text
    order = _mixed(texts)
    modules, total = [], 0
    for name in sorted(texts, key=order.__getitem__):
        total += len(texts[name])
        if total > corpus.package_bytes:
            break
        modules.append(Module(name, texts[name]))
    return modules


def conversation_files(corpus: Corpus, root: Path | None = None) -> list[Path]:
    """Files of the published sets that hold the conversations, in the order of the corpus.

    Raises
    ------
    FileNotFoundError
        If there is no folder of data sets, or one of the files is not in it.
    """
    root = root or paths.datasets_root()
    if root is None:
        raise FileNotFoundError("the conversations of corpus.yml need the published sets; set SPECDEC_DATASETS")
    files = [root / entry["file"] for entry in corpus.chat]
    missing = [str(file) for file in files if not file.is_file()]
    if missing:
        raise FileNotFoundError(f"the conversations of corpus.yml need {', '.join(missing)}; see book/datasets.md")
    return files


def conversations(corpus: Corpus, root: Path | None = None) -> list[str]:
    """English questions and answers of the published sets, as the chat template writes them.

    Raises
    ------
    FileNotFoundError
        As for :func:`conversation_files`.
    """
    texts = []
    for entry, file in zip(corpus.chat, conversation_files(corpus, root), strict=True):
        opened = gzip.open if file.suffix == ".gz" else open
        asked, answered = entry["fields"]
        with opened(file, "rt", encoding="utf-8") as lines:
            for line in lines:
                row = json.loads(line)
                text = f"{USER}{row[asked]}{ASSISTANT}{row[answered]}{END}"
                if text.isascii() and len(text) < 8000:
                    texts.append(text)
    return texts


def training_modules(corpus: Corpus, folder: Path) -> Iterator[Module]:
    """Files to train on: the standard library's training side, then the packages'; near-duplicates and held-out text
    are left out."""
    heldout = {run for module in stdlib_modules("heldout") for run in _runs(module.text)}
    for package in corpus.heldout:
        heldout |= {run for module in package_files(package, corpus, folder) for run in _runs(module.text)}
    seen: set[int] = set()
    sources = [list(stdlib_modules("train"))]
    sources += [package_files(package, corpus, folder) for package in tqdm(corpus.train, desc="reading packages")]
    for modules in sources:
        for module in modules:
            runs = _runs(module.text)
            # The standard library's own sides share idioms; they are told apart by name.
            if modules is not sources[0] and len(runs & heldout) > SHARED_RUNS:
                continue
            if len(runs & seen) > DUPLICATE_SHARE * len(runs):
                continue
            seen |= runs
            yield module


@dataclass(frozen=True)
class TrainingText:
    """The corpus as tokens: ``stream`` (uint16, documents in a mixed order, each ended by the end token), ``heldout``
    by name, ``materials`` for tasks, and the stream's ``fingerprint``."""

    stream: np.ndarray
    heldout: dict[str, np.ndarray]
    materials: dict
    fingerprint: str


def _encoded(tokenizer: PreTrainedTokenizerFast, texts: list[str], name: str) -> np.ndarray:
    end = np.uint16(tokenizer.eos_token_id)
    pieces = []
    for first in tqdm(range(0, len(texts), 256), desc=f"tokens of {name}", mininterval=5):
        for ids in tokenizer(texts[first : first + 256], add_special_tokens=False)["input_ids"]:
            pieces += [np.asarray(ids, np.uint16), np.asarray([end])]
    return np.concatenate(pieces)


def prepare(tokenizer: PreTrainedTokenizerFast, folder: Path, corpus: Corpus | None = None) -> None:
    """Write the tokens and pieces of the corpus into ``folder``, whose ``packages/`` holds the archives."""
    corpus = corpus or Corpus.read()
    archives = folder / "packages"
    modules = list(training_modules(corpus, archives))
    order = _mixed(module.name for module in modules)
    chat = conversations(corpus)
    documents = [(order[module.name], module.text) for module in modules]
    documents += [(hashlib.sha256(text.encode()).hexdigest(), text) for text in chat]
    stream = _encoded(tokenizer, [text for _, text in sorted(documents)], "the training text")
    heldout = {"stdlib": _encoded(tokenizer, [m.text for m in stdlib_modules("heldout")][:200], "the held-out library")}
    for package in corpus.heldout:
        texts = [module.text for module in package_files(package, corpus, archives)]
        heldout[package.name] = _encoded(tokenizer, texts, package.name)
    for name, tokens in {"stream": stream, **{f"heldout-{name}": tokens for name, tokens in heldout.items()}}.items():
        with replacing(folder / f"{name}.npy") as aside, aside.open("wb") as file:
            np.save(file, tokens)

    library = len(stdlib_modules("train"))
    pieces, total = modules[:library], 0
    others = modules[library:]
    random.Random(0).shuffle(others)
    for module in others:
        total += len(module.text)
        if total > SNIPPET_BYTES:
            break
        if module.name.endswith(".py"):
            pieces.append(module)
    with replacing(folder / "snippet_modules.json.gz") as aside:
        with gzip.open(aside, "wt", encoding="utf-8", compresslevel=3) as file:
            json.dump([[module.name, module.text] for module in pieces], file)
    story = {
        "tokens": len(stream),
        "fingerprint": hashlib.sha256(stream.tobytes()).hexdigest()[:16],
        "documents": len(documents),
        "conversations": len(chat),
        "characters": sum(len(text) for _, text in documents),
        "stdlib_modules": library,
        "heldout_tokens": {name: len(tokens) for name, tokens in heldout.items()},
        "run_chars": RUN_CHARS,
        "packages": [f"{package.name} {package.version}" for package in corpus.train],
        "heldout_packages": [f"{package.name} {package.version}" for package in corpus.heldout],
    }
    with replacing(folder / "corpus.json") as aside:
        aside.write_text(json.dumps(story, indent=1) + "\n")


def load(folder: Path) -> TrainingText:
    """Open what :func:`prepare` wrote.

    Raises
    ------
    FileNotFoundError
        If it was not prepared.
    """
    if not (folder / "corpus.json").is_file():
        raise FileNotFoundError(f"{folder} holds no prepared corpus; run make pocket-data")
    story = json.loads((folder / "corpus.json").read_text())
    with gzip.open(folder / "snippet_modules.json.gz", "rt", encoding="utf-8") as file:
        modules = [Module(name, text) for name, text in json.load(file)]
    heldout = {name: np.load(folder / f"heldout-{name}.npy", mmap_mode="r") for name in story["heldout_tokens"]}
    return TrainingText(
        np.load(folder / "stream.npy", mmap_mode="r"), heldout, made_tasks.materials(modules), story["fingerprint"]
    )
