"""`score --with-published`: where a scored encoder would stand among the published ones. It only shows; no table of
ours ever holds a published row."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import click

from croma_bundle.manifests.catalogue import Catalogue
from croma_bundle.manifests.models import Benchmark
from croma_bundle.metrics.ranking import ranks
from croma_bundle.progress import Reporter
from croma_bundle.scoring.terminal import MISSING, aligned
from croma_bundle.verification.panel import Panel, load_panel
from croma_bundle.verification.published import published_name

HEAD = ["", "encoder", "k", "CRoMa median", "LTM10", "F(0)", "RI", "MaRI", "support"]
Row = Mapping[str, Any]


class WithPublished(Reporter):
    """Says everything on, and after each scored benchmark that reproduces a published cohort shows the places."""

    def __init__(self, catalogue: Catalogue, *, as_json: bool = False) -> None:
        super().__init__(as_json=as_json)
        self.catalogue, self.panel = catalogue, load_panel()

    def result(self, text: str, event: str, **fields: Any) -> None:
        super().result(text, event, **fields)
        rows = fields.get("rows")
        if event == "scored" and rows:
            self._show(rows)

    def _show(self, rows: Sequence[Row]) -> None:
        benchmark = self.catalogue.benchmark(str(rows[0]["benchmark"]))
        default = benchmark.confounder or self.catalogue.tileset(benchmark.tileset).confounder
        if benchmark.published is None or rows[0]["confounder"] != default:
            return
        self.panel.require_cohort(benchmark.published, benchmark.name)
        text, places = beside_text(rows, benchmark, self.panel)
        cohort, generation = benchmark.published, self.panel.target
        super().result(
            f"{text}\n", "published", benchmark=benchmark.name, cohort=cohort, generation=generation, places=places
        )


def places_among(rows: Sequence[Row], published: Mapping[str, float], panel: Panel) -> dict[str, int]:
    """The place of each of our ranked encoders among the published ranked ones, its own published figure left out;
    1 = best, an equal figure shares the better place."""
    places = {}
    for row in rows:
        if not row["is_control"] and row["croma_median"] is not None:
            name = str(row["encoder"])
            others = [value for other, value in published.items() if other != published_name(name, panel)]
            places[name] = 1 + sum(value > row["croma_median"] for value in others)
    return places


def beside_text(rows: Sequence[Row], benchmark: Benchmark, panel: Panel) -> tuple[str, dict[str, int]]:
    """The published encoders by CRoMa median with ours among them, and our places."""
    generation, cohort = panel.generations[panel.target], str(benchmark.published)
    figures = {
        encoder: {metric: float(value) for metric, value in of.items()}
        for encoder, of in panel.cohort(generation.name, cohort).items()
    }
    facts = generation.cohorts[cohort]
    medians = {e: of["croma_median"] for e, of in figures.items() if e not in generation.controls}
    published_rank, places = ranks(medians), places_among(rows, medians, panel)
    ranked: list[tuple[float, bool, list[str]]] = []
    controls: list[tuple[float, bool, list[str]]] = []
    for encoder, of in figures.items():
        place = "" if encoder in generation.controls else _place(published_rank[encoder], published_rank.values())
        cells = [place, f"{encoder} ({generation.name})", str(facts.k_of(encoder)), *_figures(of)]
        (controls if encoder in generation.controls else ranked).append((-of["croma_median"], False, cells))
    for row in rows:
        place = "" if row["is_control"] else f"→ {places[row['encoder']]}" if row["encoder"] in places else "–"
        kind = "yours, external" if row["external"] else "yours"
        cells = [place, f"{row['encoder']} ({kind})", str(row["k"]), *_figures(row)]
        margin = row["croma_median"]
        (controls if row["is_control"] else ranked).append((2.0 if margin is None else -margin, True, cells))
    ranked.sort()
    controls.sort()
    lines = aligned([HEAD, *(cells for _, _, cells in [*ranked, *controls])])
    marked = [
        click.style(line, bold=True) if own else line
        for line, (_, own, _) in zip(lines[1:], [*ranked, *controls], strict=True)
    ]
    at = f"k = {facts.k}" if isinstance(facts.k, int) else "each at its own k"
    made = f"{len(figures)} encoders, {at}, m = {generation.m}, exported {generation.exported}"
    title = f"{benchmark.name} · yours (→) beside {cohort} as published in {generation.name} ({made})"
    body = [lines[0], *marked[: len(ranked)]]
    body += ["controls, not ranked", *marked[len(ranked) :]] if controls else []
    notes = _notes(rows, panel, cohort)
    return "\n".join([title, *body, *(f"  note: {note}" for note in notes)]), places


def _figures(of: Row) -> list[str]:
    return [
        *(f"{of[m]:+.3f}" if of[m] is not None else MISSING for m in ("croma_median", "croma_ltm10")),
        *(f"{of[m]:.3f}" if of[m] is not None else MISSING for m in ("croma_f0", "ri", "mari")),
        f"{100 * of['support']:.1f} %",
    ]


def _place(rank: int, all_ranks: Any) -> str:
    return f"{'=' if list(all_ranks).count(rank) > 1 else ''}{rank}"


def _notes(rows: Sequence[Row], panel: Panel, cohort: str) -> list[str]:
    """What keeps a row of ours from being like the published ones."""
    generation = panel.generations[panel.target]
    facts = generation.cohorts[cohort]
    notes = ["a place is among the published encoders, the encoder's own published row left out"]
    if {row["n_units"] for row in rows} != {facts.units}:
        notes.append(f"other rows: {rows[0]['n_units']:,} units here, published {facts.units:,}")
    if {row["m"] for row in rows} != {generation.m}:
        notes.append(f"other m: CRoMa is at m = {rows[0]['m']} here, published at {generation.m}")
    if isinstance(facts.k, int) and {row["k"] for row in rows} != {facts.k}:
        notes.append(f"RI, MaRI and support depend on k; --k {facts.k} scores yours at the published one")
    return notes
