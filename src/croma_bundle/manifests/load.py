"""TOML → models: every fault of a file in one message, with file and key."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError

from croma_bundle.errors import ManifestError, did_you_mean

Model = TypeVar("Model", bound=BaseModel)


def read_toml(path: Path) -> dict[str, Any]:
    """Parse `path`; raises `ManifestError` with the line where it is not TOML."""
    if path.exists() and not path.is_file():  # a pipe would be waited for
        raise ManifestError(str(path), "it is not a file")
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except tomllib.TOMLDecodeError as error:
        raise ManifestError(str(path), "this is not TOML", found=str(error)) from None
    except UnicodeDecodeError as error:
        raise ManifestError(str(path), "this is not UTF-8 text", found=f"byte {error.start}") from None
    except (ValueError, RecursionError) as error:  # a number of thousands of digits, brackets in brackets
        raise ManifestError(str(path), "this is no TOML that can be read", found=str(error)[:100]) from None
    except OSError as error:
        raise ManifestError(str(path), f"it cannot be read ({error.strerror})") from None


def read_named(path: Path, model: type[Model], given: Mapping[str, Any] | None = None) -> list[Model]:
    """Read a file of tables `[<name>]`, each one entry of `model`; `given` are keys that the file's place decides.

    Raises:
        ManifestError: all faults of the file, one line each as ``key: what it must be``.
    """
    return entries_of(path, read_toml(path), model, given)


def entries_of(
    path: Path,
    tables: Mapping[str, Any],
    model: type[Model],
    given: Mapping[str, Any] | None = None,
    known_faults: Sequence[str] = (),
) -> list[Model]:
    """The tables of `path` as entries of `model`; `known_faults` are told with those that are found.

    Raises:
        ManifestError: as `read_named`.
    """
    entries, faults = [], list(known_faults)
    for name, table in tables.items():
        if not isinstance(table, dict):
            known = ", ".join(k for k in model.model_fields if k not in ("name", *(given or {})))
            faults.append(f"{name}: stands outside a table; every entry is [<name>] with keys {known}")
            continue
        found = read_entry(model, table, {"name": name, **(given or {})}, prefix=f"{name}.")
        if isinstance(found, list):
            faults += found
        else:
            entries.append(found)
    _raise(path, faults)
    return entries


def read_single(path: Path, model: type[Model], given: Mapping[str, Any]) -> Model:
    """Read a file that is one entry of `model`."""
    found = read_entry(model, read_toml(path), given, prefix="")
    if isinstance(found, list):
        _raise(path, found)
        raise AssertionError("unreachable")
    return found


def read_entry(
    model: type[Model], table: Mapping[str, Any], given: Mapping[str, Any], prefix: str
) -> Model | list[str]:
    """The validated entry, or its faults as ``key: reason`` lines; a key that is `given` may not be set too."""
    faults = [f"{prefix}{key}: it is {given[key]!r} by its place, remove it" for key in given if key in table]
    try:
        entry = model.model_validate(_lists_to_tuples({**table, **given}))
    except ValidationError as error:
        return faults + [_fault(model, dict(item), prefix) for item in error.errors()]
    except RecursionError:
        return [*faults, f"{prefix.rstrip('.')}: its tables are nested too deep"]
    return faults or entry


def _fault(model: type[BaseModel], item: dict[str, Any], prefix: str) -> str:
    path = [str(part) for part in item["loc"]]
    key = prefix + ".".join(path) if path else prefix.rstrip(".")
    if item["type"] == "extra_forbidden":
        return f"{key}: unknown key{did_you_mean(path[-1], _fields_at(model, path[:-1]))}"
    if item["type"] == "missing":
        return f"{key}: missing"
    if item["type"] == "string_pattern_mismatch" and path[-1] == "revision":
        return f"{key}: must be a commit of 40 hex digits, not a branch or tag; found {item['input']!r}"
    message = item["msg"].removeprefix("Value error, ")
    return f"{key}: {message[0].lower()}{message[1:]}" + (f"; found {item['input']!r}" if path else "")


def _fields_at(model: type[BaseModel], path: list[str]) -> list[str]:
    """Field names of the model nested at `path`."""
    for part in path:
        field = model.model_fields.get(part)
        nested = (
            [t for t in _types(field.annotation) if isinstance(t, type) and issubclass(t, BaseModel)] if field else []
        )
        if not nested:
            return []
        model = nested[0]
    return list(model.model_fields)


def _types(annotation: Any) -> tuple[Any, ...]:
    return getattr(annotation, "__args__", None) or (annotation,)


def _lists_to_tuples(value: Any) -> Any:
    """TOML arrays as tuples, which is what strict frozen models hold."""
    if isinstance(value, Mapping):
        return {key: _lists_to_tuples(item) for key, item in value.items()}
    return tuple(map(_lists_to_tuples, value)) if isinstance(value, list) else value


def _raise(path: Path, faults: list[str]) -> None:
    if faults:
        count = "one key is wrong" if len(faults) == 1 else f"{len(faults)} keys are wrong"
        raise ManifestError(str(path), count, detail="\n  ".join(faults))
