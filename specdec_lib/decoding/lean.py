"""The lean forward: a whole pass of a model of the Llama kind, read from top to bottom.

Nothing but loops and the tiles of :mod:`specdec_lib.decoding.tiles`. A row of a pass is computed from its own numbers in one
order, whatever stands beside it: the logits of a verified draft are those of one-token passes, bit for bit.

Threads run the same pass side by side, each on a share of every step, and wait for each other between the steps.
"""

from __future__ import annotations

from functools import partial

import numpy as np
from numba import njit

from specdec_lib.decoding.compiled import compiled
from specdec_lib.decoding.tiles import (
    GROUP,
    OUTPUTS,
    ROWS,
    TILES,
    arrive,
    arrived,
    borrowed,
    bytes_of_group,
    float_of,
    give_way,
    half,
    power_of_two,
    score,
    tile,
    wait,
    weigh,
)

#: How the numbers of a matrix are kept: float32, or whole numbers with float16 scales.
FLOAT32, FOUR_BITS, EIGHT_BITS, EIGHT_BITS_OF_16 = range(4)
#: Of each kind but the first: bits, inputs that share a scale, and whether a minimum is added.
KINDS = {FOUR_BITS: (4, 32, 1), EIGHT_BITS: (8, 32, 0), EIGHT_BITS_OF_16: (8, 16, 0)}
_BITS, _GROUPS, _MINIMA = ([0, *(kind[part] for kind in KINDS.values())] for part in range(3))
_BITS, _GROUPS, _MINIMA = np.array(_BITS), np.array(_GROUPS), np.array(_MINIMA)
_BYTES = np.array([0, *(bytes_of_group(*kind) for kind in KINDS.values())])
#: Columns of a matrix's description.
AT, OUT, IN, KIND = range(4)
#: The matrices of a layer, in this order; the embedding and the output layer come after all layers.
MATRICES = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")
#: The sizes that a pass needs.
SIZES = ("layers", "width", "heads", "key_heads", "head_size", "inner", "vocabulary")
#: Turns of waiting for the other threads before the core is offered to other programs.
TURNS = 2000

_inner = partial(njit, error_model="numpy")
_small = partial(njit, error_model="numpy", forceinline=True)
_sums = {"reassoc", "contract", "nsz"}
_ABOVE = np.float32(88.0)


def _by_rows(kind: int, tiles: int):
    bits, group, minimum = KINDS[kind]
    one, two, three, four = (tile(bits, group, bool(minimum), rows, tiles) for rows in range(1, ROWS + 1))

    @_inner
    def multiply(rows, weights, states, scales, sums, out, inputs, step, add):
        if rows == 4:
            four(weights, states, scales, sums, out, inputs, step, add)
        elif rows == 3:
            three(weights, states, scales, sums, out, inputs, step, add)
        elif rows == 2:
            two(weights, states, scales, sums, out, inputs, step, add)
        else:
            one(weights, states, scales, sums, out, inputs, step, add)

    return multiply


def _by_tiles(kind: int):
    single, several = _by_rows(kind, 1), _by_rows(kind, TILES)

    @_inner
    def multiply(tiles, rows, weights, states, scales, sums, out, inputs, step, add):
        if tiles == TILES:
            several(rows, weights, states, scales, sums, out, inputs, step, add)
        else:
            single(rows, weights, states, scales, sums, out, inputs, step, add)

    return multiply


_four_bits, _eight_bits, _eight_bits_of_16 = map(_by_tiles, KINDS)
_weigh_one, _weigh_eight = weigh(1), weigh(8)


@_small
def _share(count, me, team):
    """The part of ``count`` pieces of work that one of a team of threads does."""
    return count * me // team, count * (me + 1) // team


@_inner
def _meet(counter, team, met):
    """Wait until the whole team is here; ``met`` is how often it has met before."""
    if team > 1:
        address = counter.ctypes.data
        arrive(address)
        turns = 0
        while arrived(address) < team * (met + 1):
            wait()
            turns += 1
            if turns > TURNS:
                give_way()
    return met + 1


@partial(compiled, error_model="numpy")
def gather(me, team, counter):
    """Meet a few times: what takes microseconds unless another program has the core of a thread."""
    met = 0
    for _ in range(8):
        met = _meet(counter, team, met)


@_small
def _exp(x):
    """e to the x in float32, within two units in the last place."""
    x = min(max(x, -_ABOVE), _ABOVE)
    whole = np.rint(x * np.float32(1.44269504))
    x = x - whole * np.float32(0.693359375) + whole * np.float32(2.12194440e-4)
    y = np.float32(1.9875691500e-4)
    y = y * x + np.float32(1.3981999507e-3)
    y = y * x + np.float32(8.3334519073e-3)
    y = y * x + np.float32(4.1665795894e-2)
    y = y * x + np.float32(1.6666665459e-1)
    y = y * x + np.float32(5.0000001201e-1)
    return (y * x * x + x + np.float32(1)) * power_of_two(np.int32(whole))


