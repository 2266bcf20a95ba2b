"""Names of tilesets and benchmarks share one space, because a declared tileset is a benchmark too."""

from __future__ import annotations

from croma_bundle.errors import UsageError
from croma_bundle.manifests.catalogue import Catalogue


def refuse_taken(catalogue: Catalogue, name: str) -> None:
    """Raise `UsageError` where a tileset or benchmark of this name is declared already."""
    for kind, entries in (("tileset", catalogue.tilesets), ("benchmark", catalogue.benchmarks)):
        if name in entries:
            raise UsageError(
                f"{kind} {name}",
                "the name is taken, and a tileset is frozen once written",
                declared=str(catalogue.declared[kind, name]),
                detail="Add the cohort under another name, or remove that folder and its embeddings first.",
            )
