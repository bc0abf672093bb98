"""Find the files of a published data set, and say exactly which is missing, who publishes it and where to put it.

A file is looked for in the data set's own folder (``gsm8k/test.jsonl``) and in a clone of the repository that publishes it
(``grade-school-math/grade_school_math/data/test.jsonl``). It may be plain, ``.gz`` or ``.zip``.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from specdec_lib import paths

VARIABLE = "SPECDEC_DATASETS"
"""Environment variable that names the root where none is given."""


class MissingData(FileNotFoundError):
    """A file of a data set is not there. The message tells which, from where, and where to put it."""


@dataclass(frozen=True)
class DataFile:
    """A published file or folder of a data set: ``origin`` is ``owner/repository/path`` on ``host``.

    It lies in ``folder`` below the root, under the name that it was published with. ``licence`` is what the publisher says about
    reuse; ``note`` what else you must know to get the file.
    """

    folder: str
    origin: str
    licence: str
    host: str = "https://github.com/"
    note: str = ""

    @property
    def place(self) -> str:
        """Path below the root, without ``.gz`` or ``.zip``."""
        return f"{self.folder}/{self.origin.split('/')[-1].removesuffix('.gz').removesuffix('.zip')}"

    def places(self, root: Path) -> list[Path]:
        """The paths where the file may lie, without what packing adds to its name."""
        _, repository, path = self.origin.removesuffix(".gz").split("/", 2)
        return [root / self.place, root / repository / path]

    def find(self, root: Path) -> Path | None:
        """Return where the file lies, or None."""
        packed = (place.with_name(place.name + end) for place in self.places(root) for end in ("", ".gz", ".zip"))
        return next((path for path in packed if path.exists()), None)

    def published(self) -> str:
        owner, repository, path = self.origin.split("/", 2)
        name, note = self.place.partition("/")[2], f" ({self.note})" if self.note else ""
        return f"{name} is published in {self.host}{owner}/{repository} as {path}{note}; licence: {self.licence}."


@dataclass(frozen=True)
class Root:
    """The folder of the data sets, for one task: as the caller gave it, else as :data:`VARIABLE` says."""

    task: str
    given: str | os.PathLike[str] | None = None

    def find(self, *wanted: DataFile) -> Path:
        """Return the first of ``wanted`` that is there. Raises MissingData if none is, or there is no root."""
        folder = self._folder(wanted)
        for file in wanted:
            if (path := file.find(folder)) is not None:
                return path
        places = ", ".join(str(place.relative_to(folder)) for file in wanted for place in file.places(folder))
        raise self.missing(wanted, f"which is not in {folder}.\nLooked for there: {places}.")

    def missing(self, wanted: Sequence[DataFile], why: str) -> MissingData:
        """Return the error "task ... needs ...," ``why``, with where each of ``wanted`` is published and where to put it."""
        names = " or ".join(file.place for file in wanted)
        needs = f"task {self.task!r} needs {names} (a file may be plain, .gz or .zip), {why}"
        put = (
            f"Put it into FOLDER/{wanted[0].folder} and name FOLDER by load_task({self.task!r}, root=FOLDER) "
            f"or by the environment variable {VARIABLE}."
        )
        return MissingData("\n".join([needs, *(file.published() for file in wanted), put]))

    def _folder(self, wanted: Sequence[DataFile]) -> Path:
        try:
            folder = paths.datasets_root(self.given)
        except NotADirectoryError as error:
            raise self.missing(wanted, f"but {error}.") from None
        if folder is None:
            raise self.missing(wanted, "but no folder of data sets is given.")
        return folder
