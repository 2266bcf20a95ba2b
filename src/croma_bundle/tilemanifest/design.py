"""What a cohort's design allows before anything is embedded: its cells, and how many typed neighbours every row has."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class DesignCheck:
    """The design of one cohort.

    Attributes:
        cells: (label, confounder) → (rows, groups).
        largest_m: the largest m at which every row has m candidates of either type, so that CRoMa exists; 0: at none.
        lacking: rows without any SO or without any OS candidate.
        rows: all rows.
    """

    cells: dict[tuple[str, str], tuple[int, int]]
    largest_m: int
    lacking: int
    rows: int

    def text(self) -> str:
        """The cells as a table, tiles and groups, and what follows for CRoMa."""
        labels = sorted({label for label, _ in self.cells})
        values = sorted({value for _, value in self.cells})
        table = [["tiles / groups", *values]]
        for label in labels:
            counts = [self.cells.get((label, value)) for value in values]
            table.append([label, *(f"{c[0]:,} / {c[1]:,}" if c else "–" for c in counts)])
        widths = [max(len(row[i]) for row in table) for i in range(len(table[0]))]
        lines = [
            "  ".join(
                ["", *(c.ljust(w) if not i else c.rjust(w) for i, (c, w) in enumerate(zip(row, widths, strict=True)))]
            )
            for row in table
        ]
        return "\n".join([*lines, f"  {self.verdict()}"])

    def verdict(self) -> str:
        """One sentence on CRoMa."""
        if self.largest_m >= 5:
            return "Every tile has 5 candidates of either type, in other groups: CRoMa can be computed."
        if self.largest_m:
            m = self.largest_m
            return f"CRoMa can be computed up to m = {m} only (the headline is 5): score with --m {m}."
        return (
            f"CRoMa cannot be computed: {self.lacking:,} of {self.rows:,} tiles have no candidate of the same label at "
            "another confounder value, or none of another label at the same one, in another group."
        )


def check_design(labels: Sequence[str], confounders: Sequence[str], groups: Sequence[str]) -> DesignCheck:
    """Count candidates of type SO (same label, other confounder) and OS (other label, same confounder) for every row.

    Rows of one group are never each other's candidates. All arguments are of one length.
    """
    rows = list(zip(labels, confounders, groups, strict=True))
    cell, by_label, by_value = Counter((a, b) for a, b, _ in rows), Counter(labels), Counter(confounders)
    own = Counter(rows)
    own_label, own_value = Counter((a, g) for a, _, g in rows), Counter((b, g) for _, b, g in rows)

    def fewest(row: tuple[str, str, str]) -> int:
        label, value, group = row
        inside = own[row]
        so = by_label[label] - cell[label, value] - (own_label[label, group] - inside)
        os = by_value[value] - cell[label, value] - (own_value[value, group] - inside)
        return min(so, os)

    least = {row: fewest(row) for row in own}
    members: dict[tuple[str, str], set[str]] = {}
    for label, value, group in own:
        members.setdefault((label, value), set()).add(group)
    cells = {key: (cell[key], len(members[key])) for key in sorted(cell)}
    lacking = sum(count for row, count in own.items() if least[row] == 0)
    return DesignCheck(cells, min(least.values()), lacking, len(rows))
