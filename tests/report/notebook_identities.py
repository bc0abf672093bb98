"""What must hold of the numbers that each notebook saves, whatever its parameters: by its number, expressions over their keys.

Only relations that follow from the definitions belong here, never a number that was once measured.
"""

from __future__ import annotations

LOSSLESS = "lossless_unexplained == 0 < lossless_prompts"
REPLAYS = "replay_mismatches == 0 < replay_runs"


def shares(*names: str) -> list[str]:
    """Each of these numbers is a share."""
    return [f"0 <= {name} <= 1" for name in names]


IDENTITIES: dict[str, list[str]] = {
    "01": [LOSSLESS, REPLAYS, "balance_faults == 0 < balance_runs", *shares("looped_share")],
    "02": shares("variance_64", "share_matched", "share_short", "share_long", "ivf_recall"),
    "03": [
        LOSSLESS,
        REPLAYS,
        *shares("bias_rest_mean", "bias_dresd_largest", "rest_draft_time_share"),
    ],
    "04": [LOSSLESS, REPLAYS, "max(heads_strong, heads_chosen) <= heads_credited <= heads_total"],
    "05": [
        "mdp_failures == 0 < mdp_instances",
        "mdp_example_failures == 0 < mdp_example_states",
        "head_oracle_beaten == 0 < head_lemma_outputs",
        *shares("mdp_single_share", "mdp_threshold_wins", "mdp_no_delta", "head_accepted", "head_auc_code"),
        # The oracle is the cheapest, then the best policy, then every rule.
        "mdp_oracle_worst <= 1e-9",
        "min(mdp_best_fixed_mean, mdp_best_threshold_mean, mdp_theorem_rule_mean, mdp_no_delta_rule_mean) >= -1e-9",
        "head_real_unexplained == head_real_apart == 0 < head_real_runs",
    ],
    "06": [
        # Every pass and every way to decode takes some time.
        "min(pass_ms, draft_price, pass_w8_over_w1, timed_plain_tokens_per_s, timed_pld_over_plain, peer_generate) > 0",
        "0 <= timed_equal <= timed_compared and timed_compared % timed_outputs == 0",
        "0 <= composed_looped <= composed_prompts",
        *shares("draft_share_rest", "draft_share_specdec", "draft_share_eagle"),
    ],
    "07": [
        "lossless_mismatches == 0 < lossless_runs",
        "price_1 == 1 and len(of('price_')) > 2 and min(of('price_')) > 0",
        "min(of('found_')) >= 1",  # no pass of any system emits less than a token
    ],
    "08": [
        "rule_mismatches == 0 < rule_trees",
        "lossless_mismatches == replay_texts == 0 < lossless_prompts",
        "bound_beaten == 0 < bound_runs",
        "marks == marks_met + marks_missed + marks_not_resolved",
        *shares("mixed_gpu_share", "mixed_cpu_share", "mixed_server_share"),
    ],
}
