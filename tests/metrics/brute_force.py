"""The definitions of metrics.md in plain loops over rows, for comparison; shares no code with the package."""

from __future__ import annotations

import math
import statistics
from collections import Counter

from geometries import cosine_distance

KINDS = {(True, False): "SO", (False, True): "OS", (True, True): "SS", (False, False): "OO"}


def neighbours(x, labels, confounders, groups):
    """For each row: all its candidates as (distance, row, kind), nearest first, ties by row."""
    rows = x.tolist()
    out = []
    for i in range(len(rows)):
        found = []
        for j in range(len(rows)):
            if groups[i] != groups[j]:
                kind = KINDS[labels[i] == labels[j], confounders[i] == confounders[j]]
                found.append((cosine_distance(rows[i], rows[j]), j, kind))
        out.append(sorted(found))
    return out


def balanced_accuracy(found, values, k):
    hits, there = Counter(), Counter()
    first = {value: values.index(value) for value in set(values)}
    for i, near in enumerate(found):
        if near:
            votes = Counter(values[j] for _, j, _ in near[:k])
            elected = min(votes, key=lambda value: (-votes[value], first[value]))
            there[values[i]] += 1
            hits[values[i]] += elected == values[i]
    return sum(hits[value] / there[value] for value in there) / len(there)


def typed(found, k):
    return [(d, kind) for near in found for d, _, kind in near[:k] if kind in ("SO", "OS")]


def ri(found, k):
    kinds = [kind for _, kind in typed(found, k)]
    return kinds.count("SO") / len(kinds) if kinds else 0.5


def tau(found, k):
    return statistics.median(d for d, _ in typed(found, k))


def mari(found, k, tau):
    so = sum(math.exp(-d / tau) for d, kind in typed(found, k) if kind == "SO")
    os = sum(math.exp(-d / tau) for d, kind in typed(found, k) if kind == "OS")
    return so / (so + os)


def causes(found, k):
    """The cause of each row, "" where it has a typed neighbour."""
    out = []
    for near in found:
        kinds = Counter(kind for _, _, kind in near[:k])
        if kinds["SO"] + kinds["OS"]:
            out.append("")
        elif kinds["SS"] > kinds["OO"]:
            out.append("ss")
        else:
            out.append("oo" if kinds["OO"] > kinds["SS"] else "mixed")
    return out


def margin(near, m):
    so, os = ([d for d, _, kind in near if kind == wanted][:m] for wanted in ("SO", "OS"))
    assert len(so) == len(os) == m
    return (sum(os) - sum(so)) / (sum(os) + sum(so))
