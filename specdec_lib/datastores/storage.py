"""Folders of datastores on local disks and in object stores, through fsspec: ``/data/x``, ``s3://bucket/x``, ``gs://…``."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from hashlib import sha256
from pathlib import Path
from typing import Any

import fsspec
from fsspec.implementations.local import LocalFileSystem

from specdec_lib import files, paths
from specdec_lib.datastores import dense, store_files, suffix_array
from specdec_lib.datastores.sharded import MANIFEST, check_shards, describe_shard
from specdec_lib.datastores.store_files import StoreError
from specdec_lib.datastores.tokens import TokenStore


class Storage:
    """A folder on a file system of fsspec.

    Parameters
    ----------
    url : path or str

    Attributes
    ----------
    local : Path or None
        The folder, where it lies on this machine's own file system.

    Raises
    ------
    ImportError
        If the package of fsspec for this kind of address is not installed; its message names it.
    """

    def __init__(self, url: str | Path):
        self.url = str(url)
        self.fs, self.root = fsspec.core.url_to_fs(str(Path(url).expanduser()) if "://" not in str(url) else str(url))
        self.local = Path(self.root) if isinstance(self.fs, LocalFileSystem) else None

    def __repr__(self) -> str:
        return f"Storage({self.url!r})"

    def _at(self, name: str) -> str:
        return f"{self.root.rstrip('/')}/{name}"

    def read_json(self, name: str) -> dict[str, Any] | None:
        """The object in a JSON file; None where there is no file or no object in it."""
        try:
            content = json.loads(self.fs.cat_file(self._at(name)))
        except (FileNotFoundError, NotADirectoryError, IsADirectoryError, ValueError):
            return None
        return content if isinstance(content, dict) else None

    def write_json(self, name: str, content: dict[str, Any]) -> None:
        """Write a JSON file in one step."""
        if self.local is not None:
            store_files.write_json(self.local / name, content)
        else:
            self.fs.pipe_file(self._at(name), (json.dumps(content, indent=1) + "\n").encode())

    def scratch(self, name: str) -> Path:
        """A folder in the cache of this machine, where what belongs there under a name is made."""
        return paths.cache() / f"shards-{sha256(self.url.encode()).hexdigest()[:16]}" / name

    def remove(self, name: str) -> None:
        """Remove a folder; nothing where it is not there."""
        if self.fs.exists(self._at(name)):
            self.fs.rm(self._at(name), recursive=True)

    def names(self) -> list[str]:
        """Names in the folder; none where it is not there."""
        try:
            return sorted(Path(entry).name for entry in self.fs.ls(self.root, detail=False))
        except FileNotFoundError:
            return []

    def put(self, folder: Path, name: str) -> None:
        """Bring a folder there, under a temporary name that is renamed once all is there."""
        partial = self._at(f"{name}.partial")
        for left in (f"{name}.partial", name):
            self.remove(left)
        for path in sorted(folder.rglob("*")):
            if path.is_file():
                target = f"{partial}/{path.relative_to(folder).as_posix()}"
                self.fs.makedirs(target.rpartition("/")[0], exist_ok=True)
                self.fs.put_file(str(path), target)
        self.fs.mv(partial, self._at(name), recursive=True)

    def get(self, name: str, folder: Path, check: Callable[[Path], object] = lambda folder: None) -> None:
        """Bring a folder from there, under a temporary name that is renamed once all is here and ``check`` raised nothing."""
        partial = files.beside(folder, ".partial")
        shutil.rmtree(partial, ignore_errors=True)
        root = self._at(name).rstrip("/")
        for entry in self.fs.find(root):
            target = partial / entry[entry.index(root.lstrip("/")) + len(root.lstrip("/")) :].lstrip("/")
            target.parent.mkdir(parents=True, exist_ok=True)
            self.fs.get_file(entry, str(target))
        if not partial.is_dir():
            raise StoreError(f"there is no {name} in {self.url}: it was removed, or its build was interrupted")
        check(partial)
        files.flush_folder(partial)
        files.swap_in(partial, folder)


def read_shards_at(url: str | Path) -> dict[str, Any]:
    """The manifest of a store of shards wherever it lies.

    Raises
    ------
    StoreError
        If there is none, or it is damaged.
    """
    about = Storage(url).read_json(MANIFEST)
    if about is None:
        raise StoreError(f"{url} is no store of shards: it has no {MANIFEST}; build one, or name another folder")
    check_shards(Path(str(url)) / MANIFEST, about)
    return about


def _verify(folder: Path) -> None:
    """Compare all of a shard with its checksums: tokens, and suffix array and dense index where it has them."""
    store = TokenStore.open(folder)
    store.verify()
    for place in (suffix_array.MANIFEST, dense.MANIFEST, f"{dense.FOLDER}/{dense.MANIFEST}"):
        about = store_files.read_json(folder / place)
        if about is not None:
            store_files.check_sums((folder / place).parent, about["files"])


def fetch_shard(url: str | Path, about: dict[str, Any], folder: Path) -> TokenStore:
    """One shard in a folder here; brought there and checked against its checksums unless it is there.

    Parameters
    ----------
    url : str or path
        Of the store of shards. One on a local disk is opened where it is.
    about : dict
        What its manifest says of the shard.
    folder : path
        Where shards are kept.

    Raises
    ------
    StoreError
        If the shard is not the one that the manifest names, or was altered.
    """
    storage = Storage(url)
    here = folder / about["name"] if storage.local is None else storage.local / about["name"]
    if storage.local is None and not here.is_dir():
        folder.mkdir(parents=True, exist_ok=True)
        with store_files.BuildLock(here):
            if not here.is_dir():
                storage.get(about["name"], here, _verify)
    store = TokenStore.open(here)
    if describe_shard(about["name"], store.manifest) != about:
        raise StoreError(f"{here} is not the store that {url} names; remove it, and it is fetched again")
    return store


def fetch_shards(url: str | Path, folder: str | Path) -> Path:
    """Bring a whole store of shards into a folder here, to open it; shards that are there stay.

    Raises
    ------
    StoreError
    """
    folder = Path(folder).expanduser()
    about = read_shards_at(url)
    if Storage(url).local is not None:
        raise StoreError(f"{url} is on this machine's file system; open it where it is")
    for shard in about["shards"]:
        fetch_shard(url, shard, folder)
    store_files.write_json(folder / MANIFEST, about)
    return folder
