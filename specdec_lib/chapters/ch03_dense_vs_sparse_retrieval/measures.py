"""What is counted of each replayed output, and the rates and ratios of these with intervals over prompts.

A frame has one row an output. Sums over the outputs of a prompt are what the bootstrap draws.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from transformers import PreTrainedModel

from specdec_lib import paths
from specdec_lib.decoding.contract import Drafter
from specdec_lib.decoding.results import Generation
from specdec_lib.decoding.tree import DraftTree
from specdec_lib.experiments.all_cores import on_all_cores
from specdec_lib.experiments.pass_costs import step_samples, step_seconds
from specdec_lib.experiments.recorded_runs import Recording, replay_all
from specdec_lib.experiments.statistics import Counts, Interval, interval_of_sums, mean, pooled_rate
from specdec_lib.models.fingerprint import fingerprint

#: Widths by which passes are counted: a pass of any width counts as two parts, at the widths next to it, so that every
#: price that is linear between these widths is exact.
WIDTHS = (1, 2, 4, 8, 16, 32, 64, 128, 256)
WIDTH_COLUMNS = tuple(f"w{width}" for width in WIDTHS)
#: What a rate is the ratio of. A draft's rate divides by its depth, so that only drafts of equal depth compare.
RATES = {
    "tokens_per_pass": ("tokens", "passes"),
    "characters_per_pass": ("characters", "passes"),
    "accepted_per_draft": ("accepted", "drafts"),
    "acceptance_rate": ("accepted", "depth"),
    "share_with_draft": ("drafts", "passes"),
    "nodes_per_draft": ("nodes", "drafts"),
    "accepted_per_node": ("accepted", "nodes"),
    "nodes_per_row_token": ("nodes", "row_tokens"),
    "draft_seconds_per_token": ("draft_seconds", "tokens"),
    "share_of_time": ("draft_seconds", "seconds"),
    "share_short_matches": ("matched_2", "matched"),
    "share_matched": ("matched", "passes"),
    "share_longer_matches": ("matched_17", "passes"),
}


def width_parts(widths: Sequence[int]) -> np.ndarray:
    """Passes counted at :data:`WIDTHS`: each width is the weighted mean of its two neighbours there; above the last, of
    the last two.

    Raises
    ------
    ValueError
        If a width is below 1.
    """
    each = np.asarray(widths, float)
    if (each < WIDTHS[0]).any():
        raise ValueError(f"a pass has {each.min():.0f} tokens; expected 1 or more")
    high = np.clip(np.searchsorted(WIDTHS, each), 1, len(WIDTHS) - 1)
    known = np.asarray(WIDTHS, float)
    share = (each - known[high - 1]) / (known[high] - known[high - 1])
    parts = np.bincount(high - 1, 1 - share, len(WIDTHS))
    return parts + np.bincount(high, share, len(WIDTHS))


def counts(run: Generation) -> dict[str, float]:
    """What one replay is counted by, the prefill and the token that it gives left out."""
    drafting = [step for step in run.steps if step.drafted]
    return {
        "tokens": len(run.tokens) - 1,
        "passes": len(run.steps),
        "drafts": len(drafting),
        "nodes": sum(step.drafted for step in drafting),
        "depth": sum(step.tree.depth for step in drafting),
        "accepted": sum(step.accepted for step in drafting),
        "row_tokens": sum(row_tokens(step.tree) for step in drafting),
        "draft_seconds": sum(step.draft_seconds for step in run.steps),
        **dict(zip(WIDTH_COLUMNS, width_parts([step.width for step in run.steps]), strict=True)),
    }


def row_tokens(tree: DraftTree) -> int:
    """Tokens of a tree written as rows, one a leaf, each from a child of the root: the depths of its leaves, summed."""
    inner = set(tree.parents)
    return sum(depth for node, depth in enumerate(tree.depths) if node not in inner)


def outputs(recordings: Sequence[Recording], drafter: Drafter | None) -> pd.DataFrame:
    """Replay a drafter on recordings: :func:`of_runs`."""
    return of_runs(recordings, replay_all(recordings, drafter))


def outputs_each(recordings: Sequence[Recording], drafters: Mapping[Any, Drafter | None]) -> dict[Any, pd.DataFrame]:
    """Replay several drafters on recordings, on all cores: :func:`of_runs` by the drafter's name.

    The processes share their memory, so take times of drafting from :func:`outputs` instead.
    """

    def counted(drafter: Drafter | None, recording: Recording) -> dict[str, Any]:
        # Counted where it is replayed: a row is small, and the steps of a thousand outputs take long to send.
        (run,) = replay_all([recording], drafter)
        return _row(recording, run)

    rows = iter(on_all_cores([partial(counted, drafter, one) for drafter in drafters.values() for one in recordings]))
    return {name: pd.DataFrame(islice(rows, len(recordings))) for name in drafters}


def of_runs(recordings: Sequence[Recording], runs: Sequence[Generation]) -> pd.DataFrame:
    """One row an output with its ``task``, ``prompt``, whether it ``looped``, and its :func:`counts`."""
    return pd.DataFrame(_row(recording, run) for recording, run in zip(recordings, runs, strict=True))


def _row(recording: Recording, run: Generation) -> dict[str, Any]:
    return {
        "task": recording.task,
        "prompt": f"{recording.task} {recording.prompt.id}",
        "looped": recording.looped,
        **counts(run),
    }


def _sums(frame: pd.DataFrame, columns: Sequence[str]) -> pd.DataFrame:
    # What groupby does, in a tenth of its time: a page asks for a few thousand rates.
    places, prompts = pd.factorize(frame["prompt"], sort=True)
    sums = {column: np.bincount(places, frame[column].to_numpy(float), len(prompts)) for column in columns}
    return pd.DataFrame(sums, index=pd.Index(prompts, name="prompt"))


def rate(frame: pd.DataFrame, of: str = "tokens_per_pass") -> Interval:
    """One of :data:`RATES`, pooled."""
    sums = _sums(frame, RATES[of])
    return pooled_rate(Counts(*(sums[column].to_numpy() for column in RATES[of])))


def mean_over_outputs(frame: pd.DataFrame, of: str) -> Interval:
    """The mean over outputs of one of :data:`RATES`, outputs without one left out; NaN if all are."""
    above, below = (frame[column] for column in RATES[of])
    there = (below > 0).to_numpy()
    return mean((above / below)[there].to_numpy(), frame["prompt"][there].tolist())


def telling(frame: pd.DataFrame) -> int:
    """How many prompts a rate is of: an output of a single token, which the prefill gives, has no pass to count."""
    return int(frame["prompt"][frame["passes"] > 0].nunique())


def speed(frame: pd.DataFrame, price: Mapping[int, float] | float = 1.0, drafting: float = 0.0) -> Interval:
    """Speed-up over plain decoding at a price of the passes.

    Parameters
    ----------
    frame : DataFrame
    price : mapping or float
        Price of a pass by its width, in passes over one token: linear between the widths given, and on with the last
        slope. Or one price of every pass.
    drafting : float
        Price of drafting for one emitted token.
    """
    table = _costs(frame, price, drafting)
    return pooled_rate(Counts(table.tokens.to_numpy(), table.cost.to_numpy()))


def _costs(frame: pd.DataFrame, price: Mapping[int, float] | float, drafting: float = 0.0) -> pd.DataFrame:
    table = _sums(frame, ("tokens", "passes", *WIDTH_COLUMNS))
    cost = table.passes * price if not isinstance(price, Mapping) else table[list(WIDTH_COLUMNS)] @ price_at(price)
    return table.assign(cost=cost + drafting * table.tokens)[["tokens", "cost"]]


def price_at(price: Mapping[int, float]) -> np.ndarray:
    """Prices at :data:`WIDTHS` (:func:`specdec_lib.experiments.pass_costs.step_seconds`)."""
    return np.array([step_seconds(price, width) for width in WIDTHS])


def prices_here(
    model: PreTrainedModel, context: int = 256, widths: Sequence[int] = WIDTHS, repeats: int = 15
) -> dict[int, float]:
    """Measured price of a pass by its width, in passes over one token: medians over passes of all widths in turns."""
    spent = step_samples(model, context, widths=widths, repeats=repeats)
    return {width: float(np.median(spent[width]) / np.median(spent[widths[0]])) for width in widths}


def ratio(ours: pd.DataFrame, theirs: pd.DataFrame, of: str = "tokens_per_pass") -> Interval:
    """Ratio of one of :data:`RATES` of two frames, paired where they have prompts in common; each prompt counts once."""
    return geometric_mean([(ours, theirs)], of)


def geometric_mean(pairs: Sequence[tuple[pd.DataFrame, pd.DataFrame]], of: str = "tokens_per_pass") -> Interval:
    """Geometric mean over several pairs of frames of the ratio of a rate, one bootstrap over all of their prompts."""
    return _of_tables([[_sums(frame, RATES[of]) for frame in pair] for pair in pairs])


def speed_ratio(ours: pd.DataFrame, theirs: pd.DataFrame, price: Mapping[int, float] | float) -> Interval:
    """Ratio of the speeds of two frames at one price of the passes."""
    return _of_tables([[_costs(frame, price) for frame in (ours, theirs)]])


def of_rates(frames: Sequence[pd.DataFrame], wanted: Callable[..., Any], of: str = "tokens_per_pass") -> Interval:
    """A function of a rate of several frames, one bootstrap over all of their prompts."""
    return _function([_sums(frame, RATES[of]) for frame in frames], wanted)


def _of_tables(pairs: Sequence[Sequence[pd.DataFrame]]) -> Interval:
    def of_ratios(*rates: Any) -> Any:
        return np.exp(sum(np.log(a / b) for a, b in zip(rates[::2], rates[1::2], strict=True)) / len(pairs))

    return _function([table for pair in pairs for table in pair], of_ratios)


def _function(tables: Sequence[pd.DataFrame], of_rates: Callable[..., Any]) -> Interval:
    """A function of the rates of several tables of prompts, each with what is above and below as its two columns.

    A prompt that a table lacks adds nothing to it.
    """
    names = sorted(set().union(*(table.index for table in tables)))
    columns = [table.reindex(names, fill_value=0).iloc[:, side].to_numpy() for table in tables for side in (0, 1)]
    return interval_of_sums(lambda *s: of_rates(*(a / b for a, b in zip(s[::2], s[1::2], strict=True))), columns, names)


def least(ratios: Mapping[Any, Interval] | Sequence[Interval]) -> Interval:
    """The ratio with the smallest estimate, with its own interval."""
    return min(ratios.values() if isinstance(ratios, Mapping) else ratios, key=lambda interval: interval.value)


# Sizes of the store ----------------------------------------------------------------------------------------------


def by_size(frame: pd.DataFrame, of: str = "tokens_per_pass") -> dict[int, Interval]:
    """A rate for each size of the store (``stored``), in ascending order."""
    return {int(size): rate(part, of) for size, part in frame.groupby("stored")}


def _row_of(size: float, degree: int) -> np.ndarray:
    return np.log10(size) ** np.arange(degree + 1)


def _sized(frame: pd.DataFrame, of: str, degree: int) -> tuple[list[pd.DataFrame], np.ndarray]:
    """Tables of a rate by size, and the matrix that gives the coefficients of the least-squares fit to their rates."""
    parts = [(size, _sums(part, RATES[of])) for size, part in frame.groupby("stored")]
    if len(parts) <= degree:
        raise ValueError(f"a curve of degree {degree} through {len(parts)} sizes; expected more sizes")
    return [table for _, table in parts], np.linalg.pinv(np.stack([_row_of(size, degree) for size, _ in parts]))


def at_size(
    frame: pd.DataFrame,
    size: float,
    of: str = "tokens_per_pass",
    degree: int = 1,
    then: Callable[[Any], Any] = lambda value: value,
) -> Interval:
    """What a polynomial in the logarithm of the store's size, fitted by least squares, gives for another size.

    Every bootstrap sample is fitted anew, so the interval is that of the fit over prompts. It knows nothing of whether
    the rate goes on along the curve: compare ``degree`` 1 and 2 for that.

    Parameters
    ----------
    frame : DataFrame
        Counts with the size of the store in ``stored``.
    size : float
        Tokens.
    of : str
        Of :data:`RATES`.
    degree : {1, 2}
    then : callable
        Applied to the rate, such as a division by the price of a pass.
    """
    tables, design = _sized(frame, of, degree)
    weights = _row_of(size, degree) @ design
    return _function(tables, lambda *rates: then(sum(w * r for w, r in zip(weights, rates, strict=True))))


def steps(frame: pd.DataFrame, of: str = "tokens_per_pass") -> list[Interval]:
    """Ratio of the rate with each size of the store to that with the next smaller one."""
    parts = [part for _, part in frame.groupby("stored")]
    return [ratio(larger, smaller, of) for smaller, larger in zip(parts, parts[1:], strict=False)]


def whole_growth(frame: pd.DataFrame, of: str = "tokens_per_pass") -> Interval:
    """Ratio of the rate with the largest store to that with the smallest."""
    parts = [part for _, part in frame.groupby("stored")]
    return ratio(parts[-1], parts[0], of)


def largest(frame: pd.DataFrame) -> pd.DataFrame:
    """The rows of the largest store."""
    return frame[frame.stored == frame.stored.max()]


def lead_at(ours: pd.DataFrame, theirs: pd.DataFrame, size: float) -> Interval:
    """Ratio of tokens per pass that the lines through two methods' rates give for another size of the store."""
    weights = _row_of(size, 1)
    return _of_lines(ours, theirs, lambda a, b: (weights @ a) / (weights @ b))


