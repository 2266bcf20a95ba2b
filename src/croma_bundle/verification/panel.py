"""The published figures: `results/published/panel.csv`, and what they were made under: `results/PROVENANCE.json`."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path
from typing import Any

from croma_bundle.errors import InputError, did_you_mean
from croma_bundle.tilemanifest.table import read_table

COLUMNS = ("cohort", "encoder", "metric", "value", "generation", "source")
SCHEMA = 1

_PACKAGED = Path(__file__).resolve().parent.parent / "_published"
_CHECKOUT = Path(__file__).resolve().parents[3] / "results"


@dataclass(frozen=True)
class Cohort:
    """What the figures of one cohort in one generation were made under.

    `k` is the shared one, or each encoder's own (`k-star`).
    """

    encoders: int
    units: int
    protocol: str
    k: int | Mapping[str, int]

    def k_of(self, encoder: str) -> int | None:
        return self.k if isinstance(self.k, int) else self.k.get(encoder)


@dataclass(frozen=True)
class Generation:
    """One release of the published figures.

    `mixed_float16`: encoders that were run in float16 autocast on CUDA; all others in float32. `recipes`: encoders
    whose recipe differs from that of the generation `since`.
    """

    name: str
    exported: str
    panel_size: int
    controls: frozenset[str]
    m: int
    mixed_float16: frozenset[str]
    cohorts: Mapping[str, Cohort]
    since: str | None
    recipes: frozenset[str]


@dataclass(frozen=True)
class Panel:
    """All published figures; `target` is the generation to reproduce."""

    target: str
    generations: Mapping[str, Generation]
    figures: Mapping[tuple[str, str], Mapping[str, Mapping[str, Decimal]]]

    def cohort(self, generation: str, cohort: str) -> Mapping[str, Mapping[str, Decimal]]:
        """Encoder → metric → figure."""
        return self.figures.get((generation, cohort), {})

    def same_recipe(self, encoder: str, a: str, b: str) -> bool:
        """Whether the encoder was run the same way in both generations; False where nobody says so."""
        if a == b:
            return True
        for new, old in ((a, b), (b, a)):
            if new in self.generations and old in self.generations and self.generations[new].since == old:
                return encoder not in self.generations[new].recipes
        return False

    def require_generation(self, name: str) -> Generation:
        if name not in self.generations:
            raise InputError(
                f"generation {name!r}",
                f"no figures of this name are published here{did_you_mean(name, self.generations)}",
                wanted=", ".join(self.generations),
            )
        return self.generations[name]

    def require_cohort(self, cohort: str, benchmark: str) -> None:
        known = {name for generation in self.generations.values() for name in generation.cohorts}
        if cohort not in known:
            raise InputError(
                f"benchmark {benchmark}",
                f"it says that it reproduces {cohort!r}, which is not published{did_you_mean(cohort, known)}",
                wanted=", ".join(sorted(known)),
                declared=f"published = {cohort!r} in its entry",
            )


def figures_path() -> Path:
    """The figures: inside the wheel, or of the checkout that an editable install points to."""
    return (_PACKAGED if _PACKAGED.is_dir() else _CHECKOUT / "published") / "panel.csv"


def provenance_path() -> Path:
    return (_PACKAGED if _PACKAGED.is_dir() else _CHECKOUT) / "PROVENANCE.json"


def load_panel() -> Panel:
    """Read both files."""
    provenance = json.loads(provenance_path().read_text(encoding="utf-8"))
    if provenance["schema"] != SCHEMA:
        raise InputError(str(provenance_path()), "another schema", wanted=str(SCHEMA), found=str(provenance["schema"]))
    figures: dict[tuple[str, str], dict[str, dict[str, Decimal]]] = {}
    for row in read_table(figures_path(), COLUMNS).rows:
        cohort, encoder, metric, value, generation, _ = row
        figures.setdefault((generation, cohort), {}).setdefault(encoder, {})[metric] = Decimal(value)
    generations = {name: _generation(name, entry) for name, entry in provenance["generations"].items()}
    return Panel(provenance["target"], generations, figures)


def _generation(name: str, entry: Mapping[str, Any]) -> Generation:
    changes = entry["changes"] or {"since": None, "recipes": {}}
    cohorts = {
        cohort: Cohort(facts["encoders"], facts["units"], facts["protocol"], facts["k"])
        for cohort, facts in entry["cohorts"].items()
    }
    return Generation(
        name=name,
        exported=entry["exported"],
        panel_size=entry["panel_size"],
        controls=frozenset(entry["controls"]),
        m=entry["m"],
        mixed_float16=frozenset(entry["mixed_float16_on_cuda"]),
        cohorts=cohorts,
        since=changes["since"],
        recipes=frozenset(changes["recipes"]),
    )
