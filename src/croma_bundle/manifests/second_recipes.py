"""Second recipes: `["DINOv2-B@croma-0.3.0"]` with `of = "DINOv2-B"` is that entry, prepared or pooled otherwise.

The checkpoint stays the first entry's, so that it is pinned, fetched and locked once.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from croma_bundle.errors import did_you_mean
from croma_bundle.manifests.models import Encoder

SAID_AGAIN = ("of", "generation", "votes")
"""What a second recipe has to say itself."""
OWN = (*SAID_AGAIN, "recipe", "tokens", "arguments", "pooling", "width", "precision", "batch_size", "open", "citation")
"""What it may say; all else is the first entry's."""

Tables = Mapping[str, Any]


def with_second_recipes(tables: Tables, known: Tables) -> tuple[dict[str, Any], list[str]]:
    """The tables of a file, those with `of` completed, and what is wrong with these.

    Args:
        known: tables of other files that `of` may name.
    """
    completed, faults = dict[str, Any](), list[str]()
    for name, table in tables.items():
        first = table.get("of") if isinstance(table, dict) else None
        if not isinstance(first, str):
            completed[name] = table
            continue
        base = {**known, **tables}.get(first)
        if not isinstance(base, dict) or "of" in base:
            faults.append(f"{name}.of: {_no_base(first, base, {**known, **tables})}")
            continue
        firsts = [key for key in table if key in Encoder.model_fields and key not in OWN]
        faults += [f"{name}.{key}: it is that of {first}, remove it" for key in firsts]
        own = {key: value for key, value in table.items() if key not in firsts}
        completed[name] = {**{key: value for key, value in base.items() if key not in SAID_AGAIN}, **own}
    return completed, faults


def _no_base(first: str, base: object, tables: Tables) -> str:
    if base is not None:
        return f"{first} is a second recipe itself"
    return f"there is no entry {first!r}{did_you_mean(first, list(tables))}"
