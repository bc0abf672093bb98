"""Records of files: JSON lines, JSON lists and texts, plain, ``.gz`` or ``.zip``, with the place of whatever is wrong in them."""

from __future__ import annotations

import gzip
import json
import re
import zipfile
import zlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any


class BadRecord(ValueError):
    """A file does not hold what its format says. The message names the file and the line."""


class Record(dict[str, Any]):
    """One row of a file, which knows where it stands (``where``: file and line). Its readers raise BadRecord."""

    def __init__(self, row: Any, where: str) -> None:
        if not isinstance(row, dict):
            raise BadRecord(f"{where}: is a {type(row).__name__}; expected an object with named fields")
        super().__init__(row)
        self.where = where

    def bad(self, problem: str) -> BadRecord:
        """Return the error that ``problem`` is in this row."""
        return BadRecord(f"{self.where}: {problem}")

    def typed(self, name: str, kind: type | tuple[type, ...], expected: str) -> Any:
        """Return field ``name``, which must be a ``kind``; ``expected`` says so in words."""
        if name not in self:
            raise self.bad(f"field {name!r} is missing; there are {', '.join(map(repr, self)) or 'no fields'}")
        value = self[name]
        if not isinstance(value, kind) or isinstance(value, bool) and kind is not bool:
            raise self.bad(f"field {name!r} is {value!r:.80}; expected {expected}")
        return value

    def text(self, name: str, empty: bool = False) -> str:
        """Return the text in field ``name``, which may be empty only if ``empty``."""
        value: str = self.typed(name, str, "a text")
        if not empty and not value.strip():
            raise self.bad(f"field {name!r} is empty; expected a text")
        return value

    def fill(self, template: str) -> str:
        """Return ``template`` with the text of a field for ``{name}``, and without the space around it for ``{name:strip}``."""

        def value(match: re.Match[str]) -> str:
            text = self.text(match[1])
            return text.strip() if match[2] else text

        return re.sub(r"\{(\w+)(:strip)?\}", value, template)

    def texts(self, name: str, length: int | None = None, kind: type = str) -> tuple[Any, ...]:
        """Return the list of texts in field ``name``, or of numbers if ``kind`` says so; of ``length``, if given."""
        called = {str: "texts", int: "whole numbers", float: "numbers with a decimal point"}[kind]
        value = self.typed(name, list, f"a list of {called}")
        if not value or not all(type(item) is kind for item in value):
            raise self.bad(f"field {name!r} is {value!r:.80}; expected a list of {called}")
        if length is not None and len(value) != length:
            raise self.bad(f"field {name!r} has {len(value)} {called}; expected {length}")
        return tuple(value)

    def one_of(self, name: str, allowed: Sequence[str]) -> str:
        """Return the text in field ``name``, one of ``allowed``."""
        value = self.text(name)
        if value not in allowed:
            raise self.bad(f"field {name!r} is {value!r}; expected one of {', '.join(allowed)}")
        return value


def packing(path: Path) -> str:
    """How a file is packed, by its name or that of the file that a link leads to: ".gz", ".zip" or nothing."""
    known = (each.suffix.lower() for each in (path, path.resolve()))
    return next((suffix for suffix in known if suffix in (".gz", ".zip")), "")


def is_json_lines(path: Path) -> bool:
    """Whether a file's name says that it holds JSON lines, packed or not."""
    return not {".jsonl", ".ndjson"}.isdisjoint(map(str.lower, path.suffixes))


@contextmanager
def open_unpacked(path: Path, inside: str = "") -> Iterator[IO[bytes]]:
    """Open ``path`` for reading, or what is packed in it: of ``NAME.zip`` the file ``inside``, by default NAME."""
    try:
        if packing(path) == ".gz":
            with gzip.open(path) as stream:
                yield stream
        elif packing(path) == ".zip":
            with zipfile.ZipFile(path) as packed:
                names = {name.split("/")[-1]: name for name in packed.namelist()}
                wanted = inside or path.stem
                if wanted not in names:
                    raise BadRecord(f"{path}: holds no {wanted}, only {', '.join(names) or 'nothing'}")
                with packed.open(names[wanted]) as stream:
                    yield stream
        else:
            with path.open("rb") as stream:
                yield stream
    except (gzip.BadGzipFile, zipfile.BadZipFile, EOFError, zlib.error) as error:
        raise BadRecord(f"{path}: cannot be unpacked ({error}); get the file again") from None


def _numbered_lines(path: Path, inside: str = "", begin: int = 0, end: int | None = None) -> Iterator[tuple[int, str]]:
    """Yield the lines of ``path`` (UTF-8, packed or not) with their numbers, without their ends; of an unpacked file those
    that start in a range of bytes, if one is given."""
    with open_unpacked(path, inside) as stream:
        at = 0
        if begin > 0:
            # The line of the byte before ends before the range or in it, and starts before it.
            stream.seek(begin - 1)
            at = begin - 1 + len(stream.readline())
        for number, line in enumerate(stream, start=1):
            if end is not None and at >= end:
                return
            at += len(line)
            try:
                yield number, line.decode("utf-8-sig" if number == 1 and begin <= 0 else "utf-8").rstrip("\r\n")
            except UnicodeDecodeError as error:
                problem = f"is not UTF-8 text (byte {line[error.start]:#04x})"
                raise BadRecord(f"{path}, line {number}: {problem}") from None


def read_text(path: Path) -> str:
    """Return the text of ``path`` (UTF-8, packed or not), with ``\\n`` between lines."""
    return "\n".join(line for _, line in _numbered_lines(path))


def read_jsonl(path: Path, inside: str = "", begin: int = 0, end: int | None = None) -> Iterator[Record]:
    """Yield the rows of a JSON-lines file as they are read, without blank lines; ``inside`` is as for :func:`open_unpacked`.

    With a range, only those whose first byte is one of ``begin`` to ``end - 1``; the file is not packed then.
    """
    after = f" after byte {begin}" if begin > 0 else ""
    for number, line in _numbered_lines(path, inside, begin, end):
        if line.strip():
            where = f"{path}, line {number}{after}"
            yield Record(_parse(line, where), where)


def read_records(path: Path, field: str | None = None) -> Iterator[Record]:
    """Yield the objects of a file of JSON lines, of one JSON list, or of the list ``field`` of one JSON object."""
    if is_json_lines(path):
        yield from read_jsonl(path)
        return
    rows = _parse(read_text(path), str(path))
    if field is not None:
        rows = Record(rows, str(path)).typed(field, list, "a list of objects")
    elif not isinstance(rows, list):
        raise BadRecord(f"{path}: holds a {type(rows).__name__}; expected a list of objects")
    for number, row in enumerate(rows, start=1):
        yield Record(row, f"{path}, record {number}")


def _parse(text: str, where: str) -> Any:
    try:
        return json.loads(text)
    except json.JSONDecodeError as error:
        inside = f"line {error.lineno}, " if "\n" in text else ""
        raise BadRecord(f"{where}: is not JSON ({error.msg}, {inside}column {error.colno})") from None
    except RecursionError:
        raise BadRecord(f"{where}: is nested too deeply to be read") from None
    except ValueError as error:  # a number of thousands of digits
        raise BadRecord(f"{where}: cannot be read ({error})") from None
