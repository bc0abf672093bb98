"""Products of a few rows of states with packed weights, in vector instructions that LLVM makes for the processor at hand.

A matrix of n outputs and k inputs is cut into tiles of :data:`OUTPUTS` outputs. A tile holds, for each :data:`GROUP` inputs in
turn, the whole numbers and their scales, so that a product reads its memory once and in order. States are whole numbers of 16
bits with a scale for each :data:`GROUP` of them: sums of products of whole numbers are exact, and a row's result does not depend
on the rows beside it, bit for bit.
"""

from __future__ import annotations

import platform
import sys
from collections.abc import Callable

from llvmlite import ir
from llvmlite.binding import get_host_cpu_features
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

#: Outputs of a tile: the lanes of a vector of float32. Inputs that share a scale of the states.
OUTPUTS, GROUP = 8, 32
#: Rows of states that a tile meets at once.
ROWS = 4
#: Tiles side by side in a vector register: processors with AVX-512 have registers of 16 numbers.
TILES = 2 if get_host_cpu_features().get("avx512bw") else 1

_BYTE, _HALF, _WORD, _LONG = (ir.IntType(bits) for bits in (8, 16, 32, 64))
_FLOAT = ir.FloatType()
_FLOATS, _WORDS = (ir.VectorType(kind, OUTPUTS) for kind in (_FLOAT, _WORD))
_PAIRS = ir.VectorType(_HALF, 2 * OUTPUTS)


def _at(builder, address, kind, offset=0):
    """What lies ``offset`` bytes behind an address; vectors may begin anywhere."""
    place = builder.inttoptr(builder.add(address, _LONG(offset)), kind.as_pointer())
    value = builder.load(place)
    value.align = 1
    return value


def _put(builder, value, address, offset=0):
    place = builder.inttoptr(builder.add(address, _LONG(offset)), value.type.as_pointer())
    builder.store(value, place).align = 1


def _all(builder, value, lanes=OUTPUTS):
    """A vector with the value in each lane."""
    empty = ir.Constant(ir.VectorType(value.type, lanes), ir.Undefined)
    first = builder.insert_element(empty, value, _WORD(0))
    return builder.shuffle_vector(first, empty, ir.Constant(ir.VectorType(_WORD, lanes), [0] * lanes))


def _of_tiles(builder, address, kind, offset, behind):
    """What lies at the same place of one tile, or of two side by side, the second ``behind`` bytes behind the first."""
    first = _at(builder, address, kind, offset)
    if behind is None:
        return first
    second = _at(builder, builder.add(address, behind), kind, offset)
    return _lanes(builder, first, second, range(2 * kind.count))


def _lanes(builder, one, other, order):
    return builder.shuffle_vector(one, other, ir.Constant(ir.VectorType(_WORD, len(order)), list(order)))


def _fma(builder, a, b, c):
    """a * b + c, rounded once."""
    kind = ir.FunctionType(a.type, [a.type] * 3)
    return builder.call(cgutils.get_or_insert_function(builder.module, kind, f"llvm.fma.v{a.type.count}f32"), [a, b, c])


def _unknown(builder, count):
    """A number that LLVM does not know: it would write a loop of so few turns out, and then keep its numbers in memory."""
    kind = ir.FunctionType(_LONG, [_LONG])
    return builder.call(ir.InlineAsm(kind, "", "=r,0"), [_LONG(count)])


def _dot_pairs(builder, a, b):
    """The sums of products of neighbouring whole numbers: one instruction on most processors."""
    wide = ir.VectorType(_WORD, a.type.count)
    products = builder.mul(builder.sext(a, wide), builder.sext(b, wide))
    even, odd = (_lanes(builder, products, products, range(start, a.type.count, 2)) for start in (0, 1))
    return builder.add(even, odd)


