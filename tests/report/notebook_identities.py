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


def what_takes_time_takes_some(values: dict[str, Any]) -> bool:
    """Every pass and every way to decode takes some time."""
    names = (
        "pass_ms",
        "draft_price",
        "pass_w8_over_w1",
        "timed_plain_tokens_per_s",
        "timed_pld_over_plain",
        "peer_generate",
    )
    found = [values[name] for name in names]
    return all((value["value"] if isinstance(value, dict) else value) > 0 for value in found)


def plain_passes_are_the_unit(values: dict[str, Any]) -> bool:
    """A pass over one token costs 1, and no pass is free."""
    found = [value for name, value in values.items() if name.startswith("price_")]
    return values["price_1"] == 1 and len(found) > 2 and min(found) > 0


def every_system_emits_at_least_a_token(values: dict[str, Any]) -> bool:
    """No pass of any system emits less than one token."""
    found = [value for name, value in values.items() if name.startswith("found_")]
    return bool(found) and min(found) >= 1


def outputs_are_counted(values: dict[str, Any]) -> bool:
    """Every output of ours was compared, no more are equal than were, and loops are among what was replayed."""
    return (
        0 <= values["timed_equal"] <= values["timed_compared"]
        and values["timed_compared"] % values["timed_outputs"] == 0
        and 0 <= values["composed_looped"] <= values["composed_prompts"]
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
        share("mdp_single_share", "mdp_threshold_wins", "mdp_no_delta", "head_accepted", "head_auc_code"),
        no_rule_beats_the_best_policy,
        none_of("head_real_unexplained", "head_real_runs"),
        none_of("head_real_apart", "head_real_runs"),
    ],
    "06_gpu_benchmarks": [
        what_takes_time_takes_some,
        outputs_are_counted,
        share("draft_share_rest", "draft_share_specdec", "draft_share_eagle"),
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
