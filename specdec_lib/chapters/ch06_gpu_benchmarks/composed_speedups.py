"""Wall-clock time composed from parts: the steps of replayed runs at the measured cost of a pass of each width.

A widened model writes what the small one writes. So the small one's recordings give every step of every method, and the
wide model's passes, measured once for each width, give what each step costs. Many prompts are then as cheap as a few.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from specdec_lib.decoding.contract import Capture
from specdec_lib.decoding.sampling import Sampling
from specdec_lib.experiments.metrics import counts, pooled
from specdec_lib.experiments.pass_costs import step_seconds
from specdec_lib.experiments.prompt import Prompt
from specdec_lib.experiments.published_numbers import Priced, pass_prices, published_draft_price
from specdec_lib.experiments.recorded_runs import Recording, Runs, all_runs, prompts_of, select
from specdec_lib.experiments.recordings import record_once
from specdec_lib.experiments.statistics import Counts, Interval, pooled_rate, ratio_of_rates
from specdec_lib.experiments.workbench import ModelPair
from specdec_lib.methods import METHODS, PLAIN, compared_in, method_of, states

#: By method: for each repeat its runs, as :func:`specdec_lib.chapters.ch06_gpu_benchmarks.speedups.measure` gives them.
Timed = Mapping[str, Sequence[Runs]]


def composed(
    runs: Runs,
    times: Mapping[int, float],
    draft_step: float = 0.0,
    draft_token: float = 0.0,
    padded: bool = False,
) -> float:
    """Time that the steps of replayed runs would take at measured costs, prefill left out, in the unit of those.

    Parameters
    ----------
    runs : sequence of Generation
        Steps of any target with the same outputs, such as the small model's.
    times : mapping
        Time of a pass by width (:func:`specdec_lib.experiments.pass_costs.step_seconds`), in seconds or one-token passes.
    draft_step, draft_token : float
        Time to propose, in the same unit: for each step, and for each drafted token.
    padded : bool
        As for :func:`specdec_lib.experiments.pass_costs.step_seconds`.
    """
    return sum(
        step_seconds(times, step.width, padded) + draft_step + draft_token * step.drafted
        for run in runs
        for step in run.steps
    )


def replayed(
    pair: ModelPair,
    prompts: Sequence[Prompt],
    max_new_tokens: int,
    methods: Sequence[str] | None = None,
    sampling: Sampling | None = None,
) -> tuple[list[Recording], dict[str, list]]:
    """Recordings of the small target, and every method on them: replayed, or run for real where it cannot be.

    Parameters
    ----------
    pair : ModelPair
        Whose heads are chosen.
    prompts : sequence of Prompt
    max_new_tokens : int
    methods : sequence of str, optional
        By default all that the chapter compares, and plain decoding.
    sampling : Sampling, optional
        Greedy by default.

    Returns
    -------
    recordings : list of Recording
    runs : dict
        By method, one run a recording, in the state of the method's row.
    """
    methods = (PLAIN, *compared_in("06")) if methods is None else methods
    model = pair.small.target
    drafters, capture = pair.small.drafters(methods), Capture()
    for drafter in drafters.values():
        capture = capture if drafter is None else capture | drafter.capture
    recordings = record_once(model, pair.tokenizer, prompts, sampling, max_new_tokens, capture)
    return recordings, all_runs(model, recordings, drafters, states(drafters))


def replayed_seeds(
    pair: ModelPair,
    prompts: Sequence[Prompt],
    max_new_tokens: int,
    methods: Sequence[str],
    samplings: Sequence[Sampling],
) -> tuple[list[Recording], dict[str, list]]:
    """:func:`replayed` with each sampling, one after the other: several outputs of each prompt."""
    recordings: list[Recording] = []
    runs: dict[str, list] = {}
    for sampling in samplings:
        own, done = replayed(pair, prompts, max_new_tokens, methods, sampling)
        recordings += own
        for name, some in done.items():
            runs.setdefault(name, []).extend(some)
    return recordings, runs


def draft_costs(timed: Timed) -> dict[str, dict[str, float]]:
    """What a proposal cost in timed runs, in one-token passes of the target.

    The passes are those of plain decoding in the same runs. The methods took turns there, so a machine that becomes slower
    between two experiments does not make drafting dearer.

    Parameters
    ----------
    timed : mapping
        By method, plain decoding among them: for each repeat its runs
        (:func:`specdec_lib.chapters.ch06_gpu_benchmarks.speedups.measure`).

    Returns
    -------
    dict
        By method the arguments of :func:`composed`, as the method's row says that its drafting is priced: by the steps, or by
        the drafted tokens.
    """
    passes = [step.verify_seconds for runs in timed[PLAIN] for run in runs for step in run.steps]
    one_pass, found = sum(passes) / len(passes), {}
    for method, repeats in timed.items():
        runs = [run for repeat in repeats for run in repeat]
        spent = sum(step.draft_seconds for run in runs for step in run.steps) / one_pass
        drafted = sum(step.drafted for run in runs for step in run.steps)
        steps = sum(len(run.steps) for run in runs)
        row = method_of(method)
        by_token = row is not None and row.price == "token" and drafted
        found[method] = {"draft_token": spent / drafted} if by_token else {"draft_step": spent / steps}
    return found


def composed_table(
    recordings: Sequence[Recording],
    runs: Mapping[str, Runs],
    times: Mapping[int, float],
    costs: Mapping[str, Mapping[str, float]],
    tasks: Sequence[str],
    padded: bool = False,
) -> list[dict[str, Any]]:
    """Speed-up of every method over plain decoding at measured costs, by task and over all.

    Returns
    -------
    list of dict
        ``method``, ``task``, ``speedup`` (:class:`~specdec_lib.experiments.statistics.Interval`: ratio of pooled rates,
        prefill left out), ``tokens_per_forward`` (:class:`~specdec_lib.experiments.statistics.Interval`) and ``width``, the
        mean tokens of a pass. A task without a step after
        the prefill has no row.
    """
    pricing, rows = Pricing(times, costs, padded), []
    for task in ["all", *tasks]:

        def keep(recording: Recording, task: str = task) -> bool:
            return task in ("all", recording.task)

        for method, done in runs.items():
            kept = select(done, recordings, keep)
            stats = pooled(kept)
            if not stats["calls"]:
                continue  # every output ends with its first token, which the prefill gives
            drafted = sum(step.drafted for run in kept for step in run.steps)
            rows.append(
                {
                    "method": method,
                    "task": task,
                    "speedup": pricing.over(recordings, runs, method, PLAIN, keep),
                    "tokens_per_forward": _tokens_per_forward([r for r in recordings if keep(r)], kept),
                    "width": 1 + drafted / stats["calls"],
                }
            )
    return rows


def _tokens_per_forward(recordings: Sequence[Recording], runs: Runs) -> Interval:
    return pooled_rate(counts(runs, "tokens_per_forward"), prompts_of(recordings))


def at_published_prices(
    recordings: Sequence[Recording], runs: Mapping[str, Runs], tasks: Sequence[str]
) -> dict[Priced, list[dict[str, Any]]]:
    """:func:`composed_table` at each published price of a pass (``data/published/pass_prices.csv``).

    A pass of a draft model costs the share of the target's that SpecDec++ reports. Drafting without a model costs nothing
    beyond the price of the pass, which has it inside for Spec-Bench.
    """
    costs = published_costs(runs)
    return {priced: composed_table(recordings, runs, prices, costs, tasks) for priced, prices in pass_prices().items()}


def published_costs(methods: Iterable[str]) -> dict[str, dict[str, float]]:
    """What proposals cost at published prices, by method as :func:`draft_costs`, in passes of the target."""
    rows = {name: method_of(name) for name in methods}
    price = published_draft_price()
    return {name: {"draft_token": price} for name, row in rows.items() if row is not None and row.price == "token"}


@dataclass(frozen=True)
class Pricing:
    """What steps cost: ``times`` of a pass by width, ``costs`` of a proposal by method and ``padded``, as for
    :func:`composed`."""

    times: Mapping[int, float]
    costs: Mapping[str, Mapping[str, float]]
    padded: bool = False

    def seconds(self, name: str, runs: Runs) -> list[float]:
        """Time of each run of a method; a variant ``"name, variant"`` drafts at the price of its method."""
        cost = self.costs.get(name, self.costs.get(name.partition(",")[0], {}))
        return [composed([run], self.times, padded=self.padded, **cost) for run in runs]

    def over(
        self,
        recordings: Sequence[Recording],
        runs: Mapping[str, Runs],
        ours: str,
        theirs: str,
        keep: Callable[[Recording], bool] = lambda recording: True,
    ) -> Interval:
        """Tokens per second of one method over those of another, over the kept recordings together."""
        places = [i for i, recording in enumerate(recordings) if keep(recording)]
        prompts = prompts_of([recordings[i] for i in places])
        rates = []
        for name in (ours, theirs):
            own = [runs[name][i] for i in places]
            rates.append(Counts([len(run.tokens) - 1 for run in own], self.seconds(name, own)))
        return ratio_of_rates(*rates, prompts)

    def step(self, recordings: Sequence[Recording], runs: Mapping[str, Runs], ours: str, theirs: str) -> Interval:
        """Mean time of a step of one method over that of another."""
        prompts = prompts_of(recordings)
        rates = (
            Counts(self.seconds(name, runs[name]), [len(run.steps) for run in runs[name]]) for name in (ours, theirs)
        )
        return ratio_of_rates(*rates, prompts)


def over_plain(
    recordings: Sequence[Recording], runs: Mapping[str, Runs], names: Iterable[str], prices: Mapping[str, Pricing]
) -> dict[str, dict[str, Interval]]:
    """Speed-up over plain decoding, all tasks together: by method and by the name of what a pass costs."""
    return {
        name: {price: pricing.over(recordings, runs, name, PLAIN) for price, pricing in prices.items()}
        for name in names
    }


def without_loops(
    recordings: Sequence[Recording],
    runs: Mapping[str, Runs],
    times: Mapping[int, float],
    costs: Mapping[str, Mapping[str, float]],
    padded: bool = False,
) -> list[dict[str, Any]]:
    """:func:`composed_table` of the outputs that do not end in a loop."""
    places = [i for i, recording in enumerate(recordings) if not recording.looped]
    kept = [recordings[i] for i in places]
    done = {name: [own[i] for i in places] for name, own in runs.items()}
    return composed_table(kept, done, times, costs, list(dict.fromkeys(r.task for r in kept)), padded)


def composing_errors(
    timed: Timed,
    measured: Mapping[str, float],
    times: Mapping[int, float],
    costs: Mapping[str, Mapping[str, float]],
    padded: bool = False,
) -> dict[str, float]:
    """Composed over measured speed-up of the timed runs, by method; 1 where composing is exact.

    Parameters
    ----------
    timed : mapping
        By method: for each repeat its runs, of which the first is composed.
    measured : mapping
        By method: the measured speed-up over all tasks.
    times, costs, padded
        As for :func:`composed_table`.
    """
    plain = composed(timed[PLAIN][0], times, padded=padded)
    return {
        name: plain / composed(timed[name][0], times, padded=padded, **costs[name]) / value
        for name, value in measured.items()
        if name != PLAIN
    }


def variants_table(
    recordings: Sequence[Recording], runs: Mapping[str, Runs], names: Iterable[str], prices: Mapping[str, Pricing]
) -> list[dict[str, Any]]:
    """Variants of methods over all tasks.

    Returns
    -------
    list of dict
        ``method``, ``tokens_per_forward``, ``width``, the mean tokens of a pass, and ``speedups`` by the name of what a pass
        costs.
    """
    rows = []
    for name in names:
        stats = pooled(runs[name])
        drafted = sum(step.drafted for run in runs[name] for step in run.steps)
        rows.append(
            {
                "method": name,
                "tokens_per_forward": _tokens_per_forward(recordings, runs[name]),
                "width": 1 + drafted / stats["calls"],
                "speedups": over_plain(recordings, runs, [name], prices)[name],
            }
        )
    return rows


#: Slugs of the methods that the claims compare with plain decoding.
_CLAIMED = ("rest", "pld", "dresd", "specdec", "h", "a")


def claimed_ratios(
    recordings: Sequence[Recording], runs: Mapping[str, Runs], here: Pricing, gpu: Pricing
) -> dict[str, tuple[Interval, bool]]:
    """The ratios of speeds that the papers' claims are decided by.

    Parameters
    ----------
    recordings : sequence of Recording
    runs : mapping
        By method, and by variant: ``"PLD, partial"``, ``"REST, 8 nodes"``, ``"REST, 64 nodes"``, ``"REST, small store"`` and
        ``"REST, small store from 1"``.
    here, gpu : Pricing
        At the costs of this machine, and at published ones of a GPU.

    Returns
    -------
    dict
        By recorded name: the ratio, and whether it comes from a clock.
    """

    def over(
        ours: str, theirs: str, pricing: Pricing = here, keep: Callable[[Recording], bool] = lambda recording: True
    ) -> tuple[Interval, bool]:
        return pricing.over(recordings, runs, ours, theirs, keep), pricing is here

    found, named = {}, {row.slug: name for name, row in METHODS.items()}
    rest, pld, specdec = (named[short] for short in ("rest", "pld", "specdec"))
    for task, end in (("completion", "completion"), ("multi-turn", "two_turn")):
        found[f"composed_rest_over_specdec_{end}"] = over(rest, specdec, keep=lambda r, task=task: r.task == task)
    found["composed_unlooped_rest_over_plain"] = over(rest, PLAIN, keep=lambda r: not r.looped)
    found["composed_rest_8_nodes_over_plain"] = over("REST, 8 nodes", PLAIN)
    for pricing, end in ((here, ""), (gpu, "_gpu")):
        for short in _CLAIMED:
            found[f"composed_{short}_over_plain{end}"] = over(named[short], PLAIN, pricing)
        for short, name in (("same_text", "small store"), ("from_1_same_text", "small store from 1")):
            found[f"composed_dresd_over_rest_{short}{end}"] = over(named["dresd"], f"REST, {name}", pricing)
        found[f"composed_h_over_pld_all{end}"] = over(named["h"], pld, pricing)
        others = (pld, "PLD, partial", rest, specdec)
        best = max(others, key=lambda name, pricing=pricing: pricing.over(recordings, runs, name, PLAIN).value)
        for short in ("h", "a"):
            found[f"composed_{short}_over_best_all{end}"] = over(named[short], best, pricing)
    found["store_growth_speed_ratio"] = over("REST, 64 nodes", "REST, small store")
    # The same text from both, so the speed grows by less than the tokens per pass by what a step grows.
    found["store_growth_speed_over_tokens"] = (
        here.step(recordings, runs, "REST, small store", "REST, 64 nodes"),
        True,
    )
    return found
