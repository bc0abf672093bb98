"""The proposer inside vLLM, on this machine's processor: outputs, requests that come and go, and the distribution.

An engine's workers are separate processes. They import their proposers from the module ``proposers`` in this folder.
"""

import json
import os

import pytest
import torch
import vllm
from transformers import AutoModelForCausalLM, LlamaConfig, LlamaForCausalLM

from specdec_lib import Sampling, paths
from specdec_lib.experiments.checks.rounding import Judge
from specdec_lib.experiments.data import prompts
from specdec_lib.experiments.data.prompt import render
from specdec_lib.models import smollm2
from tests.datastores import stores

pytestmark = pytest.mark.vllm

OURS = {"method": "custom_class", "model": "specdec_lib.vllm.Proposer", "num_speculative_tokens": 6}
CHOSEN = OURS | {"model": "proposers.Chosen"}
POCKET = str(paths.DATA / "models" / "pocket" / "target")
SHORT = 160


def engine(model, speculative=None, settings=None, **options):
    os.environ["VLLM_CPU_KVCACHE_SPACE"] = "1"
    # Threads that are bound to cores wait for each other where other programs run.
    os.environ["VLLM_CPU_OMP_THREADS_BIND"] = "nobind"
    os.environ["SPECDEC_VLLM"] = json.dumps(settings or {})
    # The engine's core is in this process, which saves a start, and its worker in another one: where it finds numba, vLLM 0.32 ends.
    os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"
    given = {"dtype": "float32", "enforce_eager": True, "max_num_seqs": 8, "disable_log_stats": False}
    given["distributed_executor_backend"] = "mp"
    return vllm.LLM(model, speculative_config=speculative, **(given | options))


def end(served):
    """End an engine's worker now: at the interpreter's exit vLLM would wait for it."""
    served.llm_engine.engine_core.shutdown()


@pytest.fixture(scope="module")
def choose(tmp_path_factory):
    """Name the drafter of the engines with the proposer ``Chosen``."""
    file = tmp_path_factory.mktemp("choice") / "choice.json"
    os.environ["CHOICE"] = str(file)

    def write(drafter="SuffixDecoding", **settings):
        file.write_text(json.dumps({"drafter": drafter} | settings if drafter else settings))

    write()
    return write


def count(served, name):
    """What a counter of vLLM stands at."""
    return sum(metric.value for metric in served.get_metrics() if metric.name == f"vllm:{name}")


def accepted(served):
    """Drafted tokens that were accepted so far."""
    return count(served, "spec_decode_num_accepted_tokens")


def asked(ids):
    return [{"prompt_token_ids": list(each)} for each in ids]


def greedy(**options):
    return vllm.SamplingParams(temperature=0, **{"max_tokens": 24} | options)


@pytest.fixture(scope="module")
def pocket(choose):
    """Engines of the small model, plain and with a chosen drafter.

    Sequences are short, a pass reads one prompt and a part of the next, and the cache of the second holds 640 tokens.
    """
    small = {
        "max_model_len": SHORT,
        "max_num_batched_tokens": SHORT,
        "tokenizer": str(smollm2.folder()),
        "block_size": 32,
    }
    plain = engine(POCKET, num_gpu_blocks_override=64, **small)
    both = plain, engine(POCKET, CHOSEN, num_gpu_blocks_override=20, **small)
    yield both
    for served in both:
        end(served)


