"""A scored benchmark as it was written: `run.json` and `metrics.csv`, and nothing else of it."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from croma_bundle.durable import sha256_file
from croma_bundle.errors import ArtifactError, InputError
from croma_bundle.scoring.record import RUN_SCHEMA
from croma_bundle.tilemanifest.table import read_table

BLOCKS = ("replay", "resolved", "inputs", "outputs")
NEEDED = ("encoder", "is_control", "external", "protocol", "k", "m", "n_units", "generation", "precision", "device")


@dataclass(frozen=True)
class Scored:
    """A run and its `metrics.csv`, one mapping of column to text per encoder."""

    run: dict[str, Any]
    rows: list[dict[str, str]]


def read_run(folder: Path, shown: str) -> dict[str, Any]:
    """The `run.json` of a folder that `score` wrote; `shown` names the folder to the user.

    Raises:
        InputError: there is none. ArtifactError: it is damaged, or of another version.
    """
    path = folder / "run.json"
    if not path.exists():
        detail = "`score` writes it last, so a folder without it is none of its, or not finished."
        raise InputError(shown, "this is not a scored benchmark", wanted="run.json and its tables", detail=detail)
    try:
        run = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise ArtifactError(f"{shown}/run.json", "it is damaged", found=str(error)) from None
    if not isinstance(run, dict) or run.get("schema") != RUN_SCHEMA:
        found = f"schema {run.get('schema')!r}" if isinstance(run, dict) else "no JSON object"
        detail = "It was written by another version of croma-bundle; verify it with that one."
        raise ArtifactError(f"{shown}/run.json", "another schema", wanted=str(RUN_SCHEMA), found=found, detail=detail)
    if lacking := [name for name in BLOCKS if not isinstance(run.get(name), dict)]:
        raise ArtifactError(f"{shown}/run.json", f"it is damaged: it lacks {', '.join(lacking)}")
    return run


def read_scored(folder: Path, shown: str, then: str) -> Scored:
    """The run and its table.

    Raises:
        InputError, ArtifactError: not scored, damaged, or a table that is not its run's; `then` scores it again.
    """
    run = read_run(folder, shown)
    path, wanted = folder / "metrics.csv", run["outputs"].get("metrics.csv")
    found = sha256_file(path) if path.exists() else "no file"
    if found != wanted:
        subject, problem = f"{shown}/metrics.csv", "it is not the table that its run.json states"
        raise ArtifactError(subject, problem, wanted=f"sha256 {wanted}", found=found, then=then)
    table = read_table(path, NEEDED)
    return Scored(run, [dict(zip(table.header, row, strict=True)) for row in table.rows])
