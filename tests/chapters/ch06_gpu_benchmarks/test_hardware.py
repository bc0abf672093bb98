"""The work of a step is what is counted on a running model; rates are amounts over times."""

from __future__ import annotations

import json
import statistics

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode
from transformers import DynamicCache

from specdec_lib.chapters.ch06_gpu_benchmarks import hardware
from specdec_lib.chapters.ch06_gpu_benchmarks.hardware import Rate, roofline, step_work
from specdec_lib.chapters.ch06_gpu_benchmarks.shapes import parameter_bytes, parameter_count
from specdec_lib.decoding.served_models import cache_argument
from tests.families import build, prompt

CPU = torch.device("cpu")
VARIANTS = {
    "plain": {},
    "grouped": {"num_key_value_heads": 2},
    "biased": {"attention_bias": True, "mlp_bias": True},
    "tied": {"tie_word_embeddings": True},
    "narrow heads": {"head_dim": 4, "num_key_value_heads": 1},
}


def stepped(model, width: int, context: int) -> tuple[int, DynamicCache]:
    """Operations that torch counts in a step behind a context, and the cache before it."""
    tokens = torch.tensor([prompt(0, context + width)])
    cache, counter = DynamicCache(config=model.config), FlopCounterMode(display=False)
    with torch.inference_mode():
        if context:
            model(tokens[:, :context], **{cache_argument(model): cache})
        held = sum(layer.keys.nbytes + layer.values.nbytes for layer in cache.layers) if context else 0
        with counter:
            model(tokens[:, context:], **{cache_argument(model): cache})
    return counter.get_total_flops(), held


@pytest.mark.parametrize("name", VARIANTS)
@pytest.mark.parametrize(("width", "context"), [(1, 0), (1, 30), (8, 30), (17, 3)])
def test_work_of_a_step_is_what_a_running_model_does(name, width, context):
    model = build("llama", **VARIANTS[name])
    model.set_attn_implementation("eager")
    flops, held = stepped(model, width, context)
    # Some releases of transformers find the rotary angles by a matrix product.
    rotary = 2 * width * model.config.head_dim // 2
    work = step_work(model.config, width, context, torch.float32)
    assert flops - work.flops in (0, rotary)
    weights = sum(weights.nbytes for name, weights in model.named_parameters() if "embed_tokens" not in name)
    weights += model.get_input_embeddings().weight.nbytes if model.config.tie_word_embeddings else 0
    assert work.bytes == weights + width * model.config.hidden_size * 4 + held


def test_bytes_follow_the_type_and_operations_do_not():
    config = build("llama").config
    full, half = (step_work(config, 4, 10, dtype) for dtype in (torch.float32, torch.bfloat16))
    assert full.bytes == 2 * half.bytes and full.flops == half.flops
    assert parameter_bytes(config, torch.bfloat16) == 2 * parameter_count(config)


def test_a_step_without_tokens_is_refused():
    config = build("llama").config
    for width, context in ((0, 4), (1, -1)):
        with pytest.raises(ValueError, match=f"width is {width} and context {context}; expected at least 1"):
            step_work(config, width, context, torch.float32)


def test_the_roofline_is_the_slower_of_reading_and_computing():
    assert roofline(bytes=100, flops=1000, bandwidth=10, rate=1000) == 10
    assert roofline(bytes=100, flops=1000, bandwidth=100, rate=10) == 100
    assert roofline(bytes=1, flops=1, bandwidth=1, rate=1) == 1


def test_a_rate_is_the_amount_over_the_shortest_and_the_median_time():
    assert Rate.of(60, [3.0, 2.0, 6.0]) == Rate(best=30.0, median=20.0, amount=60, repeats=3)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_the_matrix_rate_counts_the_operations_of_its_product(monkeypatch, dtype):
    calls = []

    def counted(run, device, repeats):
        with FlopCounterMode(display=False) as counter:
            run()
        calls.append(counter.get_total_flops())
        return [0.5] * repeats

    monkeypatch.setattr(hardware, "timed", counted)
    found = hardware.matrix_rate(dtype, "cpu", side=48, repeats=3)
    assert calls == [found.amount] and found == Rate(calls[0] / 0.5, calls[0] / 0.5, calls[0], 3)


