"""Eight float32 numbers as one value in compiled code, and reads and writes by address.

Numba leaves vector instructions to LLVM's guess, which fails on loops this short. These are LLVM's own vector types:
every processor has code for them, whatever its width, and results are the same bits wherever a fused multiply-add is.
Addresses are in bytes, offsets in numbers; nothing is checked.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic as _intrinsic
from numba.extending import models, register_model

WIDTH = 8
intrinsic: Any = _intrinsic  # what it makes is called without the first parameter, which checkers cannot know
_FLOAT, _INT = ir.FloatType(), ir.IntType(32)
_VECTOR, _INTS = ir.VectorType(_FLOAT, WIDTH), ir.VectorType(_INT, WIDTH)
# exp(x) = 2^n·exp(r), |r| <= ln 2 / 2, by the polynomial of Cephes' expf; relative error below 2e-7.
_LOG2_E, _LN2_HIGH, _LN2_LOW = 1.44269504, 0.693359375, -2.12194440e-4
_EXP = (1.9875691500e-4, 1.3981999507e-3, 8.3334519073e-3, 4.1665795894e-2, 1.6666665459e-1, 5.0000001201e-1)
_LEAST = -87.0  # exp of less is 0
_MOST = 88.0  # exp of more is that of 88, 1.7e38
_ROUNDER, _ROUNDER_BITS = 12582912.0, 0x4B400000  # adding 1.5·2^23 rounds to a whole number


class Lanes(types.Type):
    """The type of eight numbers."""

    def __init__(self) -> None:
        super().__init__(name="float32x8")


@register_model(Lanes)
class _LanesModel(models.PrimitiveModel):
    def __init__(self, manager: Any, kind: Any) -> None:
        super().__init__(manager, kind, _VECTOR)


_LANES = Lanes()
_CODES = {Lanes: _LANES, float: types.float32, int: types.intp, None: types.void}


def _made(result: Any, given: tuple[Any, ...], emit: Callable[..., Any]) -> Any:
    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        value = emit(builder, *arguments)
        return context.get_dummy_value() if result is None else value

    return _CODES[result](*(_CODES[g] for g in given)), generate


@intrinsic
def address(context: Any, array: Any) -> Any:
    """Where the data of an array begins."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        held = context.make_array(signature.args[0])(context, builder, arguments[0])
        return builder.ptrtoint(held.data, ir.IntType(64))

    return types.intp(array), generate


@intrinsic
def load(context: Any, base: Any, at: Any) -> Any:
    """One number."""
    return _made(float, (int, int), lambda b, p, i: b.load(_pointer(b, p, i, _FLOAT), align=4))


@intrinsic
def store(context: Any, base: Any, at: Any, value: Any) -> Any:
    return _made(None, (int, int, float), lambda b, p, i, x: b.store(x, _pointer(b, p, i, _FLOAT), align=4))


@intrinsic
def load8(context: Any, base: Any, at: Any) -> Any:
    """Eight numbers, wherever they lie."""
    return _made(Lanes, (int, int), lambda b, p, i: b.load(_pointer(b, p, i, _VECTOR), align=4))


@intrinsic
def store8(context: Any, base: Any, at: Any, value: Any) -> Any:
    return _made(None, (int, int, Lanes), lambda b, p, i, x: b.store(x, _pointer(b, p, i, _VECTOR), align=4))


@intrinsic
def all8(context: Any, value: Any) -> Any:
    """One number eight times."""
    return _made(Lanes, (float,), _splat)


@intrinsic
def add(context: Any, x: Any, y: Any) -> Any:
    return _made(Lanes, (Lanes, Lanes), lambda b, x, y: b.fadd(x, y))


@intrinsic
def mul(context: Any, x: Any, y: Any) -> Any:
    return _made(Lanes, (Lanes, Lanes), lambda b, x, y: b.fmul(x, y))


@intrinsic
def div(context: Any, x: Any, y: Any) -> Any:
    return _made(Lanes, (Lanes, Lanes), lambda b, x, y: b.fdiv(x, y))


@intrinsic
def fma(context: Any, x: Any, y: Any, z: Any) -> Any:
    """x·y + z."""
    return _made(Lanes, (Lanes, Lanes, Lanes), _fma)


@intrinsic
def larger(context: Any, x: Any, y: Any) -> Any:
    return _made(Lanes, (Lanes, Lanes), _larger)


@intrinsic
def largest(context: Any, x: Any) -> Any:
    """The largest of eight."""
    return _made(float, (Lanes,), lambda b, x: _reduce(b, x, _larger))


@intrinsic
def total(context: Any, x: Any) -> Any:
    """The sum of eight."""
    return _made(float, (Lanes,), lambda b, x: _reduce(b, x, lambda b, x, y: b.fadd(x, y)))


@intrinsic
def exp(context: Any, x: Any) -> Any:
    """e^x; 0 below -87, of -inf too, and e^88 above 88."""
    return _made(Lanes, (Lanes,), _exp)


def _exp(b: Any, x: Any) -> Any:
    low = b.fcmp_ordered("<", x, _all(_LEAST))
    x = b.select(low, _all(_LEAST), b.select(b.fcmp_ordered(">", x, _all(_MOST)), _all(_MOST), x))
    shifted = _fma(b, x, _all(_LOG2_E), _all(_ROUNDER))
    n = b.fsub(shifted, _all(_ROUNDER))
    r = _fma(b, n, _all(-_LN2_LOW), _fma(b, n, _all(-_LN2_HIGH), x))
    p = _all(_EXP[0])
    for coefficient in _EXP[1:]:
        p = _fma(b, p, r, _all(coefficient))
    y = _fma(b, b.fmul(r, r), p, b.fadd(r, _all(1.0)))
    exponent = b.sub(b.bitcast(shifted, _INTS), ir.Constant(_INTS, [_ROUNDER_BITS - 127] * WIDTH))
    power = b.bitcast(b.shl(exponent, ir.Constant(_INTS, [23] * WIDTH)), _VECTOR)
    return b.select(low, _all(0.0), b.fmul(y, power))


def _all(value: float) -> Any:
    return ir.Constant(_VECTOR, [value] * WIDTH)


def _splat(b: Any, x: Any) -> Any:
    empty = ir.Constant(_VECTOR, ir.Undefined)
    first = b.insert_element(empty, x, ir.Constant(_INT, 0))
    return b.shuffle_vector(first, empty, ir.Constant(_INTS, [0] * WIDTH))


def _fma(b: Any, x: Any, y: Any, z: Any) -> Any:
    kind = ir.FunctionType(_VECTOR, [_VECTOR] * 3)
    return b.call(cgutils.get_or_insert_function(b.module, kind, f"llvm.fma.v{WIDTH}f32"), [x, y, z])


def _larger(b: Any, x: Any, y: Any) -> Any:
    return b.select(b.fcmp_ordered(">", x, y), x, y)


def _reduce(b: Any, x: Any, join: Callable[..., Any]) -> Any:
    count = WIDTH
    while count > 1:
        count //= 2
        places, empty = ir.VectorType(_INT, count), ir.Constant(x.type, ir.Undefined)
        low = b.shuffle_vector(x, empty, ir.Constant(places, list(range(count))))
        high = b.shuffle_vector(x, empty, ir.Constant(places, list(range(count, 2 * count))))
        x = join(b, low, high)
    return b.extract_element(x, ir.Constant(_INT, 0))


def _pointer(b: Any, base: Any, at: Any, kind: Any) -> Any:
    return b.bitcast(b.gep(b.inttoptr(base, _FLOAT.as_pointer()), [at]), kind.as_pointer())
