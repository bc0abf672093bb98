"""From a hidden state to the key of a dense index: z-scores, principal components, unit length (DReSD, sections 3.2 to 3.4)."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

#: Added to the variance of equation 1 and the least norm of equation 2; the paper names no value.
EPSILON = 1e-5


def check_states(states: np.ndarray, width: int | None = None) -> np.ndarray:
    """Hidden states as a finite float32 array of two dimensions.

    Parameters
    ----------
    states : array of shape (n, width) or (width,)
    width : int, optional
        The one that they must have.

    Returns
    -------
    float32 array of shape (n, width)

    Raises
    ------
    ValueError
        If the shape is another, or a number is not finite.

    Examples
    --------
    >>> from specdec_lib.datastores.reduction import check_states
    >>> check_states([1.0, 2.0])
    array([[1., 2.]], dtype=float32)
    """
    states = np.atleast_2d(np.asarray(states, dtype=np.float32))
    if states.ndim != 2 or (width is not None and states.shape[1] != width):
        expected = "rows of hidden states" if width is None else f"rows of width {width}"
        raise ValueError(f"states have shape {states.shape}; expected {expected}: are they another model's?")
    # A sum is NaN or infinite where a value is, and reads each value once.
    if not np.isfinite(states.sum(dtype=np.float64)):
        bad = np.argwhere(~np.isfinite(states))
        if len(bad):
            row, column = bad[0]
            raise ValueError(
                f"row {row} of the states has {states[row, column]} in column {column}; expected finite numbers: use a wider type"
            )
    return states


class Moments:
    """Mean and covariance of states that come in parts.

    Parameters
    ----------
    *parts : arrays of shape (n, width)

    Examples
    --------
    >>> import numpy as np
    >>> from specdec_lib.datastores.reduction import Moments
    >>> states = np.random.default_rng(0).normal(size=(100, 3))
    >>> moments = Moments(states[:40], states[40:])
    >>> np.allclose(moments.covariance(), np.cov(states.T, bias=True), atol=1e-6)
    True
    """

    def __init__(self, *parts: np.ndarray) -> None:
        self.count, self.mean, self._products = 0, np.zeros(0), np.zeros((0, 0))
        for states in parts:
            self.add(states)

    def add(self, states: np.ndarray) -> None:
        """Take in states, shape (n, width)."""
        states = check_states(states, len(self.mean) if self.count else None)
        if len(states):
            part = Moments()
            part.count, part.mean = len(states), states.mean(0, dtype=np.float64)
            centred = states - part.mean.astype(np.float32)
            part._products = (centred.T @ centred).astype(np.float64)
            self.merge(part)

    def merge(self, other: Moments) -> None:
        """Take in what another one has taken in."""
        if not other.count:
            return
        if not self.count:
            self.count, self.mean, self._products = other.count, other.mean, other._products.copy()
            return
        if len(self.mean) != len(other.mean):
            raise ValueError(f"states of width {len(other.mean)} are added to states of width {len(self.mean)}")
        total = self.count + other.count
        apart = other.mean - self.mean
        self._products += other._products + np.outer(apart, apart) * (self.count * other.count / total)
        self.mean = self.mean + apart * (other.count / total)
        self.count = total

    def covariance(self) -> np.ndarray:
        """Float64 array, shape (width, width); divided by the count."""
        if not self.count:
            raise ValueError("there are no states; expected at least one")
        return self._products / self.count


@dataclass(frozen=True, eq=False)
class Reduction:
    """A hidden state's way to a key: ``v W + b``, then unit length; z-scores and principal components are both affine.

    Examples
    --------
    >>> import numpy as np
    >>> from specdec_lib.datastores.reduction import Moments, fit
    >>> states = np.random.default_rng(0).normal(size=(100, 8))
    >>> keys = fit(Moments(states), dims=3).apply(states)
    >>> keys.shape, np.allclose(np.linalg.norm(keys, axis=1), 1.0)
    ((100, 3), True)
    """

    #: What is subtracted, and divided by: sqrt(variance + epsilon) of equation 1, ones without z-scores; float64, shape (width,).
    mean: np.ndarray
    scale: np.ndarray
    #: The first principal components of the states after that; float64, shape (width, dims).
    components: np.ndarray
    #: Share of the variance of each of all components, largest first (figure 5 is its running sum); float64, shape (width,).
    explained: np.ndarray
    zscore: bool
    normalise: bool

    @property
    def matrix(self) -> np.ndarray:
        """Float32 array, shape (dims, width)."""
        return (self.components / self.scale[:, None]).T.astype(np.float32)

    @property
    def bias(self) -> np.ndarray:
        """Float32 array, shape (dims,)."""
        return (-(self.mean / self.scale) @ self.components).astype(np.float32)

    def apply(self, states: np.ndarray) -> np.ndarray:
        """Keys, float32 of shape (n, dims), of hidden states of shape (n, width)."""
        keys = check_states(states, len(self.mean)) @ self.matrix.T + self.bias
        if self.normalise:
            keys /= np.maximum(np.linalg.norm(keys, axis=1, keepdims=True), np.finfo(np.float32).tiny)
        return keys


def fit(moments: Moments, dims: int, *, zscore: bool = True, normalise: bool = True) -> Reduction:
    """z-scores and principal components of states whose moments are known (DReSD, sections 3.2 to 3.4).

    Parameters
    ----------
    moments : Moments
        Of about a million states in the paper.
    dims : int
        Components that are kept, 64 in the paper.
    zscore : bool
        Whether each dimension is divided by its standard deviation, with :data:`EPSILON` added to the variance (equation 1);
        without it the components are those of the centred states.
    normalise : bool
        Whether each key is scaled to unit length (equation 2), which makes inner products cosines.

    Returns
    -------
    Reduction

    Examples
    --------
    >>> import numpy as np
    >>> from specdec_lib.datastores.reduction import Moments, fit
    >>> states = np.random.default_rng(0).normal(size=(100, 8))
    >>> round(float(fit(Moments(states), dims=3).explained.sum()), 6)
    1.0
    """
    width = len(moments.mean)
    covariance = moments.covariance()
    if not hasattr(dims, "__index__") or not 1 <= dims <= width:
        raise ValueError(f"dims is {dims!r}; expected a whole number from 1 to the states' width, {width}")
    variance = np.diag(covariance)
    scale = np.sqrt(variance + EPSILON) if zscore else np.ones(width)
    values, vectors = np.linalg.eigh(covariance / np.outer(scale, scale))
    values, vectors = np.maximum(values[::-1], 0), vectors[:, ::-1]
    # Signs of eigenvectors are free: the largest entry is made positive, so that a build gives the same file.
    largest = np.take_along_axis(vectors, np.abs(vectors).argmax(0)[None], 0)
    total = values.sum()
    return Reduction(
        moments.mean,
        scale,
        (vectors * np.where(largest < 0, -1.0, 1.0))[:, :dims],
        values / total if total > 0 else values,
        zscore,
        normalise,
    )