def test_the_bandwidth_counts_the_bytes_of_a_buffer_whose_pages_were_written(monkeypatch):
    def check(run, device, repeats):
        assert int(run()) == 4096 // 8
        return [2.0] * repeats

    monkeypatch.setattr(hardware, "timed", check)
    assert hardware.memory_bandwidth("cpu", size=4096, repeats=4) == Rate(2048.0, 2048.0, 4096, 4)


def test_times_are_those_of_the_clock_after_a_warm_up(monkeypatch):
    clock, runs = iter([1.0, 3.0, 10.0, 11.0]), []
    monkeypatch.setattr(hardware.time, "perf_counter", lambda: next(clock))
    assert hardware.timed(lambda: runs.append(1), CPU, 2) == [2.0, 1.0]
    assert len(runs) == hardware.WARM_UP + 2


def test_the_buffer_is_larger_than_the_caches_and_leaves_memory_free(monkeypatch):
    free, cache = [1 << 40], [32 << 20]
    monkeypatch.setattr(hardware, "available_bytes", lambda device: free[0])
    monkeypatch.setattr(hardware, "largest_cache", lambda: cache[0])
    assert hardware.read_bytes(CPU) == hardware.CPU_BYTES
    cache[0] = 1 << 30
    assert hardware.read_bytes(CPU) == 8 << 30
    free[0] = (20 << 30) + 8 * 4 + 3
    assert hardware.read_bytes(CPU) == (5 << 30) + 8
    free[0] = 1 << 30
    with pytest.raises(MemoryError, match="cpu has 1,073,741,824 bytes available; expected 17,179,869,184"):
        hardware.read_bytes(CPU)


def test_the_machine_here_is_measured_with_its_threads(monkeypatch):
    monkeypatch.setattr(hardware, "CPU_BYTES", 1 << 22)
    monkeypatch.setattr(hardware, "CACHE_MULTIPLE", 4)
    monkeypatch.setattr(hardware, "largest_cache", lambda: 1 << 20)
    monkeypatch.setattr(hardware, "CPU_SIDE", 64)
    found = hardware.measure_machine("cpu", torch.float32, repeats=3)
    assert (found.device, found.threads, found.dtype) == ("cpu", torch.get_num_threads(), "float32")
    for rate in (found.bandwidth, found.matrix_rate):
        assert 0 < rate.median <= rate.best and rate.repeats == 3
    assert json.loads(json.dumps(found.as_dict()))["bandwidth"]["amount"] == 1 << 22


@pytest.mark.gpu
def test_events_and_the_clock_agree_on_the_gpu():
    device = torch.device("cuda")
    left = torch.randn(4096, 4096, device=device)
    by_events = statistics.median(hardware.timed(lambda: left @ left, device, 9))
    torch.cuda.synchronize()
    began = hardware.time.perf_counter()
    for _ in range(9):
        left @ left
    torch.cuda.synchronize()
    assert by_events == pytest.approx((hardware.time.perf_counter() - began) / 9, rel=0.2)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: hardware.memory_bandwidth("cpu", size=4), "size is 4; expected at least 8 bytes"),
        (lambda: hardware.memory_bandwidth("cpu", size=64, repeats=0), "repeats is 0; expected at least 1"),
        (lambda: hardware.matrix_rate(torch.float32, "cpu", side=0), "side is 0; expected at least 1"),
        (lambda: hardware.measure_machine("tpu-of-mine"), "device is 'tpu-of-mine'"),
    ],
)
def test_what_cannot_be_measured_is_refused(call, message):
    with pytest.raises(ValueError, match=message):
        call()


def test_each_way_through_the_memory_counts_the_bytes_that_it_moves(monkeypatch):
    ran = []

    def note(run, device, repeats):
        ran.append(run())
        return [0.5] * repeats

    monkeypatch.setattr(hardware, "timed", note)
    rows = 6
    rates = hardware.bandwidths("cpu", rows * hardware.GEMV_COLUMNS * 2 + 10, 3, torch.bfloat16)
    size = rows * hardware.GEMV_COLUMNS * 2
    assert {rate.what: rate.amount for rate in rates} == {"sum": size, "product": size, "copy": size}
    assert ran[0].shape == () and ran[1].shape == (1, rows) and ran[2].nbytes == size // 2
    with pytest.raises(ValueError, match="size is 100; expected at least 32768 bytes"):
        hardware.bandwidths("cpu", 100)
