"""An upper bound of the product from few columns, so that most pairs need no product at full width.

With l the components of a centred unit row y along some orthonormal directions, and r the length of what they leave of
it, y·z ≤ l_y·l_z + r_y·r_z (Cauchy-Schwarz). Embeddings vary along few directions, so r is short, and the bound rules
out nearly all pairs. The directions come from the sample; any would do, worse ones only let more pairs through.
"""

from __future__ import annotations

from concurrent.futures import Executor

import numpy as np

from croma_bundle.metrics.arrangement import Arrangement, Floats, Singles, steps

COUNT = 64
"""Directions. More rule out little more, and cost more."""
WIDER = 4
"""Times the directions that rows are wide at least, for the bound to be tried."""
FEWEST = 2_000
"""Rows at least: fewer are multiplied in no time."""
ROUNDS = 2
SLACK = 1e-9
"""Of a squared length: far more than float64 loses of l and r."""
_LINES = 256


def may_pay(rows: int, width: int) -> bool:
    """Whether so many rows, so wide, are worth a try."""
    return rows >= FEWEST and width >= WIDER * COUNT


def directions(sample: Singles) -> Floats:
    """(D, COUNT) float64, orthonormal: about the leading directions of the sample, by subspace iteration."""
    spread = sample[np.arange(COUNT) * len(sample) // COUNT]
    found = spread.T.astype(np.float64)
    for _ in range(ROUNDS):
        again = sample.T @ (sample @ found.astype(np.float32))
        found = np.linalg.qr(again.astype(np.float64))[0]
    return found


def components(a: Arrangement, rows: slice, along: Floats, pool: Executor) -> Singles:
    """(n, COUNT + 1) float32: l and r of n arranged rows, along directions (D, COUNT).

    The product of two such lines, less h of both rows, is at least minus their distance less ``Arrangement.band``: the
    bound holds but for SLACK, and a product of so few terms errs less in float32 than that of whole rows.
    """

    def lines(part: slice) -> Singles:
        y = a.factor(part).astype(np.float64)
        inside = y @ along
        square = np.add.reduce(y * y, axis=-1)
        left = np.maximum(square - np.add.reduce(inside * inside, axis=-1), 0.0)
        return np.column_stack([inside, np.sqrt(left + SLACK * square)]).astype(np.float32)

    return np.concatenate(list(pool.map(lines, steps(rows.start, rows.stop, _LINES))))