def lead_ends(ours: pd.DataFrame, theirs: pd.DataFrame) -> Interval:
    """Size of the store, as its decimal logarithm, at which the lines through two methods' rates cross."""
    return _of_lines(ours, theirs, lambda a, b: (a[0] - b[0]) / (b[1] - a[1]))


def _of_lines(ours: pd.DataFrame, theirs: pd.DataFrame, wanted: Callable[[Any, Any], Any]) -> Interval:
    (first, design), (second, other) = (_sized(frame, "tokens_per_pass", 1) for frame in (ours, theirs))

    def of_rates(*rates: Any) -> Any:
        return wanted(design @ np.stack(rates[: len(first)]), other @ np.stack(rates[len(first) :]))

    return _function([*first, *second], of_rates)


# Results that are committed --------------------------------------------------------------------------------------


def committed(
    name: str, folder: str | Path | None = None, **models: PreTrainedModel
) -> tuple[pd.DataFrame, dict[str, Any]] | None:
    """Rows of ``data/results/cpu/<name>.csv.gz`` and what its JSON file says of their origin.

    None where there are none, or where they are of other models than those given by their part, such as ``target=``.
    """
    path = paths.DATA / "results" / "cpu" if folder is None else Path(folder)
    if not (path / f"{name}.csv.gz").is_file():
        return None
    about = json.loads((path / f"{name}.json").read_text(encoding="utf-8"))
    if any(about.get(part) != fingerprint(model) for part, model in models.items()):
        return None
    return pd.read_csv(path / f"{name}.csv.gz"), about
