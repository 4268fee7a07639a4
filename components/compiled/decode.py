"""What a decoding step does between its matrix products, each in one pass: norms, attention, activation, sampling.

float32 arrays, contiguous. No result depends on another row.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numba import njit as _njit

from components.compiled.lanes import (
    add,
    address,
    all8,
    div,
    exp,
    fma,
    larger,
    largest,
    load,
    load8,
    mul,
    store,
    store8,
    total,
)

PAGE = 16
"""Tokens of one page of keys and values."""
BLOCK = 32
"""Tokens of the vocabulary whose probabilities are summed before a token is looked for among them."""

njit: Any = _njit
_inner: Any = njit(error_model="numpy", no_cpython_wrapper=True, no_cfunc_wrapper=True)
_outer: Any = njit(cache=True, nogil=True, error_model="numpy", no_cfunc_wrapper=True)
_f4 = np.float32


@_inner
def _scale_of(x, size, eps):
    """1 / sqrt(mean x² + ε)."""
    sums, rest, whole = all8(_f4(0)), _f4(0), size // 8 * 8
    for j in range(0, whole, 8):
        sums = fma(load8(x, j), load8(x, j), sums)
    for j in range(whole, size):
        rest += load(x, j) * load(x, j)
    return _f4(1) / _f4(math.sqrt((total(sums) + rest) / _f4(size) + eps))


@_outer
def normalise(x, y, eps):
    """y = x / sqrt(mean x² + ε), by rows [n, d]."""
    size, whole = x.shape[1], x.shape[1] // 8 * 8
    for r in range(x.shape[0]):
        a, b = address(x) + r * size * 4, address(y) + r * size * 4
        scale = _scale_of(a, size, eps)
        for j in range(0, whole, 8):
            store8(b, j, mul(load8(a, j), all8(scale)))
        for j in range(whole, size):
            store(b, j, load(a, j) * scale)


@_outer
def gated(x, y):
    """y [n, m] = silu(x[:, :m]) ∘ x[:, m:]."""
    size, whole = y.shape[1], y.shape[1] // 8 * 8
    one = all8(_f4(1))
    for r in range(y.shape[0]):
        gate, out = address(x) + r * size * 8, address(y) + r * size * 4
        up = gate + size * 4
        for j in range(0, whole, 8):
            g = load8(gate, j)
            store8(out, j, mul(div(g, add(one, exp(mul(g, all8(_f4(-1)))))), load8(up, j)))
        for j in range(whole, size):
            g = load(gate, j)
            store(out, j, g / (_f4(1) + _f4(math.exp(-g))) * load(up, j))


@_inner
def _turn(x, rotation, y, size, scale):
    """Multiply pairs of x by complex numbers and a scale."""
    for j in range(0, size, 2):
        c, s = load(rotation, j) * scale, load(rotation, j + 1) * scale
        a, b = load(x, j), load(x, j + 1)
        store(y, j, a * c - b * s)
        store(y, j + 1, a * s + b * c)


@_inner
def _scores(q, k, s, size):
    """s [PAGE] = q [size] · k [size, PAGE]."""
    zero = all8(_f4(0))
    a, b, c, d, e, f, g, h = zero, zero, zero, zero, zero, zero, zero, zero
    for j in range(0, size, 4):
        x, at = all8(load(q, j)), j * PAGE
        a, b = fma(x, load8(k, at), a), fma(x, load8(k, at + 8), b)
        x, at = all8(load(q, j + 1)), at + PAGE
        c, d = fma(x, load8(k, at), c), fma(x, load8(k, at + 8), d)
        x, at = all8(load(q, j + 2)), at + PAGE
        e, f = fma(x, load8(k, at), e), fma(x, load8(k, at + 8), f)
        x, at = all8(load(q, j + 3)), at + PAGE
        g, h = fma(x, load8(k, at), g), fma(x, load8(k, at + 8), h)
    store8(s, 0, add(add(a, c), add(e, g)))
    store8(s, 8, add(add(b, d), add(f, h)))


@_inner
def _exponentials(s, count):
    """exp(s - max s) in place; the inverse of their sum."""
    top = load8(s, 0)
    for t in range(8, count, 8):
        top = larger(top, load8(s, t))
    below, sums = all8(-largest(top)), all8(_f4(0))
    for t in range(0, count, 8):
        x = exp(add(load8(s, t), below))
        store8(s, t, x)
        sums = add(sums, x)
    return _f4(1) / total(sums)


@_inner
def _collect(s, values, pages, used, stride, size, padded, scale, out, spare):
    """out [size] = scale · Σ over pages and their tokens of s·v."""
    zero = all8(_f4(0))
    for j in range(0, padded, 8):
        a, b, c, d = zero, zero, zero, zero
        for i in range(used):
            v, p = values + (np.int64(pages[i]) * stride + j) * 4, s + i * PAGE * 4
            for t in range(0, PAGE, 4):
                a = fma(all8(load(p, t)), load8(v, t * padded), a)
                b = fma(all8(load(p, t + 1)), load8(v, (t + 1) * padded), b)
                c = fma(all8(load(p, t + 2)), load8(v, (t + 2) * padded), c)
                d = fma(all8(load(p, t + 3)), load8(v, (t + 3) * padded), d)
        found = mul(add(add(a, b), add(c, d)), all8(scale))
        if j + 8 <= size:
            store8(out, j, found)
        else:
            store8(spare, 0, found)
            for t in range(size - j):
                store(out, j + t, load(spare, t))


@_outer
def attend(qkv, rotations, positions, keys, values, table, shared, prompt, own, scale, out, scores, heads):
    """Append one token to every row's keys and values and attend to all of them.

    Args:
        qkv: [n, (H+2K)·D], q and k not yet rotated.
        rotations: [positions, D] cosines and sines in turns.
        keys: [pages, K, D', PAGE], D' = D padded to a multiple of 8 with zeros; unused places hold finite numbers.
        values: [pages, K, PAGE, D'].
        table: [≥n, pages of a row]: first those of the prompt, then the row's own.
        shared: pages of the row's prompt. prompt: its tokens. own: tokens of the row itself so far.
        scale: of the scores.
        out: [n, H·D], written.
        scores: [H/K, ≥ columns] scratch. heads: [H/K + 2, D'] scratch, its padding zeros.
    """
    size, kv_heads, padded = rotations.shape[1], keys.shape[1], keys.shape[2]
    all_heads, per, stride = out.shape[1] // size, heads.shape[0] - 2, keys.shape[1] * keys.shape[2] * PAGE
    wide, turned, key = scores.shape[1], address(heads), address(heads) + per * padded * 4
    spare = key + padded * 4
    for r in range(qkv.shape[0]):
        x, rotation = address(qkv) + r * qkv.shape[1] * 4, address(rotations) + positions[r] * size * 4
        pages, first, tokens, column = table[r], np.int64(shared[r]), np.int64(prompt[r]), np.int64(own[r]) % PAGE
        last = first + np.int64(own[r]) // PAGE
        for h in range(kv_heads):
            here = (np.int64(pages[last]) * stride + h * padded * PAGE) * 4
            _turn(x + (all_heads + h) * size * 4, rotation, key, size, _f4(1))
            v = x + (all_heads + kv_heads + h) * size * 4
            for j in range(size):
                store(address(keys) + here, j * PAGE + column, load(key, j))
                store(address(values) + here, column * padded + j, load(v, j))
            for g in range(per):
                _turn(x + (h * per + g) * size * 4, rotation, turned + g * padded * 4, size, scale)
            for i in range(last + 1):
                k = address(keys) + (np.int64(pages[i]) * stride + h * padded * PAGE) * 4
                for g in range(per):
                    _scores(turned + g * padded * 4, k, address(scores) + (g * wide + i * PAGE) * 4, padded)
            for g in range(per):
                s = address(scores) + g * wide * 4
                for t in range(tokens, first * PAGE):
                    store(s, t, _f4(-np.inf))
                for t in range(last * PAGE + column + 1, (last + 1) * PAGE):
                    store(s, t, _f4(-np.inf))
                least = _exponentials(s, (last + 1) * PAGE)
                o = address(out) + (r * all_heads + h * per + g) * size * 4
                v = address(values) + h * padded * PAGE * 4
                _collect(s, v, pages, last + 1, stride, size, padded, least, o, spare)


@_outer
def place(fresh_keys, fresh_values, lengths, rows, table, keys, values):
    """Write prompts' keys and values [prompts, K, width, D], aligned at the right, to the pages of ``table[rows]``."""
    prompts, kv_heads, width, size = fresh_keys.shape
    for i in range(prompts):
        begin = width - lengths[i]
        for t in range(lengths[i]):
            page, at = table[rows[i], t // PAGE], t % PAGE
            for h in range(kv_heads):
                for j in range(size):
                    keys[page, h, j, at] = fresh_keys[i, h, begin + t, j]
                    values[page, h, at, j] = fresh_values[i, h, begin + t, j]


@_inner
def _mix(x):
    """The finaliser of SplitMix64, as `components.rollout.sampling.mix`."""
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))


@_inner
def _uniform(key, position):
    bits = _mix(np.uint64(key) + np.uint64(position) * np.uint64(0x9E3779B97F4A7C15)) >> np.uint64(41)
    return _f4(np.int64(bits) * 2 + 1) * _f4(2.0**-24)


@_inner
def _copy(x, y, size, padded, temperature):
    """y = x / temperature, then -inf up to ``padded``; the largest."""
    whole, over = size // 8 * 8, all8(temperature)
    top = all8(_f4(-np.inf))
    for j in range(0, whole, 8):
        v = div(load8(x, j), over)
        store8(y, j, v)
        top = larger(top, v)
    for j in range(whole, padded):
        store(y, j, load(x, j) / temperature if j < size else _f4(-np.inf))
    for j in range(whole, padded, 8):
        top = larger(top, load8(y, j))
    return largest(top)


@_outer
def sample(logits, keys, positions, temperature, scratch, blocks, tokens, logp):
    """Token by inversion of softmax(logits / temperature) – the largest at temperature 0 – and its log-probability.

    Args:
        logits: [n, V], kept as they are.
        keys, positions: [n], of the counter-based uniform numbers.
        scratch: [≥ V padded to a multiple of BLOCK]. blocks: [≥ its number of BLOCKs].
    """
    size, last = logits.shape[1], (logits.shape[1] + BLOCK - 1) // BLOCK
    w, divisor = address(scratch), _f4(1) if temperature == 0 else _f4(temperature)
    for r in range(logits.shape[0]):
        x = address(logits) + r * size * 4
        top = _copy(x, w, size, last * BLOCK, divisor)
        token = 0
        if temperature == 0:
            while token < size - 1 and load(w, token) != top:
                token += 1
        below, mass = all8(-top), 0.0
        for b in range(last):
            p, sums = w + b * BLOCK * 4, all8(_f4(0))
            for j in range(0, BLOCK, 8):
                e = exp(add(load8(p, j), below))
                store8(p, j, e)
                sums = add(sums, e)
            blocks[b] = total(sums)
            mass += blocks[b]
        if temperature != 0:
            target, block = np.float64(_uniform(keys[r], positions[r])) * mass, 0
            while block < last - 1 and target >= blocks[block]:
                target -= blocks[block]
                block += 1
            while block > 0 and blocks[block] == 0:  # rounding went past the end of the distribution
                block -= 1
            for j in range(block * BLOCK, min(size, (block + 1) * BLOCK)):
                p = np.float64(load(w, j))
                if p > 0:
                    token = j
                    if target < p:
                        break
                    target -= p
        tokens[r] = token
        logp[r] = _f4(np.float64(load(x, token) / divisor - top) - math.log(mass))
