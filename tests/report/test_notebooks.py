"""The notebooks: sound as they lie there, their published numbers, and right when run with the smallest parameters."""

import json
from pathlib import Path

import nbformat
import pytest

from specdec_lib import paths
from specdec_lib.report import numbers, params
from specdec_lib.report.build import check, runner

ROOT = paths.ROOT or Path()
NOTEBOOKS = sorted((ROOT / "notebooks").glob("*.ipynb"))
each_notebook = pytest.mark.parametrize("notebook", NOTEBOOKS, ids=lambda path: path.stem)
IMAGES = {"image/svg+xml", "image/png"}


@each_notebook
def test_the_source_is_sound(notebook):
    assert check.check_notebook(notebook) == []


def test_pages_and_notebooks_are_listed():
    assert check.check_pages(ROOT) == []


def overrides(name: str) -> list[str]:
    """The smallest parameters that still use every cell of a notebook, with the model of the tests, as words of the command line."""
    given = params.read_yaml(Path(__file__).with_name("pocket.yml").read_text(encoding="utf-8"))[name]
    return [
        f"{name[:2]}.{key}={value if isinstance(value, str) else json.dumps(value)}" for key, value in given.items()
    ]


def broken(notebook: Path, saved: dict[str, numbers.Number]) -> list[str]:
    """What has to hold of the numbers of a notebook and does not."""
    values: dict = {key: each.words if each.value is None else each.value for key, each in saved.items()}
    values["of"] = lambda start: [value for key, value in values.items() if key.startswith(start)]
    identities = dict(zip(NOTEBOOKS, IDENTITIES, strict=True))[notebook]
    return [identity for identity in identities if not eval(identity, {}, values)]


@each_notebook
def test_the_published_numbers_hold_what_must_hold(notebook):
    assert broken(notebook, numbers.read(numbers.COMMITTED / f"{notebook.stem[:2]}.csv")) == []


@pytest.mark.notebooks
@each_notebook
def test_it_runs_its_page_is_clean_and_its_numbers_hold_what_must_hold(notebook, tmp_path):
    asked = {"only": [notebook.stem], "overrides": overrides(notebook.stem)}
    for failure in runner.run(**asked, output=tmp_path, kept=tmp_path / "failed"):
        pytest.fail(failure.message, pytrace=False)
    content = nbformat.read(str(tmp_path / notebook.name), as_version=4)
    outputs = [(cell, output) for cell in content.cells for output in cell.get("outputs", [])]
    assert not [output.text for _, output in outputs if output.output_type == "stream" and output.name == "stderr"]
    for cell, output in outputs:
        data = output.get("data", {})
        assert "np." not in str(data.get("text/markdown", ""))
        if IMAGES & set(data):
            assert cell.metadata.get("mystnb", {}).get("figure"), f"a figure without a caption: {cell.source[:80]!r}"
    (path,) = (tmp_path / "files" / notebook.stem).glob("[0-9][0-9].csv")
    assert broken(notebook, numbers.read(path)) == []


LOSSLESS = "lossless_unexplained == 0 < lossless_prompts"
REPLAYS = "replay_mismatches == 0 < replay_runs"


def shares(*names: str) -> list[str]:
    """Each of these numbers is a share."""
    return [f"0 <= {name} <= 1" for name in names]


#: What holds of the numbers of each notebook, in their order.
IDENTITIES: list[list[str]] = [
    [LOSSLESS, REPLAYS, "balance_faults == 0 < balance_runs", *shares("looped_share")],
    shares("variance_64", "share_matched", "share_short", "ivf_recall"),
    [LOSSLESS, REPLAYS] + shares("bias_rest_mean", "rest_draft_time_share"),
    [LOSSLESS, REPLAYS, "0 < heads_credited <= heads_total"],
    [
        "mdp_failures == 0 < mdp_instances",
        "mdp_example_failures == 0 < mdp_example_states",
        "head_oracle_beaten == 0 < head_lemma_outputs",
        *shares("mdp_single_share", "mdp_threshold_wins"),
        # The best policy is the cheapest, then every rule.
        "min(mdp_best_fixed_mean, mdp_best_threshold_mean, mdp_theorem_rule_mean) >= -1e-9",
        "head_real_unexplained == head_real_apart == 0 < head_real_runs",
    ],
    [
        # Every pass and every way to decode takes some time.
        "min(pass_ms, draft_cost, pass_w8_over_w1, timed_plain_tokens_per_s, timed_pld_over_plain, peer_generate) > 0",
        "0 <= timed_equal <= timed_compared and timed_compared % timed_outputs == 0",
        "0 <= composed_looped <= composed_prompts",
        *shares("draft_share_rest", "draft_share_specdec", "draft_share_eagle"),
    ],
    [
        "lossless_mismatches == 0 < lossless_runs",
        "0 <= looped_share <= 1 and pass_cost_64 > 0",
    ],
    [
        "rule_mismatches == 0 < rule_trees",
        "lossless_mismatches == replay_mismatches == 0 < lossless_prompts",
        "bound_beaten == 0 < bound_runs",
        "targets == targets_met + targets_missed + targets_not_resolved",
    ],
]
