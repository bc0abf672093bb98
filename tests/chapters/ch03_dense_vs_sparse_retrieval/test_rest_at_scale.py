"""REST on recorded outputs: what is counted, and what the counts say of the papers' values."""

import dataclasses

import pandas as pd
import pytest

from specdec_lib import load_model
from specdec_lib.chapters.ch03_dense_vs_sparse_retrieval import measures, rest_at_scale
from specdec_lib.chapters.ch03_dense_vs_sparse_retrieval.recorded_chats import Case
from specdec_lib.drafters import Rest
from specdec_lib.experiments import stores
from specdec_lib.experiments.package_files import package_files
from specdec_lib.experiments.published_sets.replies import Reply
from specdec_lib.experiments.recorded_runs import replay_all
from specdec_lib.experiments.retrieval import match_lengths, record_replies

TEXT = "The quick brown fox jumps over the lazy dog, and the dog sleeps on. " * 4
AUTHORS = {"characters_per_token": [4.0, 3.9, 4.1], "step": [1.2, 1.1, 1.3], "speed_up": [1.7, 1.6, 1.8]}


def texts(*found):
    return stores.Texts(lambda: iter(found), "".join(found))


@pytest.fixture
def case(monkeypatch, tmp_path):
    monkeypatch.setenv("SPECDEC_CACHE", str(tmp_path))
    replies = [
        Reply(f"{q}-{turn}", "m", f"Say {q}.", TEXT, questions=(f"{q}?",)) for q in range(3) for turn in range(2)
    ]
    return Case("someone", "chat", "greedy", replies, {"chat": lambda: texts(*(TEXT + str(i) for i in range(30)))})


def test_rows_are_prompts_and_count_what_the_replays_do(case):
    tokenizer = load_model("pocket")[1]
    frame = pd.DataFrame(rest_at_scale.case_counts(case, tokenizer, (300, 2000)))
    assert list(frame.groupby("stored").size()) == [3, 3] and set(frame.variant) == {rest_at_scale.PUBLISHED}
    rows = measures.largest(rest_at_scale.select(frame, "someone"))
    index = stores.text_store("at-scale-chat", tokenizer, 2000, case.stores["chat"]())
    recorded = record_replies(case.replies, tokenizer)
    runs = replay_all(recorded, Rest(index))
    assert rows.passes.sum() == sum(len(run.steps) for run in runs)
    # After the prefill, whose token and forward are left out.
    characters = sum(len(tokenizer.decode(run.tokens[1:])) for run in runs)
    assert measures.rate(rows, "characters_per_pass").value == pytest.approx(characters / rows.passes.sum())
    lengths = match_lengths(recorded, Rest(index))
    assert rows.matched_10.sum() == sum(n for length, n in lengths.items() if length >= 10)
    assert rows.matched.sum() == sum(n for length, n in lengths.items() if length >= 2)
    assert rows.cut.sum() == 0


def test_text_in_parts_fills_shards_and_each_size_holds_the_one_before(case, monkeypatch, tmp_path):
    (tmp_path / "packages").mkdir()
    for i in range(30):
        (tmp_path / "packages" / f"m{i}.py").write_text(f"{TEXT}{i}\n{TEXT}")
    monkeypatch.setattr(stores, "SHARD_TOKENS", 1000)
    code = dataclasses.replace(
        case, kind="code", stores={"code": lambda: package_files(installed=[tmp_path / "packages"])}
    )
    tokenizer = load_model("pocket")[1]
    frame = pd.DataFrame(rest_at_scale.case_counts(code, tokenizer, (300, 1000, 2000, 4000)))
    sizes = frame.stored.unique()
    assert len(sizes) == 4 and list(sizes) == sorted(sizes)
    assert all(0.6 * asked < size <= asked for size, asked in zip(sizes, (300, 1000, 2000, 4000), strict=True))
    assert set(frame.store) == {"code"} and list(frame.groupby("stored").size()) == [3] * 4
    variants = pd.DataFrame(rest_at_scale.variant_counts(code, tokenizer, (300, 1000, 2000, 4000)))
    assert set(variants.stored) == {sizes[-1]} and set(variants.variant) == set(rest_at_scale.VARIANTS)


def made(case, kind, levels, prompts=8, variant=rest_at_scale.PUBLISHED, store=None):
    return [
        {
            "case": case,
            "kind": kind,
            "decoding": "greedy",
            "store": store or kind,
            "variant": variant,
            "prompt": f"{case}{p}",
        }
        | {"stored": size, "tokens": 100 * level, "characters": 300 * level, "passes": 100, "cut": 1}
        | {"matched_2": 60, "matched_10": 20, "matched_17": 0, "drafts": 80, "nodes": 640}
        | dict.fromkeys(measures.WIDTH_COLUMNS, 0.0)
        | {"w1": 20.0, "w8": 80.0}
        for p in range(prompts)
        for size, level in levels.items()
    ]


def test_headlines_follow_from_the_counts():
    levels = {10**5: 1.4, 10**6: 1.6, 10**7: 1.8}
    rows = made(rest_at_scale.CHAT, "chat", levels) + made(rest_at_scale.CODE_SAMPLED, "code", levels)
    rows += made(rest_at_scale.CODE, "code", {size: 2 * level for size, level in levels.items()})
    rows += made(rest_at_scale.CODE, "code", {10**7: 3.0}, variant="8 nodes")
    rows += made(rest_at_scale.CODE, "code", {10**7: 4.5}, variant="48 nodes")
    found = rest_at_scale.headlines(pd.DataFrame(rows), AUTHORS)
    step = sum(rest_at_scale.own_step_prices().values()) / 5
    assert found["real_code_speedup_rest"].value == pytest.approx(3.6 / step)
    assert found["real_code_line_27gb"].value == pytest.approx(2 * (0.4 + 0.2 * 9.653212), rel=1e-5)
    # Three characters a token of ours, four of theirs: rates are three quarters, and sizes four thirds.
    assert found["real_chat_tpf"].value == pytest.approx(1.8 * 3 / 4)
    assert found["real_chat_line_12gb"].value == pytest.approx((0.4 + 0.2 * 9.42597) * 3 / 4, rel=1e-5)
    assert found["real_chat_line_speedup_rest"].value == pytest.approx(found["real_chat_line_12gb"].value / 1.2)
    assert found["real_code_over_chat"] == pytest.approx((2.0,) * 3)
    assert found["real_code_step_least"].value == pytest.approx(1.8 / 1.6)
    assert found["real_code_share_short"].value == 0.75 and found["real_code_share_matched"].value == 0.8
    assert found["real_code_nodes_48_over_8"] == pytest.approx((1.5,) * 3)
    assert "real_code_nodes_256_over_48" not in found and found["matches_looked_up"] == 1600
    with pytest.raises(ValueError, match="among them"):
        rest_at_scale.headlines(pd.DataFrame(rows[:10]), AUTHORS)


def test_own_price_of_a_step_is_what_table_2_implies():
    prices = rest_at_scale.own_step_prices()
    assert prices["27gb"] == pytest.approx(2.65 * 11.82 / 27.89) and len(prices) == 5


@pytest.mark.realdata
def test_the_authors_files_say_what_table_1_prints():
    found = rest_at_scale.authors_run()
    assert found["speed_up"].low < 1.69 < found["speed_up"].high and found["tokens"].value == pytest.approx(
        1.99, abs=0.005
    )
    assert found["speed_up"].value == pytest.approx(found["tokens"].value / found["step"].value)
