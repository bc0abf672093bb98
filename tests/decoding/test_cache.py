"""What a commit keeps, against lists: keys, values and captured states of the same positions."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from specdec_lib.decoding.cache import TreeCache

#: Heads and width of the keys of each layer: layers of two shapes lie in two buffers.
SHAPES = [(2, 4), (1, 8)]


def write(cache: TreeCache, numbers: list[int]) -> None:
    """What a pass over so many tokens writes: its number in each row, its layer in each sign and size."""
    cache.reserve(len(numbers))
    for layer, (heads, width) in enumerate(SHAPES):
        rows = torch.tensor(numbers, dtype=torch.float32) + 1000 * layer
        keys = rows[None, None, :, None].expand(1, heads, -1, width)
        cache.update(keys, -keys, layer)
        cache.store(layer, rows[:, None].expand(-1, 3))


def check(cache: TreeCache, kept: list[int]) -> None:
    assert cache.length == len(kept)
    for layer, slots in enumerate(cache.layers):
        expected = torch.tensor(kept, dtype=torch.float32) + 1000 * layer
        assert (slots.keys[0, :, : cache.length] == expected[:, None]).all()
        assert (slots.values[0, :, : cache.length] == -expected[:, None]).all()
        assert (cache.states[layer][: cache.length] == expected[:, None]).all()


@pytest.mark.parametrize("static", [False, True])
@settings(max_examples=40)
@given(data=st.data())
def test_a_commit_keeps_the_same_rows_of_keys_values_and_states(static, data):
    cache, kept = TreeCache(len(SHAPES), 40 if static else 3, static), []
    for start in range(0, 50, 10):
        numbers = list(range(start, start + data.draw(st.integers(1, 6))))
        cache.slots = cache.length + torch.arange(len(numbers)) if static else None
        write(cache, numbers)
        block = [
            0,
            *sorted(data.draw(st.sets(st.sampled_from(range(1, len(numbers)))) if numbers[1:] else st.just(()))),
        ]
        cache.commit(block)
        kept += [numbers[place] for place in block]
        check(cache, kept)
        if data.draw(st.booleans()):
            kept = kept[: data.draw(st.integers(0, len(kept)))]
            cache.truncate(len(kept))
            check(cache, kept)
