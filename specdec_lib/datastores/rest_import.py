"""Stores from the index files of REST's released code (``.idx``).

Such a file is a sequence of chunks, little endian: the number of bytes of the tokens (uint32), the tokens,
the number of bytes of the suffix array (uint32), the suffix array (int32). Tokens are 16 bits wide, or 32 in
the variant for larger vocabularies. It says nothing of vocabulary or documents. Only the tokens are taken;
the index is built anew.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from specdec_lib.datastores.build import build_tokens
from specdec_lib.datastores.suffix_array import build_suffix_array
from specdec_lib.datastores.tokens import TokenStore, tokenizer_fingerprint, tokenizer_vocabulary

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


class RestIndex:
    """The tokens of a ``.idx`` file, memory-mapped; iterating gives documents.

    Parameters
    ----------
    path : path
    wide : bool
        Tokens are 32 bits wide.
    starts_with : int, optional
        The token that every document starts with (BOS). Without it each chunk is one document, as the
        released code reads it: continuations then run from one text into the next.

    Attributes
    ----------
    chunks : list of uint16 or uint32 array

    Raises
    ------
    ValueError
        If the file is no such index, is truncated, or its tokens have the other width.
    """

    def __init__(self, path: str | Path, wide: bool = False, starts_with: int | None = None):
        self.path, self.starts_with = Path(path).expanduser(), starts_with
        width = 4 if wide else 2
        if not self.path.is_file():
            raise FileNotFoundError(f"no file {self.path}")
        size = self.path.stat().st_size
        if size < 8:
            raise ValueError(f"{self.path} has {size} bytes; expected an index of REST, which has at least 8")
        data = np.memmap(self.path, np.uint8, "r")
        self.chunks: list[np.ndarray] = []
        place = 0
        while place < size:
            tokens, after = self._part(data, place)
            suffixes, place = self._part(data, after)
            if len(suffixes) * width != len(tokens) * 4 or len(tokens) % width:
                other = 6 - width
                if len(suffixes) * other == len(tokens) * 4:
                    flag = "leave the flag for 32-bit tokens out" if wide else "pass the flag for 32-bit tokens (wide)"
                    raise ValueError(f"{self.path} holds tokens of {8 * other} bits, not {8 * width}: {flag}")
                raise ValueError(
                    f"{self.path} is no index of REST: {len(tokens)} bytes of tokens and "
                    f"{len(suffixes)} of suffix array do not belong together"
                )
            self.chunks.append(tokens.view(np.dtype("<u4" if wide else "<u2")))

    def _part(self, data: np.ndarray, place: int) -> tuple[np.ndarray, int]:
        """The part whose length stands at ``place``, and where it ends."""
        if place + 4 > len(data):
            raise ValueError(f"{self.path} is truncated: it ends within the length of a part, at byte {len(data)}")
        length = int.from_bytes(data[place : place + 4].tobytes(), "little")
        end = place + 4 + length
        if end > len(data):
            raise ValueError(
                f"{self.path} is truncated, or no index of REST: a part should end at byte "
                f"{end}, the file has {len(data)}"
            )
        return data[place + 4 : end], end

    def __iter__(self) -> Iterator[np.ndarray]:
        for chunk in self.chunks:
            if self.starts_with is None:
                yield chunk
                continue
            cuts = np.flatnonzero(chunk == self.starts_with)
            begin = 0
            for cut in [*cuts[cuts > 0].tolist(), len(chunk)]:
                yield chunk[begin:cut]
                begin = cut


def import_rest(
    source: str | Path,
    path: str | Path,
    *,
    tokenizer: PreTrainedTokenizerBase | None = None,
    vocabulary: int | None = None,
    wide: bool = False,
    starts_with: int | None = None,
    progress: bool = True,
) -> TokenStore:
    """Make a store, with its suffix array, of an index file of REST.

    Parameters
    ----------
    source : path
        The ``.idx`` file.
    path : path
        Folder of the store.
    tokenizer : PreTrainedTokenizerBase, optional
        The one the index was made with; its fingerprint is kept. The file cannot tell whether it is the right
        one, apart from ids that it does not have.
    vocabulary : int, optional
        Number of token ids, where no tokenizer is given.
    wide, starts_with
        As for :class:`RestIndex`.
    progress : bool
        Show bars.

    Raises
    ------
    ValueError
        If neither or both of ``tokenizer`` and ``vocabulary`` are given, the file is no index of REST, or an
        id in it is beyond the vocabulary.
    """
    if (tokenizer is None) == (vocabulary is None):
        raise ValueError(
            "give either the tokenizer the index was made with or the number of its token ids (vocabulary)"
        )
    index = RestIndex(source, wide, starts_with)
    about = {
        "name": index.path.name,
        "format": "REST .idx",
        "bytes": index.path.stat().st_size,
        "chunks": len(index.chunks),
        "starts_with": starts_with,
    }
    fingerprint = None if tokenizer is None else tokenizer_fingerprint(tokenizer)
    return build_tokens(
        path,
        index,
        vocabulary if tokenizer is None else tokenizer_vocabulary(tokenizer),
        fingerprint=fingerprint,
        sources=[about],
        short_documents="skip",
        progress=progress,
        finish=lambda folder: build_suffix_array(folder, progress),
    )
