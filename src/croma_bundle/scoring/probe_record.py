"""`run.json` of a swept benchmark: what was asked, what it came to, versions, and the hashes of inputs and tables."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from croma_bundle.artifacts.environment import bundle_version
from croma_bundle.errors import BundleError
from croma_bundle.layout import Volume
from croma_bundle.scoring.kept import UNREADABLE, intact
from croma_bundle.scoring.probe_cohort import ProbeCohort
from croma_bundle.scoring.probe_units import made_with
from croma_bundle.scoring.record import CODE, PLANNED, matrix_facts, planned_parts, source_sha256, tileset_facts
from croma_bundle.scoring.roster import Member


def planned(replay: Mapping[str, Any], inputs: Mapping[str, Any]) -> dict[str, Any]:
    """The parts that are known before anything is swept; where they are equal, so are the tables."""
    code = {"bundle": bundle_version(), "source_sha256": source_sha256((*CODE, "probe"))}
    return planned_parts({"command": "probe", **replay}, code | made_with(), inputs)


def inputs_of(
    volume: Volume, tileset: str, cohort: ProbeCohort, fingerprint: str, pixels: str | None, members: Sequence[Member]
) -> dict[str, Any]:
    """What is swept: the rows and the schedule, and of each encoder its matrix."""
    return {
        **tileset_facts(volume, tileset, fingerprint),
        "cohort_sha256": cohort.sha256(),
        "pixels_sha256": pixels,
        "encoders": {m.name: matrix_facts(m) for m in members},
    }


def resolved(
    cohort: ProbeCohort, seeds: Sequence[int], undefined: Sequence[BundleError], refused: Sequence[BundleError]
) -> dict[str, Any]:
    """What the request came to; `undefined`: why an APD or nIPD does not exist."""
    schedule, cells = cohort.schedule, cohort.cells
    return {
        "schedule": asdict(schedule),
        "cramers_v": schedule.v(),
        "chance": schedule.chance,
        "seeds": list(seeds),
        "id_rows": sum(slides.size for slides in cells.slides),
        "ood_rows": len(cells.ood_rows),
        "pseudo_slides": {
            schedule.name(cell): len(slides) for cell, slides in zip(schedule.cells, cells.slides, strict=True)
        },
        "undefined": [fault.paragraph() for fault in undefined],
        "refused": [fault.paragraph() for fault in refused],
    }


def stands(folder: Path, plan: Mapping[str, Any]) -> bool:
    """Whether the folder holds the planned run, whole, with nothing refused or undefined: its errors are told anew."""
    try:
        run = json.loads((folder / "run.json").read_bytes())
        untold = not run["resolved"]["refused"] and not run["resolved"]["undefined"]
        return untold and all(run[part] == plan[part] for part in PLANNED) and intact(folder, run["outputs"])
    except UNREADABLE:
        return False
