"""Arrays of a datastore: written as .npy files whose length may become known last, mapped into memory, and checked."""

from __future__ import annotations

from pathlib import Path
from typing import BinaryIO

import numpy as np

from specdec_lib import files
from specdec_lib.files import StoreError

#: Bytes of the header of an array of one or two dimensions: NumPy leaves room in it for the array to grow.
NPY_HEADER = 128
_WRITE_ENTRIES = 1 << 22


def npy_header(file: BinaryIO, dtype: np.dtype, length: int, width: int | None = None) -> None:
    """Write the header of an array of ``length`` entries, or rows of ``width``, at the beginning of ``file``."""
    file.seek(0)
    shape = (length,) if width is None else (length, width)
    np.lib.format.write_array_header_1_0(file, {"descr": np.dtype(dtype).str, "fortran_order": False, "shape": shape})
    if file.tell() != NPY_HEADER:
        raise RuntimeError(f"NumPy {np.__version__} writes a header of {file.tell()} bytes, expected {NPY_HEADER}")


def write_array(path: Path, array: np.ndarray, dtype: np.dtype) -> None:
    """Write an array, whole or not at all.

    Parameters
    ----------
    path : Path
    array : array of shape (n,)
    dtype : numpy.dtype
        As which it is written.

    Examples
    --------
    >>> import numpy as np
    >>> from specdec_lib.datastores.arrays import open_array, write_array
    >>> write_array(folder / "array.npy", np.arange(3), np.dtype(np.int32))
    >>> open_array(folder / "array.npy", np.dtype(np.int32), 3).tolist()
    [0, 1, 2]
    """
    with files.replacing(path) as aside, aside.open("wb") as file:
        npy_header(file, dtype, len(array))
        for begin in range(0, len(array), _WRITE_ENTRIES):
            files.write(file, np.ascontiguousarray(array[begin : begin + _WRITE_ENTRIES], dtype).data)


def open_array(path: Path, dtype: np.dtype, *shape: int) -> np.ndarray:
    """Map an array into memory, read-only.

    Parameters
    ----------
    path : Path
    dtype : numpy.dtype
    *shape : int
        Those that the file must have.

    Returns
    -------
    array

    Raises
    ------
    StoreError
        If the file holds anything else.

    Examples
    --------
    >>> import numpy as np
    >>> from specdec_lib.datastores.arrays import open_array
    >>> np.save(folder / "array.npy", np.arange(3))
    >>> open_array(folder / "array.npy", np.dtype(np.int64), 4)
    Traceback (most recent call last):
        ...
    specdec_lib.files.StoreError: ...array.npy holds int64 of shape (3,), not int64 of (4,): build it again
    """
    try:
        array = np.lib.format.open_memmap(path, mode="r")
    except Exception as error:  # NumPy reads a header as Python code: a damaged one fails in that parser's ways too
        reason = " ".join(str(error).split())
        raise StoreError(f"{path} cannot be read ({reason:.200}); build the datastore again") from None
    if array.dtype != dtype or array.shape != shape:
        raise StoreError(f"{path} holds {array.dtype} of shape {array.shape}, not {dtype} of {shape}: build it again")
    if array.offset + array.nbytes != path.stat().st_size or not array.flags.c_contiguous:
        raise StoreError(f"{path} has a damaged header, or lacks a part; build it again")
    return np.asarray(array)


def check_range(path: Path, array: np.ndarray, least: int, most: int, what: str) -> None:
    """Reject numbers outside a range: compiled loops use them as indices, unchecked.

    Parameters
    ----------
    path : Path
        What the error names.
    array : int array
    least, most : int
    what : str
        What the error calls a number.

    Raises
    ------
    StoreError

    Examples
    --------
    >>> import numpy as np
    >>> from specdec_lib.datastores.arrays import check_range
    >>> check_range(folder / "tokens.npy", np.array([3, 12]), 0, 10, "token")
    Traceback (most recent call last):
        ...
    specdec_lib.files.StoreError: ...tokens.npy holds the token 12; expected 0 to 10: build it again
    """
    for value in (array.min(), array.max()) if array.size else ():
        if not least <= int(value) <= most:
            raise StoreError(f"{path} holds the {what} {int(value)}; expected {least} to {most}: build it again")
