"""Models of random weights have the sizes of the published ones, and a few layers stand for all."""

from __future__ import annotations

import pytest
import torch

from specdec_lib.chapters.ch06_gpu_benchmarks import shapes
from tests.chaos import CountingClock

PUBLISHED = {"68m": 68_030_208, "0.35b": 361_821_120, "1b": 1_235_814_400, "7b": 6_738_415_616, "13b": 13_015_864_320,
             "34b": 33_743_970_304, "70b": 68_976_648_192}  # fmt: skip
CPU = torch.device("cpu")
TINY = shapes.Shape(6, 32, 64, 4, 2, 100)


@pytest.mark.parametrize("name", shapes.SHAPES)
def test_shapes_have_the_published_parameter_counts(name):
    shape = shapes.shape_of(name)
    model = shapes.random_model(shape, 2, torch.bfloat16, torch.device("meta"))
    layers = sum(weights.numel() for weights in model.model.layers.parameters())
    rest = sum(weights.numel() for weights in model.parameters()) - layers
    assert rest + layers * shape.layers // 2 == PUBLISHED[name] and model.dtype == torch.bfloat16
    assert torch.get_default_dtype() == torch.float32


def test_an_unknown_shape_is_refused_before_a_model_is_made():
    with pytest.raises(ValueError, match="shape is '9t'; expected one of 68m"):
        shapes.pass_ms("9t", torch.float32, CPU, 8, 1)


def test_passes_of_a_few_layers_give_those_of_all(monkeypatch):
    """Where a layer takes 3 ms and the output 5, each times the width, the sum is exact whatever part is measured."""
    monkeypatch.setitem(shapes.SHAPES, "tiny", TINY)
    monkeypatch.setattr(shapes, "_output_ms", lambda model, widths, repeats: {w: 5.0 * w for w in widths})
    monkeypatch.setattr(
        shapes,
        "step_samples",
        lambda model, context, runtime, widths, repeats: {
            w: [(3.0 * model.config.num_hidden_layers + 5.0) * w] * repeats for w in widths
        },
    )
    for few in (1, 2, 6, 9):
        found = shapes.pass_ms("tiny", torch.float32, CPU, 8, 3, (1, 4), few=few)
        assert found == pytest.approx({1: 23.0, 4: 92.0})


def test_real_passes_of_a_random_model_are_timed(monkeypatch):
    monkeypatch.setitem(shapes.SHAPES, "tiny", TINY)
    found = shapes.pass_ms("tiny", torch.float32, CPU, 8, 2, (1, 4))
    assert list(found) == [1, 4] and all(ms > 0 for ms in found.values())


def test_the_output_layer_is_timed_by_the_clock_of_the_device(monkeypatch):
    monkeypatch.setattr(shapes, "clock_of", lambda devices: CountingClock(0.5))
    model = shapes.random_model(TINY, 1, torch.float32, CPU)
    assert shapes._output_ms(model, (1, 4), 3) == {1: 500.0, 4: 500.0}
