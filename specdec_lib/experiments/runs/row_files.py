"""Files of rows: counts, one row per output and method, compressed, with a first line on their origin.

rows, about = read("04/greedy")                   # the rows behind chapter 4
rows, about = read("papers_prompts")              # those of recorded answers to the papers' own prompts
"""

from __future__ import annotations

import gzip
import io
import json
import zlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from transformers import PreTrainedModel

from specdec_lib import files, paths
from specdec_lib.files import replacing
from specdec_lib.models.fingerprint import fingerprint

#: Where the rows of the published run lie, in a folder per chapter.
FOLDER = paths.DATA / "rows"
#: What tells one row from another, and further columns that a file may name.
KEY = ["task", "prompt", "turn", "seed", "temperature", "method"]
#: Places of an array that is written, at most: widths and depths of drafts.
PLACES = 2**20


class RowsError(ValueError):
    """Rows that cannot be read or written, or that cannot be made again."""


def read(name: str, folder: Path | None = None) -> tuple[pd.DataFrame, dict[str, Any]]:
    """The rows of a file and what it says of their origin: ``models``, ``command``, ``commit``, ``date``, ``seconds``.

    Raises RowsError, which names the file and what to do, if it is missing, damaged or lacks a column.
    """
    path = (folder or FOLDER) / f"{name}.csv.gz"
    remedy = f"get it again, or make it with: {_command(name)}"
    try:
        head, _, rows = files.unpack_gzip(path).decode().partition("\n")
        if not head.startswith("# {"):
            raise RowsError(f"{path} does not begin with the origin of its rows; {remedy}")
        about = json.loads(head[2:])
        if not (isinstance(about["models"], dict) and isinstance(about["stores"], dict)):
            raise ValueError("it does not say which models and datastores its rows are of")
        texts = dict.fromkeys(("prompt", "task", "method", *about["arrays"]), str)
        frame = pd.read_csv(io.StringIO(rows), dtype=texts, keep_default_na=False, na_values=[""])
        key = [*KEY, *about.get("key", ())]
        missing = [column for column in (*key, *about["columns"]) if column not in frame]
        if missing or len(frame) != about["rows"]:
            lack = f"has no column {missing[0]!r}" if missing else f"has {len(frame)} rows of {about['rows']}"
            raise RowsError(f"{path} {lack}; {remedy}")
        if frame.duplicated(key).any():
            raise RowsError(f"{path} has two rows of one output and method; {remedy}")
        return frame.assign(**{name: frame[name].fillna("").map(_unpacked) for name in about["arrays"]}), about
    except FileNotFoundError:
        raise RowsError(f"there is no {path}; {remedy}") from None
    except RowsError:
        raise
    except (
        OSError, EOFError, zlib.error, ValueError, LookupError, TypeError, AttributeError, OverflowError, MemoryError,
        RecursionError,
    ) as error:  # fmt: skip
        raise RowsError(f"{path} cannot be read ({type(error).__name__}: {error}); {remedy}") from None


def read_if_made(name: str, folder: Path, **models: PreTrainedModel) -> pd.DataFrame | None:
    """The rows of a file; None where there is none, or where it is of other models than these, given by their part."""
    if not (folder / f"{name}.csv.gz").is_file():
        return None
    rows, about = read(name, folder)
    own = all(about["models"].get(part) == fingerprint(model) for part, model in models.items())
    return rows if own else None


def _command(name: str) -> str:
    return f"python -m specdec_lib rows {name}" if "/" in name else "the script that data/README.md names"


def write(name: str, frame: pd.DataFrame, about: Mapping[str, Any], folder: Path | None = None) -> Path:
    """Write rows, without what was timed, and their origin."""
    path = (folder or FOLDER) / f"{name}.csv.gz"
    key = [*KEY, *about.get("key", ())]
    if frame.duplicated(key).any():
        twice = frame[frame.duplicated(key)].iloc[0][key].to_dict()
        raise RowsError(f"{name} has two rows of {twice}; expected one per output and method")
    counted = frame.drop(columns=[column for column in frame if column.endswith(("_s", "_ms"))])
    arrays = [name for name in counted if len(counted) and isinstance(counted[name].iloc[0], np.ndarray)]
    about = {**about, "rows": len(counted), "columns": list(counted), "arrays": arrays}
    counted = counted.assign(**{name: counted[name].map(_packed) for name in arrays})
    text = f"# {json.dumps(about)}\n" + counted.to_csv(index=False, lineterminator="\n", float_format="%.6g")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with replacing(path) as aside:
            aside.write_bytes(gzip.compress(text.encode(), mtime=0))
    except OSError as error:
        raise RowsError(f"{path} cannot be written ({error}); rows go into the folder of the project") from None
    return path


def _packed(counts: np.ndarray) -> str:
    return " ".join(f"{place}:{counts[place]:.10g}" for place in np.flatnonzero(counts))


def _unpacked(text: str) -> np.ndarray:
    pairs = [part.split(":") for part in text.split()]
    shared = any("." in count for _, count in pairs)  # counts that are shared out between neighbouring places
    pairs = [(int(place), float(count) if shared else int(count)) for place, count in pairs]
    if not all(0 <= place < PLACES and 0 <= count < np.inf for place, count in pairs):
        raise ValueError(f"{text!r:.40} holds no counts by place")
    counts = np.zeros(1 + max((place for place, _ in pairs), default=0), float if shared else np.int64)
    for place, count in pairs:
        counts[place] = count
    return counts


def differences(
    kept: pd.DataFrame, made: pd.DataFrame, columns: Sequence[str], key: Sequence[str] = KEY
) -> dict[tuple, str]:
    """What two frames of the same outputs differ in, one sentence for each row that differs, by its key."""
    one, other = (frame.set_index(list(key)) for frame in (kept, made))
    told = {where: f"{where} has no row" for where in one.index.difference(other.index)}
    told |= {where: f"{where} is new" for where in other.index.difference(one.index)}
    for where in one.index.intersection(other.index):
        before, now = one.loc[where], other.loc[where]
        for column in columns:
            if column not in key and not _alike(before[column], now[column]):
                told[where] = f"{where}: {column} was {_shown(before[column])} and is {_shown(now[column])}"
                break
    return told


def _alike(before: Any, now: Any) -> bool:
    if isinstance(before, np.ndarray):
        return _packed(before) == _packed(np.asarray(now))
    if isinstance(before, float) or isinstance(now, float):
        return bool(np.isclose(before, now, rtol=1e-3, equal_nan=True))
    if isinstance(before, str) or isinstance(now, str):
        return str(before) == str(now)  # a file has texts where a column has numbers and words
    return before == now


def _shown(value: Any) -> Any:
    return _packed(value) if isinstance(value, np.ndarray) else value