@_small(fastmath=_sums)
def _sum_of_squares(x):
    total = np.float32(0)
    for i in range(len(x)):
        total += x[i] * x[i]
    return total


@_small(fastmath=_sums)
def _dot(one, other):
    total = np.float32(0)
    for i in range(len(one)):
        total += one[i] * other[i]
    return total


@_small(fastmath=_sums)
def _exponentials(scores, factor):
    """Replace scores by e to their distance from the largest one, times ``factor``; their sum."""
    top = scores[0]
    for i in range(len(scores)):
        top = max(top, scores[i])
    total = np.float32(0)
    for i in range(len(scores)):
        scores[i] = _exp((scores[i] - top) * factor)
        total += scores[i]
    return total


@_small
def _round(states, whole, scales, sums, group):
    """The whole numbers of 16 bits, scale and sum of one group of states; what is not finite makes the scale NaN."""
    # Loops over parts that begin at 0 are made into vector instructions.
    first = group * GROUP
    part, to = states[first : first + GROUP], whole[first : first + GROUP]
    most = np.int32(0)
    for bits in part.view(np.int32):
        most = max(most, bits & np.int32(0x7FFFFFFF))
    largest = float_of(most)  # the bits of numbers without a sign are in the numbers' order
    up = np.float32(32767) / largest if largest > 0 else np.float32(0)
    total = np.int32(0)
    for i in range(len(part)):
        number = np.int16(np.rint(part[i] * up))
        to[i] = number
        total += number
    scale = largest / np.float32(32767) if most < 0x7F800000 else np.float32(np.nan)
    scales[group] = scale
    sums[group] = scale * np.float32(total)


@_small
def _row(flat, row, size):
    return flat[row * size : (row + 1) * size]


