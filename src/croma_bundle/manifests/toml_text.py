"""Writing the few TOML files that we write (`tileset.toml`)."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any


def toml_text(table: Mapping[str, Any], comment: str) -> str:
    """A TOML document of strings, numbers, booleans and one level of tables; null values are left out.

    A JSON string is a TOML basic string, but for DEL, which TOML wants escaped.
    """
    plain = {k: v for k, v in table.items() if v is not None and not isinstance(v, Mapping)}
    lines = [f"# {comment}", *(f"{key} = {_value(value)}" for key, value in plain.items())]
    for key, value in table.items():
        if isinstance(value, Mapping):
            lines += ["", f"[{key}]", *(f"{k} = {_value(v)}" for k, v in value.items() if v is not None)]
    return "\n".join(lines) + "\n"


def _value(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
