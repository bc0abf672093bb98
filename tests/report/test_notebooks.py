"""The notebooks: sound as they lie there, and right when run with the smallest parameters."""

import os
from pathlib import Path

import nbformat
import pytest

from specdec_lib import paths
from specdec_lib.report import numbers
from specdec_lib.report.build import check, runner

ROOT = paths.ROOT or Path()
NOTEBOOKS = sorted((ROOT / "notebooks").glob("*.ipynb"))
each_notebook = pytest.mark.parametrize("notebook", NOTEBOOKS, ids=lambda path: path.stem)
IMAGES = {"image/svg+xml", "image/png"}


@each_notebook
def test_the_source_is_sound(notebook):
    assert check.check_notebook(notebook) == []


def test_profiles_name_what_notebooks_declare_and_pages_and_notebooks_are_listed_and_labels_unique():
    assert check.check_profiles(ROOT / "notebooks") == check.check_pages(ROOT) == []


@pytest.fixture(scope="session")
def folder(tmp_path_factory):
    """Of executed copies: the book just made (``make test-notebooks``), or one for runs with the smoke profile."""
    return Path(os.environ.get("SPECDEC_EXECUTED") or tmp_path_factory.mktemp("executed"))


@pytest.mark.notebooks
@each_notebook
def test_it_runs_its_page_is_clean_and_its_numbers_hold_what_must_hold(notebook, folder):
    if "SPECDEC_EXECUTED" not in os.environ:
        for failure in runner.run("smoke", only=[notebook.stem], output=folder, kept=folder / "failed"):
            pytest.fail(failure.message, pytrace=False)
    content = nbformat.read(str(folder / notebook.name), as_version=4)
    outputs = [(cell, output) for cell in content.cells for output in cell.get("outputs", [])]
    assert not [output.text for _, output in outputs if output.output_type == "stream" and output.name == "stderr"]
    for cell, output in outputs:
        data = output.get("data", {})
        assert "np." not in str(data.get("text/markdown", ""))
        if IMAGES & set(data):
            assert cell.metadata.get("mystnb", {}).get("figure"), f"a figure without a caption: {cell.source[:80]!r}"
    values: dict = {}
    for path in (folder / "files" / notebook.stem).glob("[0-9A-Z][0-9].csv"):
        saved = numbers.read(path)
        values |= {key: each.words if each.value is None else each.value for key, each in saved.items()}
    assert values, "the notebook saves no number, so nothing can be checked"
    identities = dict(zip(NOTEBOOKS, IDENTITIES, strict=True))[notebook]
    values["of"] = lambda start: [value for key, value in values.items() if key.startswith(start)]
    assert [identity for identity in identities if not eval(identity, {}, values)] == []


LOSSLESS = "lossless_unexplained == 0 < lossless_prompts"
REPLAYS = "replay_mismatches == 0 < replay_runs"


def shares(*names: str) -> list[str]:
    """Each of these numbers is a share."""
    return [f"0 <= {name} <= 1" for name in names]


#: What holds of the numbers of each notebook, in their order.
IDENTITIES: list[list[str]] = [
    [LOSSLESS, REPLAYS, "balance_faults == 0 < balance_runs", *shares("looped_share")],
    shares("variance_64", "share_matched", "share_short", "share_long", "ivf_recall"),
    [LOSSLESS, REPLAYS] + shares("bias_rest_mean", "bias_dresd_largest", "rest_draft_time_share"),
    [LOSSLESS, REPLAYS, "0 < heads_credited <= heads_total"],
    [
        "mdp_failures == 0 < mdp_instances",
        "mdp_example_failures == 0 < mdp_example_states",
        "head_oracle_beaten == 0 < head_lemma_outputs",
        *shares("mdp_single_share", "mdp_threshold_wins", "mdp_no_delta"),
        # The oracle is the cheapest, then the best policy, then every rule.
        "mdp_oracle_worst <= 1e-9",
        "min(mdp_best_fixed_mean, mdp_best_threshold_mean, mdp_theorem_rule_mean, mdp_no_delta_rule_mean) >= -1e-9",
        "head_real_unexplained == head_real_apart == 0 < head_real_runs",
    ],
    [
        # Every pass and every way to decode takes some time.
        "min(pass_ms, draft_price, pass_w8_over_w1, timed_plain_tokens_per_s, timed_pld_over_plain, peer_generate) > 0",
        "0 <= timed_equal <= timed_compared and timed_compared % timed_outputs == 0",
        "0 <= composed_looped <= composed_prompts",
        *shares("draft_share_rest", "draft_share_specdec", "draft_share_eagle"),
    ],
    [
        "lossless_mismatches == 0 < lossless_runs",
        "0 <= looped <= greedy and price_64 > 0",
    ],
    [
        "rule_mismatches == 0 < rule_trees",
        "lossless_mismatches == replay_mismatches == 0 < lossless_prompts",
        "bound_beaten == 0 < bound_runs",
        "marks == marks_met + marks_missed + marks_not_resolved",
        *shares("mixed_gpu_share", "mixed_cpu_share", "mixed_server_share"),
    ],
]
