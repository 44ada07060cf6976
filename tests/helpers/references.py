"""Slow and plain forms of what the package computes fast."""

import math
from collections import defaultdict


def plain_hash32(x):
    """The same hash on Python integers."""
    x &= 0xFFFFFFFF
    x ^= x >> 16
    x = x * 0x7FEB352D & 0xFFFFFFFF
    x ^= x >> 15
    x = x * 0x846CA68B & 0xFFFFFFFF
    return x ^ x >> 16


def model_one(sources, targets, rounds):
    """t(source | target) by EM, a piece at a time; None stands for no word."""
    t = defaultdict(lambda: 1.0)
    for _ in range(rounds):
        counts = defaultdict(float)
        totals = defaultdict(float)
        for source, target in zip(sources, targets, strict=True):
            for place, e in enumerate(source if target else []):
                where = (place + 0.5) / len(source)
                near = [
                    math.exp(-4 * abs(where - (other + 0.5) / len(target)))
                    for other in range(len(target))
                ]
                prior = [0.92 * share / sum(near) for share in near] + [0.08]
                candidates = [*target, None]
                total = sum(t[e, f] * p for f, p in zip(candidates, prior, strict=True))
                for f, p in zip(candidates, prior, strict=True):
                    counts[e, f] += t[e, f] * p / total
                    totals[f] += t[e, f] * p / total
        t = defaultdict(float, {(e, f): count / totals[f] for (e, f), count in counts.items()})
    return {(e, f): p for (e, f), p in t.items() if f is not None}
