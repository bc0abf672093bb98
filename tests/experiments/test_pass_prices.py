"""Prices of passes that others published: read, refused, and worked out again from the numbers they come from."""

from statistics import mean

import pytest

from specdec_lib.experiments.published_numbers import ClaimError, Priced, pass_prices, published

HEADER = "source,device,model,width,relative_price,where\n"


def test_prices_from_the_papers_follow_from_their_printed_numbers():
    curves = pass_prices()
    rest = {key: float(row["value"]) for key, row in published("rest").items() if row["value"] != "not available"}
    sizes = ("09gb", "44gb", "87gb", "14gb", "27gb")
    passes = [
        rest[f"rest-t2-{size}-m"] * (rest[f"rest-t2-{size}-ms"] - rest[f"rest-t2-{size}-retrieval"]) for size in sizes
    ]
    price = mean(passes) / rest["rest-t1-he-greedy-7b-ar"]
    assert curves[Priced("REST", "RTX A6000", "CodeLlama 7B")] == {1: 1.0, 65: pytest.approx(price, abs=5e-4)}
    seconds = {key: row["value"] for key, row in published("specdec_pp").items()}
    ratio = float(seconds["specdec-pp-t-target"]) / float(seconds["specdec-pp-t-target-alone"])
    assert curves["SpecDec++", "2 x A100 80GB", "Llama-2-chat 70B"] == {1: 1.0, 9: pytest.approx(ratio, abs=5e-4)}


def test_every_step_costs_at_least_a_pass_over_one_token():
    for curve in pass_prices().values():
        assert curve[1] == 1 and len(curve) >= 2 and min(curve.values()) == 1


@pytest.mark.parametrize("row", ["a,b,c,1,1.0,x", "a,b,c,8,0,x", "a,b,c,8,dear,x", "a,b,c,8,1.1,x\na,b,c,8,1.2,x"])
def test_a_row_that_is_no_price_is_refused(tmp_path, row):
    (tmp_path / "pass_prices.csv").write_text(HEADER + row + "\n")
    with pytest.raises(ClaimError, match="line [23]"):
        pass_prices(tmp_path)
