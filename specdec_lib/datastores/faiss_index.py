"""What of FAISS the dense index needs: making, chaining, tuning and reading an index."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from specdec_lib.datastores.exact_search import TorchSearch
from specdec_lib.datastores.reduction import Reduction
from specdec_lib.datastores.store_files import StoreError
from specdec_lib.decoding.checks import whole

if TYPE_CHECKING:
    import faiss


def load_faiss() -> Any:
    """The faiss module."""
    try:
        import faiss
    except ImportError as error:
        raise ImportError(
            f"a dense index needs faiss, which cannot be imported ({error}); install the extra "
            "'cpu' or 'gpu', never both: pip install 'specdec-lib[cpu]'"
        ) from None
    return faiss


@contextmanager
def one_thread() -> Iterator[Any]:
    """Let FAISS search on one thread; gives the faiss module."""
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
    """The search behind the reduction, still empty: what can be refused before there are states.

    ``width`` is that of a state; the rest is as for :func:`~specdec_lib.datastores.dense.build_dense_index`.
    """
    if not hasattr(dims, "__index__") or not 1 <= dims <= width:
        raise ValueError(f"dims is {dims!r}; expected a whole number from 1 to the states' width, {width}")
    faiss = load_faiss()
    try:
        index = faiss.index_factory(int(dims), factory, faiss.METRIC_INNER_PRODUCT)
    except (RuntimeError, TypeError) as error:
        reason = str(error).rstrip().splitlines()[-1].rpartition(": ")[2]
        raise ValueError(
            f"factory is {factory!r}; expected a factory string of FAISS for {dims} dimensions, "
            f"'Flat', 'IVF1024,Flat', 'IVF1024,PQ16x8' or 'HNSW32' say ({reason})"
        ) from None
    set_effort(index, nprobe, ef_search)
    return index


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


def _inner(index: faiss.Index) -> Any:
    """The index behind the transforms, as the class it is."""
    faiss = load_faiss()
    index = faiss.downcast_index(index)
    return faiss.downcast_index(index.index) if isinstance(index, faiss.IndexPreTransform) else index


def inner_ivf(index: faiss.Index) -> Any:
    """The IVF part of an index, None where it has none."""
    try:
        return load_faiss().extract_index_ivf(index)
    except RuntimeError:
        # One on a GPU is of another class.
        inner = _inner(index)
        return inner if hasattr(inner, "nprobe") else None


def set_effort(index: faiss.Index, nprobe: int | None = None, ef_search: int | None = None) -> None:
    """How much of an approximate index is searched: lists of IVF, candidates of HNSW."""
    hnsw = getattr(_inner(index), "hnsw", None)
    for name, field, value, part in (
        ("nprobe", "nprobe", nprobe, inner_ivf(index)),
        ("ef_search", "efSearch", ef_search, hnsw),
    ):
        if value is not None:
            if part is None:
                raise ValueError(f"{name} is given for an index that has none: nprobe is of IVF, ef_search of HNSW")
            setattr(part, field, whole(name, value, 1))


def read(path: Path, width: int, rows: int) -> faiss.IndexPreTransform:
    """Open an index of ``rows`` states of ``width`` values; its large arrays are memory-mapped."""
    try:
        index = load_faiss().read_index(str(path), load_faiss().IO_FLAG_MMAP_IFC)
    except RuntimeError as error:
        raise StoreError(
            f"{path} cannot be read by FAISS ({str(error).splitlines()[0]}); build the dense index again"
        ) from None
    if (index.d, index.ntotal) != (width, rows):
        raise StoreError(
            f"{path} holds {index.ntotal} states of width {index.d}, its manifest says {rows} "
            f"of width {width}: the index is damaged; build it again"
        )
    return index


def whole_keys(index: faiss.IndexPreTransform) -> np.ndarray | None:
    """All keys in order of their rows, float32 array of shape (rows, dims); None where the index holds them compressed."""
    faiss = load_faiss()
    inner = _inner(index)
    if isinstance(inner, faiss.IndexIVFFlat):
        inner.make_direct_map()
    elif not isinstance(inner, faiss.IndexFlat | faiss.IndexHNSWFlat):
        return None
    return inner.reconstruct_n(0, inner.ntotal)


def reduction_of(index: faiss.Index) -> tuple[np.ndarray, np.ndarray]:
    """Matrix, flat, and bias of the reduction that an index begins with."""
    faiss = load_faiss()
    linear = faiss.downcast_VectorTransform(faiss.downcast_index(index).chain.at(0))
    return faiss.vector_to_array(linear.A), faiss.vector_to_array(linear.b)


def torch_search(index: faiss.IndexPreTransform, device: torch.device | str) -> TorchSearch | None:
    """The index as an exact search by torch on a device; None where it holds its keys compressed."""
    keys = whole_keys(index)
    if keys is None:
        return None
    matrix, bias = reduction_of(index)
    return TorchSearch(matrix.reshape(-1, index.d), bias, index.chain.size() > 1, keys, device)


def faiss_on_gpu(index: faiss.IndexPreTransform) -> faiss.Index | None:
    """The index on the first GPU; None where FAISS was built without GPUs, sees none, or has no such index for one (HNSW)."""
    faiss = load_faiss()
    if not hasattr(faiss, "StandardGpuResources") or not faiss.get_num_gpus():
        return None
    resources = faiss.StandardGpuResources()
    try:
        moved = faiss.index_cpu_to_gpu(resources, 0, index)
    except RuntimeError:
        return None
    moved.resources = resources  # must live as long as the index
    return moved
