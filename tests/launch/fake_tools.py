"""Executables for PATH that stand in for what a test machine cannot have: a GPU's driver, apptainer, a GPU's engine.

Each is a real process; it writes down what it was called with and answers from a list of (arguments, answer).
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

PROGRAM = """#!{python}
import json, os, sys
record = {{"argv": sys.argv[1:], "env": dict(os.environ), "cwd": os.getcwd(), "files": {{}}}}
for name in {read}:
    path = os.environ.get(name, "")
    if os.path.isfile(path):
        record["files"][name] = open(path).read()
with open({log!r}, "a") as handle:
    print(json.dumps(record), file=handle)
for arguments, out, err, code in json.load(open({answers!r})):
    if all(a in sys.argv[1:] for a in arguments):
        sys.stdout.write(out)
        sys.stderr.write(err)
        sys.exit(code)
sys.exit(0)
"""

ABSENT = """
[Absent]
family = "classical"
backend = "timm"
model = "vit_small_patch16_224"
width = 384
repository = "nobody/nothing"
revision = "0123456789abcdef0123456789abcdef01234567"
files = [{ name = "model.safetensors" }]
pooling = "native"
batch_size = 1
generation = "none"
control = true
votes = false
licence = "none"
citation = "none"
"""
"""A private encoder whose repository no hub on this machine has."""
NO_HUB = {"HF_ENDPOINT": "http://127.0.0.1:9", "HF_HUB_DISABLE_TELEMETRY": "1", "NO_PROXY": "127.0.0.1"}


@dataclass(frozen=True)
class Answer:
    """What the tool says when all `arguments` are among its own; the first that fits counts."""

    arguments: Sequence[str]
    out: str = ""
    err: str = ""
    code: int = 0


@dataclass(frozen=True)
class Call:
    argv: list[str]
    env: dict[str, str]
    cwd: str
    files: dict[str, str]


def fake_tool(folder: Path, name: str, *answers: Answer, read: Sequence[str] = ()) -> Path:
    """Put `name` into `folder`; it reads the files that the variables `read` name, and records their content."""
    folder.mkdir(parents=True, exist_ok=True)
    told, log = folder / f".{name}.answers", folder / f".{name}.log"
    told.write_text(json.dumps([[list(a.arguments), a.out, a.err, a.code] for a in answers]))
    log.touch()
    tool = folder / name
    tool.write_text(PROGRAM.format(python=sys.executable, log=str(log), answers=str(told), read=list(read)))
    tool.chmod(0o755)
    return tool


def calls(folder: Path, name: str) -> list[Call]:
    """Every call of the tool so far."""
    return [Call(**json.loads(line)) for line in (folder / f".{name}.log").read_text().splitlines()]


def only_call(folder: Path, name: str) -> Call:
    (call,) = calls(folder, name)
    return call