@_inner
def _product(weights, matrix, rows, first_row, states, whole, scales, sums, out, column, add, me, team):
    """Rows of states times a matrix, into ``out`` from a column on, or added to it."""
    outputs, inputs, kind = matrix[OUT], matrix[IN], matrix[KIND]
    groups = (inputs + GROUP - 1) // GROUP
    first, last = _share((outputs + OUTPUTS - 1) // OUTPUTS, me, team)
    step = out.shape[1]
    if kind == FLOAT32:
        table = weights[matrix[AT] : matrix[AT] + 4 * inputs * outputs].view(np.float32)
        for place in range(first * OUTPUTS, min(last * OUTPUTS, outputs)):
            own = _row(table, place, inputs)
            for row in range(rows):
                value = _dot(own, _row(states, first_row + row, inputs))
                if add:
                    out[row, column + place] += value
                else:
                    out[row, column + place] = value
        return
    size = groups * _BYTES[kind]
    tiles_at, numbers_at = weights.ctypes.data + matrix[AT], whole.ctypes.data
    scales_at, sums_at, out_at = scales.ctypes.data, sums.ctypes.data, out.ctypes.data + 4 * column
    place = first
    while place < last:
        tiles = TILES if last - place >= TILES else 1
        here = tiles_at + place * size
        for row in range(0, rows, ROWS):
            from_row = first_row + row
            numbers = numbers_at + 2 * from_row * inputs
            scale, total = scales_at + 4 * from_row * groups, sums_at + 4 * from_row * groups
            to = out_at + 4 * (row * step + place * OUTPUTS)
            count = min(ROWS, rows - row)
            if kind == FOUR_BITS:
                _four_bits(tiles, count, here, numbers, scale, total, to, inputs, step, add)
            elif kind == EIGHT_BITS:
                _eight_bits(tiles, count, here, numbers, scale, total, to, inputs, step, add)
            else:
                _eight_bits_of_16(tiles, count, here, numbers, scale, total, to, inputs, step, add)
        place += tiles


@_inner
def _unpack(weights, matrix, output, out):
    """One output's weights as float32."""
    inputs, kind = matrix[IN], matrix[KIND]
    if kind == FLOAT32:
        at = matrix[AT] + 4 * inputs * output
        out[:] = weights[at : at + 4 * inputs].view(np.float32)
        return
    bits, groups = _BITS[kind], inputs // GROUP
    lane = output % OUTPUTS
    here = matrix[AT] + (output // OUTPUTS) * groups * _BYTES[kind]
    for group in range(groups):
        block = weights[here + group * _BYTES[kind] : here + (group + 1) * _BYTES[kind]]
        least = np.float32(0)
        if _MINIMA[kind]:
            least = half(block.ctypes.data + len(block) - 2 * OUTPUTS + 2 * lane)
        for i in range(GROUP):
            if bits == 4:
                word = 32 * (i // 8) + 4 * lane + 2 * (i % 2)
                place = i // 2 % 4
                number = np.int32(block[word + place // 2] >> (4 * (place % 2))) & 15
            else:
                number = np.int32(np.int8(block[16 * (i // 2) + 2 * lane + i % 2]))
            scale = half(block.ctypes.data + GROUP * bits + 2 * OUTPUTS * (i // _GROUPS[kind]) + 2 * lane)
            out[group * GROUP + i] = np.float32(number) * scale + least


@partial(compiled, error_model="numpy")
def unpack(weights, matrix, outputs, out):
    """Some outputs' weights as float32, (m, inputs)."""
    for row in range(len(outputs)):
        _unpack(weights, matrix, outputs[row], out[row])


@partial(compiled, error_model="numpy")
def multiply(me, team, counter, weights, matrix, states, whole, scales, sums, out):
    """One thread's share of the product of states, (m, inputs), with one matrix."""
    rows, inputs = states.shape
    groups = (inputs + GROUP - 1) // GROUP
    first, last = _share(groups, me, team)
    for row in range(rows):
        for group in range(first, last):
            _round(states[row], _row(whole, row, inputs), _row(scales, row, groups), _row(sums, row, groups), group)
    _meet(counter, team, 0)
    _product(weights, matrix, rows, 0, states.reshape(-1), whole, scales, sums, out, 0, 0, me, team)


@_small
def _turn(head, cos, sin):
    """Rotary positions: each number with the one half a head further on."""
    middle = len(head) // 2
    low, high = head[:middle], head[middle:]
    cos_high, sin_high = cos[middle:], sin[middle:]
    for i in range(len(low)):
        one, other = low[i], high[i]
        low[i] = one * cos[i] - other * sin[i]
        high[i] = other * cos_high[i] + one * sin_high[i]


@_small
def _norm(x, weight, factor, out):
    for i in range(len(out)):
        out[i] = weight[i] * (x[i] * factor)


@_small
def _gate(gate, inner, out):
    """SiLU of the gate, times the inner states."""
    for i in range(len(out)):
        out[i] = gate[i] / (np.float32(1) + _exp(-gate[i])) * inner[i]


@_small
def _norm_head(head, weight, eps):
    factor = np.float32(1) / np.sqrt(_sum_of_squares(head) / np.float32(len(head)) + eps)
    for i in range(len(head)):
        head[i] = weight[i] * (head[i] * factor)


@_inner
def _attend(one, keys, values, seen, count, scores, result):
    """The weighted values of the places seen, by the products of a query with their keys; the sum of the weights."""
    size, weight = len(one), scores.ctypes.data
    score(one.ctypes.data, keys, seen, count, size, weight)
    total = _exponentials(scores[:count], np.float32(1) / np.sqrt(np.float32(size)))
    part = 0
    while part < size:
        to, of = result.ctypes.data + 4 * part, values + 4 * part
        if part + 8 * OUTPUTS <= size:
            _weigh_eight(weight, of, seen, count, size, to)
            part += 8 * OUTPUTS
        else:
            _weigh_one(weight, of, seen, count, size, to)
            part += OUTPUTS
    for i in range(size):
        result[i] /= total
    return total


@partial(compiled, error_model="numpy")
def run(
    me, team, counter, sizes, eps, weights, matrices, norms, biases, head_norms, cos, sin, keys_values, length,
    ids, positions, visible, last_only, kept_layers, kept_states, kept_heads, kept_rows,
    x, z, pair, states, whole, scales, sums, query, scores, places, counts, out,
):  # fmt: skip
    """One thread's share of a pass over ``ids`` after ``length`` positions of the cache; logits into ``out``.

    A layer has four steps: what the products read, from ``x`` or from the products before, is brought into ``states``; then come
    the products. The output layer is one step more.
    """
    layers, width, heads, key_heads, size, inner, vocabulary = sizes
    keys_values, x, z, pair = borrowed(keys_values), borrowed(x), borrowed(z), borrowed(pair)
    states, whole, scales, sums = borrowed(states), borrowed(whole), borrowed(scales), borrowed(sums)
    query, scores, places, out = borrowed(query), borrowed(scores), borrowed(places), borrowed(out)
    rows, met = len(ids), 0
    grouped, own, shared = heads // key_heads, heads * size, key_heads * size
    first_row = rows - 1 if last_only else 0

    # What each row attends to: places in the cache, in the order of the text. Embeddings.
    first, last = _share(rows, me, team)
    for row in range(first, last):
        count = 0
        for place in range(length + rows):
            if visible[row, place] if len(visible) else place <= length + row:
                places[row, count] = place
                count += 1
        counts[row] = count
        _unpack(weights, matrices[-2], ids[row], x[row])
    met = _meet(counter, team, met)

    for step in range(4 * layers + 1):
        layer, stage = step // 4, step % 4

        # The inputs of the products, each thread some groups of each row.
        wide = own if stage == 1 else inner if stage == 3 else width
        groups = (wide + GROUP - 1) // GROUP
        start, end = _share(groups, me, team)
        if stage == 1:
            # Attention, after keys and values went into the cache.
            from_unit, to_unit = _share(rows * key_heads, me, team)
            for unit in range(from_unit, to_unit):
                row, head = unit // key_heads, unit % key_heads
                key, value = query[me], keys_values[2 * layer + 1, head, length + row]
                for i in range(size):
                    key[i] = z[row, own + head * size + i]
                    value[i] = z[row, own + shared + head * size + i]
                if len(biases):
                    for i in range(size):
                        key[i] += biases[layer, own + head * size + i]
                        value[i] += biases[layer, own + shared + head * size + i]
                if len(head_norms):
                    _norm_head(key, head_norms[layer, 1], eps)
                _turn(key, cos[positions[row]], sin[positions[row]])
                stored = keys_values[2 * layer, head, length + row]
                for i in range(size):
                    stored[i] = key[i]
            met = _meet(counter, team, met)
            from_unit, to_unit = _share(rows * heads, me, team)
            for unit in range(from_unit, to_unit):
                row, head = unit // heads, unit % heads
                one = query[me]
                for i in range(size):
                    one[i] = z[row, head * size + i]
                if len(biases):
                    for i in range(size):
                        one[i] += biases[layer, head * size + i]
                if len(head_norms):
                    _norm_head(one, head_norms[layer, 0], eps)
                _turn(one, cos[positions[row]], sin[positions[row]])
                keys = keys_values[2 * layer, head // grouped].ctypes.data
                values = keys_values[2 * layer + 1, head // grouped].ctypes.data
                result = states[row * own + head * size : row * own + (head + 1) * size]
                total = _attend(one, keys, values, places[row].ctypes.data, counts[row], scores[me], result)
                for slot in range(len(kept_heads)):
                    if kept_heads[slot, 0] == layer and kept_heads[slot, 1] == head and row >= first_row:
                        kept = kept_rows[slot, row - first_row]
                        for i in range(len(kept)):
                            kept[i] = 0
                        for i in range(counts[row]):
                            kept[places[row, i]] = scores[me, i] / total
            met = _meet(counter, team, met)
        elif stage == 3:
            to = min(end * GROUP, inner)
            for row in range(rows):
                one, other = pair[row, start * GROUP : to], pair[row, inner + start * GROUP : inner + to]
                _gate(one, other, states[row * inner + start * GROUP : row * inner + to])
        else:
            at, to = start * GROUP, min(end * GROUP, width)
            weight = norms[layer, stage // 2, at:to]
            for row in range(rows):
                factor = np.float32(1) / np.sqrt(_sum_of_squares(x[row]) / np.float32(width) + eps)
                _norm(x[row, at:to], weight, factor, states[row * width + at : row * width + to])
        for row in range(rows):
            for group in range(start, end):
                _round(
                    _row(states, row, wide),
                    _row(whole, row, wide),
                    _row(scales, row, groups),
                    _row(sums, row, groups),
                    group,
                )
        met = _meet(counter, team, met)

        # States that a drafter asked for: the inputs of a layer, and after the last one those of the output layer.
        for slot in range(len(kept_layers)):
            if stage == 0 and kept_layers[slot] == layer:
                for row in range(first, last):
                    for i in range(width):
                        kept_states[slot, row, i] = states[row * width + i] if layer == layers else x[row, i]

        # The products: queries, keys and values; what attention adds; gate and inner states; what the network adds.
        many = 3 if stage == 0 else 2 if stage == 2 else 1
        at = 7 * layer + (0 if stage == 0 else 3 if stage == 1 else 4 if stage == 2 else 6)
        if layer == layers:
            many, at = 1, len(matrices) - 1
        target = out if layer == layers else z if stage == 0 else pair if stage == 2 else x
        row, column = (first_row, 0) if layer == layers else (0, 0)
        for each in range(at, at + many):
            matrix = matrices[each]
            _product(weights, matrix, rows - row, row, states, whole, scales, sums, target, column, stage % 2, me, team)
            column += matrix[OUT]
        met = _meet(counter, team, met)
