"""What must hold of the values that each notebook records, whatever its parameters.

By name of notebook: functions from the recorded values to a truth value; the docstring says what failed. Only
relations that follow from the definitions belong here, never a number that was once measured.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

Identity = Callable[[dict[str, Any]], bool]


def none_of(faults: str, among: str) -> Identity:
    """Something was counted, and none of it was at fault."""

    def identity(values: dict[str, Any]) -> bool:
        return values[among] > 0 and values[faults] == 0

    identity.__doc__ = f"{faults} is 0 and {among} is not"
    return identity


def share(*names: str) -> Identity:
    """Each of the values is a share."""

    def identity(values: dict[str, Any]) -> bool:
        return all(0 <= values[name] <= 1 for name in names)

    identity.__doc__ = f"{', '.join(names)} lie between 0 and 1"
    return identity


def plain_decoding_is_its_own_measure(values: dict[str, Any]) -> bool:
    """Plain decoding is once as fast as itself, by the clock and composed."""
    kinds = ("speedup_plain_", "composed_plain_", "composed_unlooped_plain_")
    found = [[value for name, value in values.items() if name.startswith(kind)] for kind in kinds]
    return all(own and all(abs(value - 1) < 1e-3 for value in own) for own in found)


def passes_take_time(values: dict[str, Any]) -> bool:
    """Every pass takes some time."""
    return all(values[f"step_ms_{name}_{width}"] > 0 for name in ("eager", "transformers") for width in ("w1", "w32"))


def a_step_is_at_least_one_token(values: dict[str, Any]) -> bool:
    """Drafting takes no longer a token than a step, for every method; plain decoding's steps are its tokens."""
    beginning = "draft_ms_per_step_"
    steps = {name.removeprefix(beginning): ms for name, ms in values.items() if name.startswith(beginning)}
    tokens = {method: values[f"draft_ms_per_token_{method}"] for method in steps}
    return (
        len(steps) > 1
        and all(0 <= tokens[method] <= ms * (1 + 1e-9) for method, ms in steps.items())
        and abs(tokens["plain"] - steps["plain"]) <= 1e-9 * steps["plain"]
    )


def plain_passes_are_the_unit(values: dict[str, Any]) -> bool:
    """A pass over one token costs 1, and no pass is free."""
    found = [value for name, value in values.items() if name.startswith("price_")]
    return values["price_1"] == 1 and len(found) > 2 and min(found) > 0


def every_system_emits_at_least_a_token(values: dict[str, Any]) -> bool:
    """No pass of any system emits less than one token."""
    found = [value for name, value in values.items() if name.startswith("found_")]
    return bool(found) and min(found) >= 1


def outputs_are_counted(values: dict[str, Any]) -> bool:
    """No more outputs are equal than were compared, and loops are among what was replayed."""
    return (
        0 <= values["bf16_equal"] <= values["bf16_outputs"]
        and 0 <= values["one_width_equal"] <= values["one_width_outputs"]
        and values["composed_looped_completion"] <= values["composed_looped"] <= values["composed_prompts"]
        and values["composed_completion"] < values["composed_prompts"]
    )


def no_rule_beats_the_best_policy(values: dict[str, Any]) -> bool:
    """The oracle is the cheapest, then the best policy, then every rule."""
    rules = ("best_fixed", "best_threshold", "theorem_rule", "no_delta_rule")
    return values["mdp_oracle_worst"] <= 1e-9 and all(values[f"mdp_{rule}_mean"] >= -1e-9 for rule in rules)


def heads_are_part_of_the_model(values: dict[str, Any]) -> bool:
    """The strong heads are credited, the chosen ones too, and all belong to the model."""
    credited = values["heads_credited"]
    return max(values["heads_strong"], values["heads_chosen"]) <= credited <= values["heads_total"]


def every_mark_has_a_verdict(values: dict[str, Any]) -> bool:
    """A mark is met, missed or not resolved."""
    return values["marks"] == sum(values[f"marks_{name}"] for name in ("met", "missed", "not_resolved"))


IDENTITIES: dict[str, list[Identity]] = {
    "01_speculative_decoding": [
        none_of("lossless_unexplained", "lossless_prompts"),
        none_of("replay_mismatches", "replay_runs"),
        none_of("balance_faults", "balance_runs"),
        share("looped_share"),
    ],
    "02_datastore_construction": [share("variance_64", "share_matched", "share_short", "share_long", "ivf_recall")],
    "03_dense_vs_sparse_retrieval": [
        none_of("lossless_unexplained", "lossless_prompts"),
        none_of("replay_mismatches", "replay_runs"),
        share("bias_rest_mean", "bias_dresd_largest", "rest_draft_time_share"),
    ],
    "04_pld_plus": [
        none_of("lossless_unexplained", "lossless_prompts"),
        none_of("replay_mismatches", "replay_runs"),
        heads_are_part_of_the_model,
    ],
    "05_specdec_pp": [
        none_of("mdp_failures", "mdp_instances"),
        none_of("mdp_example_failures", "mdp_example_states"),
        none_of("head_oracle_beaten", "head_lemma_outputs"),
        share("mdp_single_share", "mdp_threshold_wins", "mdp_no_delta", "head_accepted", "head_auc_editing"),
        no_rule_beats_the_best_policy,
        none_of("head_real_unexplained", "head_real_runs"),
        none_of("head_real_apart", "head_real_runs"),
    ],
    "06_gpu_benchmarks": [
        plain_decoding_is_its_own_measure,
        passes_take_time,
        a_step_is_at_least_one_token,
        outputs_are_counted,
        share("draft_share_rest", "draft_share_dresd", "draft_share_specdec"),
    ],
    "07_other_systems": [
        none_of("lossless_mismatches", "lossless_runs"),
        plain_passes_are_the_unit,
        every_system_emits_at_least_a_token,
    ],
    "08_one_tree": [
        none_of("rule_mismatches", "rule_trees"),
        none_of("lossless_mismatches", "lossless_prompts"),
        none_of("replay_texts", "lossless_prompts"),
        none_of("bound_beaten", "bound_runs"),
        every_mark_has_a_verdict,
        share("mixed_gpu_share", "mixed_cpu_share", "mixed_server_share"),
    ],
}
