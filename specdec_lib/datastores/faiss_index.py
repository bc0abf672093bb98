"""What of FAISS the dense index needs: making, chaining, tuning and reading an index."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from specdec_lib.datastores.reduction import Reduction
from specdec_lib.decoding.checks import whole_number
from specdec_lib.files import StoreError

if TYPE_CHECKING:
    import faiss


def load_faiss() -> Any:
    """The faiss module.

    Returns
    -------
    module

    Raises
    ------
    ImportError
        Says how to install it.

    Examples
    --------
    >>> from specdec_lib.datastores.faiss_index import load_faiss
    >>> load_faiss().__name__
    'faiss'
    """
    try:
        import faiss
    except ImportError as error:
        raise ImportError(f"a dense index needs faiss ({error}): pip install 'specdec-lib[cpu]'") from None
    return faiss


@contextmanager
def one_thread() -> Iterator[Any]:
    """Let FAISS search on one thread.

    Yields
    ------
    module
        faiss.

    Examples
    --------
    >>> from specdec_lib.datastores.faiss_index import one_thread
    >>> with one_thread() as faiss:
    ...     print(faiss.omp_get_max_threads())
    1
    """
    faiss = load_faiss()
    before = faiss.omp_get_max_threads()
    faiss.omp_set_num_threads(1)
    try:
        yield faiss
    finally:
        faiss.omp_set_num_threads(before)


def empty_index(
    width: int, dims: int = 64, factory: str = "Flat", nprobe: int | None = None, ef_search: int | None = None
) -> faiss.Index:
    """The search behind the reduction, still empty: what can be rejected before there are states.

    Parameters
    ----------
    width : int
        Of a state.
    dims, factory, nprobe, ef_search
        As for :func:`~specdec_lib.datastores.dense.build_dense_index`.

    Returns
    -------
    faiss.Index

    Examples
    --------
    >>> from specdec_lib.datastores.faiss_index import empty_index
    >>> empty_index(width=64, dims=16, factory="HNSW32").d
    16
    >>> empty_index(width=64, dims=16, factory="Fast")
    Traceback (most recent call last):
        ...
    ValueError: factory is 'Fast'; expected a factory string of FAISS, 'Flat', 'IVF1024,PQ16x8' or 'HNSW32' say (...)
    """
    if not hasattr(dims, "__index__") or not 1 <= dims <= width:
        raise ValueError(f"dims is {dims!r}; expected a whole number from 1 to the states' width, {width}")
    faiss = load_faiss()
    try:
        index = faiss.index_factory(int(dims), factory, faiss.METRIC_INNER_PRODUCT)
    except (RuntimeError, TypeError) as error:
        reason = str(error).rstrip().splitlines()[-1].rpartition(": ")[2]
        raise ValueError(
            f"factory is {factory!r}; expected a factory string of FAISS, 'Flat', 'IVF1024,PQ16x8' or 'HNSW32' say ({reason})"
        ) from None
    for part in _parts(index):
        kind = type(part).__name__
        if part.metric_type != faiss.METRIC_INNER_PRODUCT:
            why = "searches by another distance than the inner product"
        elif "IDMap" in kind:
            why = "numbers its rows by ids of one's own; leave IDMap out"
        elif not _TAKEN.fullmatch(kind):
            why = "is not known to add states in parts and to be searched"
        else:
            why = ""
        if why:
            raise ValueError(
                f"factory is {factory!r}, whose {kind} {why}; expected 'Flat', 'IVF1024,PQ16x8' or 'HNSW32', say"
            )
    set_effort(index, nprobe, ef_search)
    return index


#: Indexes that were tried: they add states in parts, and give the largest inner products, also when read from a file.
_TAKEN = re.compile(
    r"Index(FlatIP|PreTransform|Refine|RefineFlat|HNSWFlat|HNSWSQ|(IVF)?(Flat|FlatDedup|ScalarQuantizer|PQ|PQFastScan"
    r"|RaBitQ|RaBitQFastScan|(Product)?(Residual|LocalSearch)Quantizer(FastScan)?))"
)


def _parts(index: faiss.Index) -> Iterator[faiss.Index]:
    """An index and those that it passes its states on to."""
    faiss = load_faiss()
    while index is not None:
        index = faiss.downcast_index(index)
        yield index
        index = index.index if isinstance(index, faiss.IndexPreTransform) else getattr(index, "base_index", None)


def check_lists(index: faiss.Index, factory: str, states: int) -> None:
    """Reject an index of more lists or centroids than there are states."""
    faiss = load_faiss()
    for part in _parts(index):
        codes = [part.pq.ksub] if hasattr(part, "pq") else []
        for name in ("rq", "lsq", "prq", "plsq"):
            if hasattr(part, name):
                codes += [1 << int(bits) for bits in faiss.vector_to_array(getattr(part, name).nbits)]
        if codes and max(codes) > states:
            raise ValueError(
                f"factory is {factory!r} with codes of {max(codes)} centroids, for {states} states; expected no more centroids "
                "than states: say 'Flat'"
            )
    ivf = faiss.try_extract_index_ivf(index)
    if ivf is not None and ivf.nlist > states:
        raise ValueError(
            f"factory is {factory!r} with {ivf.nlist} lists, for {states} states; expected no more lists than "
            f"states, better 1 for each 39: say 'IVF{max(1, states // 39)}'"
        )


def chain(reduction: Reduction, inner: faiss.Index) -> faiss.IndexPreTransform:
    """A reduction and the index behind it as one FAISS index of hidden states."""
    faiss = load_faiss()
    matrix = reduction.matrix
    linear = faiss.LinearTransform(matrix.shape[1], matrix.shape[0], True)
    faiss.copy_array_to_vector(np.ascontiguousarray(matrix).ravel(), linear.A)
    faiss.copy_array_to_vector(reduction.bias, linear.b)
    linear.is_trained = True
    if reduction.normalise:
        whole = faiss.IndexPreTransform(faiss.NormalizationTransform(matrix.shape[0], 2.0), inner)
        whole.prepend_transform(linear)
    else:
        whole = faiss.IndexPreTransform(linear, inner)
    return whole


def set_effort(index: faiss.Index, nprobe: int | None = None, ef_search: int | None = None) -> None:
    """How much of an approximate index is searched.

    Parameters
    ----------
    index : faiss.Index
    nprobe : int, optional
        Lists of an IVF index.
    ef_search : int, optional
        Candidates of an HNSW index.

    Raises
    ------
    ValueError
        If the index has no such setting.

    Examples
    --------
    >>> from specdec_lib.datastores.faiss_index import empty_index, set_effort
    >>> index = empty_index(width=64, dims=16, factory="IVF8,Flat")
    >>> set_effort(index, nprobe=4)
    >>> index.nprobe
    4
    """
    faiss = load_faiss()
    inner = faiss.downcast_index(index)
    inner = faiss.downcast_index(inner.index) if isinstance(inner, faiss.IndexPreTransform) else inner
    for name, field, value, part in (
        ("nprobe", "nprobe", nprobe, faiss.try_extract_index_ivf(index)),
        ("ef_search", "efSearch", ef_search, getattr(inner, "hnsw", None)),
    ):
        if value is not None:
            if part is None:
                raise ValueError(f"{name} is given for an index that has none: nprobe is of IVF, ef_search of HNSW")
            setattr(part, field, whole_number(name, value, 1))


def read(path: Path, width: int, rows: int) -> faiss.IndexPreTransform:
    """Open an index of ``rows`` states of ``width`` values; its large arrays are memory-mapped."""
    try:
        index = load_faiss().read_index(str(path), load_faiss().IO_FLAG_MMAP_IFC)
    except RuntimeError as error:
        raise StoreError(f"{path} cannot be read by FAISS ({str(error).splitlines()[0]}); build it again") from None
    if (index.d, index.ntotal) != (width, rows):
        raise StoreError(f"{path} holds {index.ntotal} states of width {index.d}, not {rows} of {width}; build it anew")
    return index


def reduction_of(index: faiss.Index) -> tuple[np.ndarray, np.ndarray]:
    """Matrix, flat, and bias of the reduction that an index begins with."""
    faiss = load_faiss()
    linear = faiss.downcast_VectorTransform(faiss.downcast_index(index).chain.at(0))
    return faiss.vector_to_array(linear.A), faiss.vector_to_array(linear.b)