def texts(count, length=60):
    """Prompts that repeat themselves, so that something is drafted."""
    drawn = torch.Generator().manual_seed(0)
    return [torch.randint(10, 4000, (length // 3,), generator=drawn).repeat(3).tolist() for _ in range(count)]


@pytest.fixture(scope="module")
def judge():
    return Judge(AutoModelForCausalLM.from_pretrained(POCKET, dtype=torch.float32).eval())


def same(judge, prompt, expected, got):
    """Whether two outputs are equal, or differ first at a tie that rounding explains."""
    if list(expected) == list(got):
        return True
    found = judge(prompt, list(expected), list(got), Sampling())
    return found is None or found.explained


def test_greedy_outputs_of_fifty_prompts_are_plain_ones(tmp_path):
    """SmolLM2, batches of eight."""
    from transformers import AutoTokenizer

    folder = str(smollm2.folder())
    tokenizer = AutoTokenizer.from_pretrained(folder)
    tasks = ("code editing", "short text editing", "conversation", "code completion", "mathematics")
    ids = [render(each, tokenizer) for each in prompts.load("report", tasks, 10)]
    ids = [each for each in ids if len(each) < 480]
    assert len(ids) == 50
    outputs, drafted = [], 0
    for speculative in (None, OURS):
        served = engine(
            folder, speculative, {"drafter": "One tree", "costs": "gpu"}, max_model_len=512, num_gpu_blocks_override=48
        )
        done = served.generate(asked(ids), greedy(max_tokens=16), use_tqdm=False)
        outputs.append([list(one.outputs[0].token_ids) for one in done])
        drafted = accepted(served)
        end(served)
    assert drafted > 50
    judge = Judge(AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval())
    assert all(same(judge, *each) for each in zip(ids, *outputs, strict=True))


def both(pocket, ids, sampling):
    outputs = [served.generate(asked(ids), sampling, use_tqdm=False) for served in pocket]
    return [[[list(out.token_ids) for out in one.outputs] for one in done] for done in outputs]


def plain_of(pocket, ids, sampling):
    return [list(one.outputs[0].token_ids) for one in pocket[0].generate(asked(ids), sampling, use_tqdm=False)]


def test_equal_prompts_several_outputs_and_the_prefix_cache(pocket, judge):
    ids = texts(3)
    plain, ours = both(pocket, [*ids, ids[0], ids[0]], greedy())
    for prompt, expected, got in zip([*ids, ids[0], ids[0]], plain, ours, strict=True):
        assert same(judge, prompt, expected[0], got[0])
    several = vllm.SamplingParams(temperature=1.0, n=3, max_tokens=12, ignore_eos=True)
    done = pocket[1].generate(asked(ids), several, use_tqdm=False)
    assert [[len(out.token_ids) for out in one.outputs] for one in done] == [[12] * 3] * 3
    before = accepted(pocket[1])
    plain, ours = both(pocket, ids, greedy())  # once more, from the cache
    assert all(same(judge, p, a[0], b[0]) for p, a, b in zip(ids, plain, ours, strict=True))
    assert accepted(pocket[1]) > before


DRAFTERS = {
    "PLD": {"drafter": "PLD"},
    "PLD, original": {"drafter": "PLD", "arguments": {"variant": "original"}},
    "REST": {"drafter": "REST"},
    "SAM-Decoding": {"drafter": "SAM-Decoding"},
    "SuffixDecoding": {"drafter": "SuffixDecoding"},
    "One tree": {"drafter": "One tree"},
    "one's own": {"drafter": None, "own": True},
}


@pytest.mark.parametrize("name", DRAFTERS)
def test_each_drafter(pocket, judge, choose, name):
    """The store holds what the model says, so that much is accepted."""
    ids = texts(4)
    choose()
    said = plain_of(pocket, ids, greedy(ignore_eos=True))
    with stores.build([[*prompt, *one] for prompt, one in zip(ids, said, strict=True)], 4096) as index:
        stored = {"store": str(index.store.path)} if name in ("REST", "SAM-Decoding", "One tree") else {}
        choose(**DRAFTERS[name], **stored)
        before = accepted(pocket[1])
        got = pocket[1].generate(asked(ids), greedy(ignore_eos=True), use_tqdm=False)
        assert accepted(pocket[1]) > before
    choose()
    assert all(same(judge, p, a, b.outputs[0].token_ids) for p, a, b in zip(ids, said, got, strict=True))


def test_prompts_are_read_in_chunks(pocket, judge):
    """Three prompts of 120 tokens, of which a pass reads 160."""
    ids = texts(3, 120)
    plain, ours = both(pocket, ids, greedy())
    assert all(same(judge, p, a[0], b[0]) for p, a, b in zip(ids, plain, ours, strict=True))
    assert pocket[1].llm_engine.vllm_config.scheduler_config.enable_chunked_prefill


def test_stop_tokens(pocket, judge):
    ids = texts(4)
    stop = plain_of(pocket, ids, greedy(ignore_eos=True))[0][10]
    plain, ours = both(pocket, ids, greedy(stop_token_ids=[stop], ignore_eos=True))
    assert len(plain[0][0]) <= 11
    assert all(same(judge, p, a[0], b[0]) for p, a, b in zip(ids, plain, ours, strict=True))


def test_stop_strings(pocket):
    """A request ends in the middle of what was accepted, with the text before the string."""
    ids = texts(4)
    plainly = pocket[0].generate(asked(ids), greedy(ignore_eos=True), use_tqdm=False)
    whole = plainly[0].outputs[0].text
    stop = whole[len(whole) // 2 :][:3]
    done = [served.generate(asked(ids), greedy(stop=[stop], ignore_eos=True), use_tqdm=False) for served in pocket]
    plain, ours = (
        [(out.text, out.finish_reason, out.stop_reason) for one in each for out in one.outputs] for each in done
    )
    assert plain[0] == (whole[: whole.index(stop)], "stop", stop)
    assert ours == plain


def test_a_context_that_ends(pocket, judge):
    """Prompts as long as fits, and others that go on at the same time."""
    ids = [*texts(2, SHORT - 9), *texts(2)]
    plain, ours = both(pocket, ids, greedy(max_tokens=40, ignore_eos=True))
    assert [len(one[0]) for one in ours] == [len(one[0]) for one in plain]
    assert len(ours[0][0]) < 40
    assert all(same(judge, p, a[0], b[0]) for p, a, b in zip(ids, plain, ours, strict=True))


def test_an_aborted_request_leaves_the_others_alone(pocket, judge):
    ids = texts(6)
    expected = both(pocket, ids, greedy())[0]
    inside = pocket[1].llm_engine
    names = [inside.add_request(f"abort-{i}", asked([each])[0], greedy()) or f"abort-{i}" for i, each in enumerate(ids)]
    done, steps = {}, 0
    while inside.has_unfinished_requests():
        for one in inside.step():
            if one.finished:
                done[one.request_id.split("-")[1]] = list(one.outputs[0].token_ids)
        steps += 1
        if steps == 3:
            inside.abort_request([names[1], names[4]])
    assert {"0", "2", "3", "5"} <= set(done)
    for number in (0, 2, 3, 5):
        assert same(judge, ids[number], expected[number][0], done[str(number)])


def test_preempted_requests_are_resumed(pocket, judge):
    """Eight requests of 150 tokens in a cache that holds four."""
    ids = texts(8, 90)
    before = count(pocket[1], "num_preemptions"), accepted(pocket[1])
    plain, ours = both(pocket, ids, greedy(max_tokens=60, ignore_eos=True))
    assert count(pocket[1], "num_preemptions") > before[0] and accepted(pocket[1]) > before[1]
    assert all(same(judge, p, a[0], b[0]) for p, a, b in zip(ids, plain, ours, strict=True))


VOCABULARY = 12


@pytest.fixture(scope="module")
def tiny(tmp_path_factory):
    folder = tmp_path_factory.mktemp("tiny")
    torch.manual_seed(3)
    config = LlamaConfig(
        vocab_size=VOCABULARY, hidden_size=64, intermediate_size=64, num_hidden_layers=1, num_attention_heads=2,
        num_key_value_heads=2, max_position_embeddings=64, bos_token_id=None, eos_token_id=None, pad_token_id=None,
    )  # fmt: skip
    model = LlamaForCausalLM(config).eval()
    with torch.no_grad():
        model.lm_head.weight *= 6  # some tokens are much likelier than others
    model.save_pretrained(folder)
    return str(folder), model


@pytest.fixture(scope="module")
def sampling_engine(tiny, choose):
    choose("PLD")
    served = engine(
        tiny[0], CHOSEN, max_model_len=32, max_num_seqs=64, num_gpu_blocks_override=128, skip_tokenizer_init=True
    )
    yield served
    end(served)


def chi_square(tiny, served, temperature, requests=4000):
    """P-value of the first two tokens of sampled outputs, against the model's own distribution; how many were drafted."""
    model = tiny[1]
    prompt = [1, 2, 3, 4, 1, 2, 3, 4, 1, 2]
    before = count(served, "spec_decode_num_draft_tokens")
    sampling = vllm.SamplingParams(temperature=temperature, max_tokens=3, seed=None, detokenize=False, ignore_eos=True)
    done = served.generate(asked([prompt] * requests), sampling, use_tqdm=False)
    drafted = count(served, "spec_decode_num_draft_tokens") - before
    observed = torch.zeros(VOCABULARY, VOCABULARY)
    for one in done:
        observed[tuple(one.outputs[0].token_ids[:2])] += 1
    with torch.inference_mode():
        known = [prompt, *([*prompt, token] for token in range(VOCABULARY))]
        first, *second = ((model(torch.tensor([text])).logits[0, -1] / temperature).softmax(-1) for text in known)
    expected = requests * first[:, None] * torch.stack(second)
    kept = expected >= 5
    parts = ((observed - expected) ** 2 / expected)[kept]
    rest = expected[~kept].sum(), observed[~kept].sum()
    statistic = parts.sum() + (rest[1] - rest[0]) ** 2 / rest[0]
    freedom = int(kept.sum())
    return float(torch.special.gammaincc(torch.tensor(freedom / 2.0), statistic / 2)), drafted


@pytest.mark.parametrize("temperature", [1.0, 0.6])
def test_sampled_outputs_keep_their_distribution(tiny, sampling_engine, choose, temperature):
    choose("PLD")
    value, drafted = chi_square(tiny, sampling_engine, temperature)
    assert value > 1e-3 and drafted > 1000


def test_a_biased_acceptance_fails(tiny, sampling_engine, choose):
    """The same test sees it where every draft is accepted."""
    choose("PLD", biased=True)
    assert chi_square(tiny, sampling_engine, 1.0)[0] < 1e-6


def test_a_drafter_of_hidden_states_is_refused_when_the_engine_starts(capfd):
    # The engine's own error, of a kind that depends on where its processes are; it names no cause.
    with pytest.raises(Exception, match="initialization failed"):
        engine(POCKET, OURS | {"model": "proposers.Refused"}, max_model_len=SHORT, tokenizer=str(smollm2.folder()))
    said = "".join(capfd.readouterr())
    assert "needs hidden states, and vLLM gives a proposer tokens alone; use PromptLookup instead" in said
