"""Who is compared with whom: the manifest's columns as integer codes, and the evaluation scopes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from croma_bundle.errors import CohortError, some

Codes = npt.NDArray[np.int64]

DESIGNS = ("all", "paired_2x2")
_UNITS = {"all": "sample", "paired_2x2": "occurrence"}


@dataclass(frozen=True, eq=False)
class Scope:
    """Rows that are compared with each other and with no other row.

    ``name`` is the subset's, or "all"; ``rows`` is (n,) int64, positions in the cohort, ascending.
    """

    name: str
    rows: Codes


@dataclass(frozen=True, eq=False)
class Cohort:
    """The rows of one benchmark with their label, confounder and independence group.

    Attributes:
        name: what errors call it.
        design: "all" (one scope of all rows) or "paired_2x2" (each complete 2×2 subset is a scope).
        labels, confounders, groups: (N,) int64 codes, numbered in the sorted order of the text.
        label_names, confounder_names, group_names: the text of each code.
        scopes: in sorted order of their names.
        incomplete: (subset, reason) of each subset that is no complete 2×2; its rows are no evaluation units.
    """

    name: str
    design: str
    labels: Codes
    confounders: Codes
    groups: Codes
    label_names: tuple[str, ...]
    confounder_names: tuple[str, ...]
    group_names: tuple[str, ...]
    scopes: tuple[Scope, ...]
    incomplete: tuple[tuple[str, str], ...]

    @classmethod
    def from_columns(
        cls,
        labels: Sequence[str],
        confounders: Sequence[str],
        groups: Sequence[str],
        subsets: Sequence[str] | None = None,
        design: str = "all",
        name: str = "",
    ) -> Cohort:
        """The cohort of a manifest's columns.

        Args:
            labels, confounders, groups: N texts each, one per row.
            subsets: N texts; needed by "paired_2x2", not looked at by "all".
            design: one of :data:`DESIGNS`.
            name: the benchmark, for errors.

        Raises:
            CohortError: an unknown design, columns of unequal length, no row, one label, one confounder value or
                one group only, no complete subset: every fault that is found, in one error.
        """
        subject = name or "cohort"
        _require_columns(subject, design, labels, confounders, groups, subsets)
        scopes, incomplete = _scopes(design, labels, confounders, subsets)
        _require_contrast(subject, design, labels, confounders, groups, scopes, incomplete)
        label_codes, label_names = _encode(labels)
        confounder_codes, confounder_names = _encode(confounders)
        group_codes, group_names = _encode(groups)
        return cls(
            name=name,
            design=design,
            labels=label_codes,
            confounders=confounder_codes,
            groups=group_codes,
            label_names=label_names,
            confounder_names=confounder_names,
            group_names=group_names,
            scopes=scopes,
            incomplete=incomplete,
        )

    @property
    def n_rows(self) -> int:
        """Rows of the cohort, used or not: what the embedding matrix must have."""
        return len(self.labels)

    @property
    def n_units(self) -> int:
        """Evaluation units: the rows of the scopes."""
        return sum(len(scope.rows) for scope in self.scopes)

    @property
    def unit(self) -> str:
        """What an evaluation unit is called: "sample" or "occurrence"."""
        return _UNITS[self.design]


def _encode(column: Sequence[str]) -> tuple[Codes, tuple[str, ...]]:
    names = tuple(sorted({str(text) for text in column}))
    code = {text: i for i, text in enumerate(names)}
    return np.array([code[text] for text in column], dtype=np.int64), names


def _scopes(
    design: str, labels: Sequence[str], confounders: Sequence[str], subsets: Sequence[str] | None
) -> tuple[tuple[Scope, ...], tuple[tuple[str, str], ...]]:
    if design == "all" or subsets is None:
        return (Scope("all", np.arange(len(labels), dtype=np.int64)),), ()
    members: dict[str, list[int]] = {}
    for row, subset in enumerate(subsets):
        members.setdefault(str(subset), []).append(row)
    scopes, incomplete = [], []
    for subset in sorted(members):
        rows = members[subset]
        reason = _why_incomplete([labels[row] for row in rows], [confounders[row] for row in rows])
        if reason:
            incomplete.append((subset, reason))
        else:
            scopes.append(Scope(subset, np.array(rows, dtype=np.int64)))
    return tuple(scopes), tuple(incomplete)


def _why_incomplete(labels: Sequence[str], confounders: Sequence[str]) -> str:
    """Why these rows are no complete 2×2 table; an empty text where they are one."""
    reasons = []
    for what, column in (("label", labels), ("confounder value", confounders)):
        values = sorted(set(column))
        if len(values) != 2:
            reasons.append(f"{len(values)} {what}{'s' if len(values) > 1 else ''} ({some(values)}), not 2")
    if not reasons:
        filled = set(zip(labels, confounders, strict=True))
        cells = [(label, value) for label in sorted(set(labels)) for value in sorted(set(confounders))]
        reasons = [f"no row of {label} × {value}" for label, value in cells if (label, value) not in filled]
    return "; ".join(reasons)


def _require_columns(
    subject: str,
    design: str,
    labels: Sequence[str],
    confounders: Sequence[str],
    groups: Sequence[str],
    subsets: Sequence[str] | None,
) -> None:
    faults = []
    if design not in DESIGNS:
        faults.append(f"'{design}' is no evaluation design; there are {some(DESIGNS)}")
    if design == "paired_2x2" and subsets is None:
        faults.append("the design paired_2x2 needs a subset column")
    columns: dict[str, Sequence[str]] = {"label": labels, "confounder": confounders, "group_id": groups}
    if subsets is not None:
        columns["subset"] = subsets
    if len({len(column) for column in columns.values()}) > 1:
        lengths = ", ".join(f"{name} {len(column)}" for name, column in columns.items())
        faults.append(f"the columns differ in length ({lengths})")
    elif not len(labels):
        faults.append("there is no row")
    if faults:
        raise CohortError(subject, "; ".join(faults))


def _require_contrast(
    subject: str,
    design: str,
    labels: Sequence[str],
    confounders: Sequence[str],
    groups: Sequence[str],
    scopes: Sequence[Scope],
    incomplete: Sequence[tuple[str, str]],
) -> None:
    """Every metric needs two labels, two confounder values and two groups among the rows it uses."""
    rows = [int(row) for scope in scopes for row in scope.rows] or list(range(len(labels)))
    faults = []
    if not scopes:
        reasons = some([f"{subset} has {reason}" for subset, reason in incomplete])
        faults.append(f"no subset is a complete 2×2 of labels and confounder values: {reasons}")
    for what, column in (("label", labels), ("confounder value", confounders), ("group", groups)):
        values = {column[row] for row in rows}
        if len(values) == 1:
            faults.append(f"all {len(rows)} rows have one {what}, '{values.pop()}'")
    if faults:
        detail = f"The design {design} compares rows of different labels, confounder values and groups."
        raise CohortError(subject, "; ".join(faults), detail=detail)