def _call(builder, name, args, body):
    """Call a function of whole numbers that ``body`` writes once a module; LLVM compiles it once, and not at each call."""
    module = builder.module
    function = module.globals.get(name)
    if function is None:
        kind = ir.FunctionType(ir.VoidType(), [arg.type for arg in args])
        function = ir.Function(module, kind, name)
        function.linkage = "linkonce_odr"
        function.attributes.add("noinline")
        inside = ir.IRBuilder(function.append_basic_block("entry"))
        body(inside, *function.args)
        inside.ret_void()
    builder.call(function, args)


def bytes_of_group(bits: int, group: int, minimum: bool) -> int:
    """Bytes of the tile's numbers, scales and minima for :data:`GROUP` inputs."""
    return GROUP * bits + 2 * OUTPUTS * (GROUP // group + minimum)


def tile(bits: int, group: int, minimum: bool, rows: int, tiles: int) -> Callable:
    """``f(weights, states, scales, sums, out, inputs, step, add)`` of addresses and sizes: a tile, or two, times ``rows`` rows.

    Weights of ``bits`` bits (4: 0 to 15; 8: -128 to 127) have a scale for ``group`` inputs and, with ``minimum``, a number that is
    added to each. ``scales`` and ``sums``, of the states' groups, have ``inputs // GROUP`` numbers a row, ``out`` has ``step``.
    ``add`` is 1 to add to what is in ``out``, else 0.
    """
    size = bytes_of_group(bits, group, minimum)
    lanes = tiles * OUTPUTS
    floats, words, pairs = (ir.VectorType(*kind) for kind in ((_FLOAT, lanes), (_WORD, lanes), (_HALF, 2 * lanes)))

    def body(builder, weights, states, scales, sums, out, inputs, step, add):
        groups = builder.udiv(inputs, _LONG(GROUP))
        next_tile = builder.mul(groups, _LONG(size)) if tiles == 2 else None
        totals = [cgutils.alloca_once_value(builder, ir.Constant(floats, [0.0] * lanes)) for _ in range(rows)]
        with cgutils.for_range(builder, groups) as loop:
            here = builder.add(weights, builder.mul(loop.index, _LONG(size)))
            numbers = builder.mul(loop.index, _LONG(2 * GROUP))
            starts = [
                builder.add(builder.add(states, numbers), builder.mul(inputs, _LONG(2 * row))) for row in range(rows)
            ]
            behind = [
                builder.mul(builder.add(builder.mul(groups, _LONG(row)), loop.index), _LONG(4)) for row in range(rows)
            ]
            scale_of = [_all(builder, _at(builder, builder.add(scales, place), _FLOAT), lanes) for place in behind]
            for part in range(GROUP // group):
                dots = [cgutils.alloca_once(builder, words) for _ in range(rows)]
                for dot in dots:
                    builder.store(ir.Constant(words, [0] * lanes), dot)
                with cgutils.for_range(builder, _unknown(builder, group // 8)) as inner:
                    eight = builder.add(inner.index, _LONG(part * group // 8))  # inputs
                    own = builder.add(here, builder.mul(eight, _LONG(8 * bits)))
                    theirs = [builder.add(start, builder.mul(eight, _LONG(16))) for start in starts]
                    packed = _of_tiles(builder, own, _PAIRS, 0, next_tile) if bits == 4 else None
                    for pair in range(4):
                        if bits == 4:
                            shift = ir.Constant(pairs, [4 * pair] * 2 * lanes)
                            several = packed if pair == 0 else builder.lshr(packed, shift)
                            mask = ir.Constant(pairs, [15] * 2 * lanes)
                            numbers = several if pair == 3 else builder.and_(several, mask)
                        else:
                            numbers = _of_tiles(builder, own, ir.VectorType(_BYTE, 16), 16 * pair, next_tile)
                            numbers = builder.sext(numbers, pairs)
                        for dot, address in zip(dots, theirs, strict=True):
                            two = builder.bitcast(_all(builder, _at(builder, address, _WORD, 4 * pair), lanes), pairs)
                            builder.store(builder.add(builder.load(dot), _dot_pairs(builder, numbers, two)), dot)
                halves = ir.VectorType(ir.HalfType(), OUTPUTS)
                scale = builder.fpext(_of_tiles(builder, here, halves, GROUP * bits + 16 * part, next_tile), floats)
                for row in range(rows):
                    scaled = builder.fmul(builder.sitofp(builder.load(dots[row]), floats), scale_of[row])
                    builder.store(_fma(builder, scaled, scale, builder.load(totals[row])), totals[row])
            if minimum:
                least = builder.fpext(_of_tiles(builder, here, halves, size - 16, next_tile), floats)
                for row in range(rows):
                    sum_of = _all(builder, _at(builder, builder.add(sums, behind[row]), _FLOAT), lanes)
                    builder.store(_fma(builder, sum_of, least, builder.load(totals[row])), totals[row])
        for row in range(rows):
            place = builder.add(out, builder.mul(step, _LONG(4 * row)))
            total = builder.load(totals[row])
            with builder.if_else(builder.icmp_signed("!=", add, _LONG(0))) as (adding, setting):
                with adding:
                    _put(builder, builder.fadd(_at(builder, place, floats), total), place)
                with setting:
                    _put(builder, total, place)

    def emit(context, builder, signature, args):
        _call(builder, f"specdec_tile_{bits}_{group}_{minimum:d}_{rows}_{tiles}", args, body)
        return context.get_dummy_value()

    @intrinsic
    def multiply(typing, weights, states, scales, sums, out, inputs, step, add):
        return types.void(*[types.int64] * 8), emit

    return multiply


def _pairwise(builder, vectors):
    """The sums of the lanes of 8 vectors, as the 8 lanes of one."""
    for span in (1, 2, 4):
        # Of each two vectors: lanes of the one where the bit of the span is not set, of the other where it is.
        own = [i if i & span == 0 else OUTPUTS + i - span for i in range(OUTPUTS)]
        other = [i + span if i & span == 0 else OUTPUTS + i for i in range(OUTPUTS)]
        vectors = [
            builder.fadd(_lanes(builder, a, b, own), _lanes(builder, a, b, other))
            for a, b in zip(vectors[0::2], vectors[1::2], strict=True)
        ]
    return vectors[0]


@intrinsic
def score(typing, query, keys, places, count, size, out):
    """Products of a query with the keys at ``places`` (int32), as float32 into ``out``, which has room for a multiple of 8."""

    def body(builder, query, keys, places, count, size, out):
        blocks = builder.udiv(builder.add(count, _LONG(OUTPUTS - 1)), _LONG(OUTPUTS))
        with cgutils.for_range(builder, blocks) as loop:
            first = builder.mul(loop.index, _LONG(OUTPUTS))
            rows, totals = [], []
            for lane in range(OUTPUTS):
                place = builder.add(first, _LONG(lane))
                last = builder.sub(count, _LONG(1))
                place = builder.select(builder.icmp_signed("<", place, last), place, last)
                at = builder.sext(_at(builder, builder.add(places, builder.mul(place, _LONG(4))), _WORD), _LONG)
                rows.append(builder.add(keys, builder.mul(builder.mul(at, size), _LONG(4))))
                totals.append(cgutils.alloca_once_value(builder, ir.Constant(_FLOATS, [0.0] * OUTPUTS)))
            with cgutils.for_range(builder, builder.udiv(size, _LONG(OUTPUTS))) as part:
                offset = builder.mul(part.index, _LONG(4 * OUTPUTS))
                own = _at(builder, builder.add(query, offset), _FLOATS)
                for row, total in zip(rows, totals, strict=True):
                    theirs = _at(builder, builder.add(row, offset), _FLOATS)
                    builder.store(_fma(builder, own, theirs, builder.load(total)), total)
            sums = _pairwise(builder, [builder.load(total) for total in totals])
            _put(builder, sums, builder.add(out, builder.mul(first, _LONG(4))))

    def emit(context, builder, signature, args):
        _call(builder, "specdec_score", args, body)
        return context.get_dummy_value()

    return types.void(*[types.int64] * 6), emit


def weigh(vectors: int) -> Callable:
    """``f(weights, values, places, count, size, out)``: the weighted sum of 8 ``vectors`` columns of the rows at ``places``."""

    def body(builder, weights, values, places, count, size, out):
        zero = ir.Constant(_FLOATS, [0.0] * OUTPUTS)
        totals = [cgutils.alloca_once_value(builder, zero) for _ in range(vectors)]
        with cgutils.for_range(builder, count) as loop:
            place = builder.mul(loop.index, _LONG(4))
            at = builder.sext(_at(builder, builder.add(places, place), _WORD), _LONG)
            row = builder.add(values, builder.mul(builder.mul(at, size), _LONG(4)))
            weight = _all(builder, _at(builder, builder.add(weights, place), _FLOAT))
            for i, total in enumerate(totals):
                value = _at(builder, row, _FLOATS, 4 * OUTPUTS * i)
                builder.store(_fma(builder, weight, value, builder.load(total)), total)
        for i, total in enumerate(totals):
            _put(builder, builder.load(total), out, 4 * OUTPUTS * i)

    def emit(context, builder, signature, args):
        _call(builder, f"specdec_weigh_{vectors}", args, body)
        return context.get_dummy_value()

    @intrinsic
    def add_up(typing, weights, values, places, count, size, out):
        return types.void(*[types.int64] * 6), emit

    return add_up


@intrinsic
def borrowed(typing, array):
    """The same array without a count of its references, which each part that is taken of it would raise and lower."""

    def emit(context, builder, signature, args):
        found = context.make_array(signature.args[0])(context, builder, args[0])
        found.meminfo = ir.Constant(found.meminfo.type, None)
        return found._getvalue()

    return array(array), emit


@intrinsic
def power_of_two(typing, exponent):
    """2 to a whole number from -126 to 127, as float32."""

    def emit(context, builder, signature, args):
        return builder.bitcast(builder.shl(builder.add(args[0], _WORD(127)), _WORD(23)), _FLOAT)

    return types.float32(types.int32), emit


@intrinsic
def float_of(typing, bits):
    """The float32 of these 32 bits."""

    def emit(context, builder, signature, args):
        return builder.bitcast(args[0], _FLOAT)

    return types.float32(types.int32), emit


@intrinsic
def half(typing, address):
    """The float16 at an address, as float32."""

    def emit(context, builder, signature, args):
        return builder.fpext(_at(builder, args[0], ir.HalfType()), _FLOAT)

    return types.float32(types.int64), emit


@intrinsic
def arrive(typing, address):
    """Add 1 to the number at an address, seen by all threads."""

    def emit(context, builder, signature, args):
        place = builder.inttoptr(args[0], _LONG.as_pointer())
        builder.atomic_rmw("add", place, _LONG(1), "seq_cst")
        return context.get_dummy_value()

    return types.void(types.int64), emit


@intrinsic
def arrived(typing, address):
    """The number at an address, as the other threads left it."""

    def emit(context, builder, signature, args):
        return builder.load_atomic(builder.inttoptr(args[0], _LONG.as_pointer()), "acquire", 8)

    return types.int64(types.int64), emit


@intrinsic
def wait(typing):
    """Let the other thread of an x86 core run while this one waits."""

    def emit(context, builder, signature, args):
        if platform.machine() in ("x86_64", "AMD64"):
            nothing = ir.FunctionType(ir.VoidType(), [])
            builder.call(cgutils.get_or_insert_function(builder.module, nothing, "llvm.x86.sse2.pause"), [])
        return context.get_dummy_value()

    return types.void(), emit


@intrinsic
def give_way(typing):
    """Let another program have the core, where the system has a call for it."""

    def emit(context, builder, signature, args):
        if sys.platform != "win32":
            kind = ir.FunctionType(_WORD, [])
            builder.call(cgutils.get_or_insert_function(builder.module, kind, "sched_yield"), [])
        return context.get_dummy_value()

    return types.void(), emit
