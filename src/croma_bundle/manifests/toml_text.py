"""Writing the few TOML files that we write (`tileset.toml`, `images.lock.toml`)."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any


def toml_text(table: Mapping[str, Any], comment: str) -> str:
    """A TOML document of strings, numbers, booleans and tables, deeper ones inline; null values are left out.

    A JSON string is a TOML basic string, but for DEL, which TOML wants escaped.
    """
    plain = {k: v for k, v in table.items() if v is not None and not isinstance(v, Mapping)}
    lines = [f"# {comment}", *(f"{key} = {_value(value)}" for key, value in plain.items())]
    for key, value in table.items():
        if isinstance(value, Mapping):
            lines += ["", f"[{_key(key)}]", *(f"{k} = {_value(v)}" for k, v in value.items() if v is not None)]
    return "\n".join(lines) + "\n"


def _key(name: str) -> str:
    return name if name.replace("-", "").replace("_", "").isalnum() and name.isascii() else _value(name)


def _value(value: Any) -> str:
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{_value(k)} = {_value(v)}" for k, v in value.items()) + "}"
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
