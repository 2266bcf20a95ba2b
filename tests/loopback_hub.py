"""A small Hugging Face hub on loopback: real HTTP for the real client, with faults on demand.

It speaks what the client's releases 0.36 to 2 read with: repository facts, trees, `resolve` with its headers, large
files through a redirect to another host name (which must not be sent the token), ranges, gated
repositories, error codes.

    with LoopbackHub() as hub:
        commit = hub.commit("owner/name", {"model.safetensors": b"…", "config.json": b"{}"})
        hub.fault("owner/name", "model.safetensors", Cut(after=1000))
        run(..., env=hub.environment(home, token="hf_…"))
        assert hub.received("GET", "/resolve/")
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import sys
import threading
import time
import urllib.parse
from collections.abc import Mapping
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import TracebackType
from typing import Any

LARGE = (".safetensors", ".bin", ".pth", ".pt", ".ckpt", ".parquet", ".npy")
"""What the hub keeps as large files, whatever their size."""
FROM_THE_ENVIRONMENT = ("HF_", "HUGGING", "TRANSFORMERS_", "HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "NO_PROXY")


@dataclass(frozen=True)
class Cut:
    """The connection breaks after so many bytes of the answer."""

    after: int


@dataclass(frozen=True)
class Stall:
    """Nothing more comes after so many bytes, until `go` is set."""

    after: int
    go: threading.Event = field(default_factory=threading.Event)
    reached: threading.Event = field(default_factory=threading.Event)


@dataclass(frozen=True)
class Slow:
    """The answer comes in this many pieces, with a pause between them."""

    pieces: int
    pause: float


@dataclass(frozen=True)
class Wrong:
    """Other content than the hub says the file has."""

    content: bytes


@dataclass(frozen=True)
class Status:
    """An HTTP status instead of the content."""

    code: int


@dataclass(frozen=True)
class IgnoreRange:
    """The whole file whatever range was asked for, as some caches between client and hub answer."""


Fault = Cut | Stall | Slow | Wrong | Status | IgnoreRange


@dataclass(frozen=True)
class Request:
    method: str
    path: str
    host: str
    token: str | None
    range: str | None


@dataclass
class Repository:
    """`commits` maps a commit to its files; `gated`: only tokens that were granted access may read content."""

    name: str
    kind: str
    gated: bool
    commits: dict[str, dict[str, bytes]] = field(default_factory=dict)
    head: str = ""


class LoopbackHub:
    """The server; a context manager.

    Attributes:
        granted: every valid token, and the gated repositories that it may read.
        renamed: old name → new name of a repository.
        claimed: (repository, file) → a size that the hub states instead of the true one.
    """

    def __init__(self) -> None:
        self.repositories: dict[tuple[str, str], Repository] = {}
        self.renamed: dict[str, str] = {}
        self.granted: dict[str, set[str]] = {}
        self.claimed: dict[tuple[str, str], int] = {}
        self.requests: list[Request] = []
        self._faults: dict[tuple[str, str], list[Fault]] = {}
        hub = self

        class Handler(_Handler):
            pass

        Handler.hub = hub
        self._server = _Server(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self._thread = threading.Thread(target=self._server.serve_forever, daemon=True)

    def __enter__(self) -> LoopbackHub:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._server.shutdown()
        self._server.server_close()

    @property
    def port(self) -> int:
        return int(self._server.server_address[1])

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def commit(self, name: str, files: Mapping[str, bytes], *, kind: str = "model", gated: bool = False) -> str:
        """Add a commit that holds exactly `files` and make it the head of `main`; its 40 hex."""
        repository = self.repositories.setdefault((kind, name), Repository(name, kind, gated))
        repository.gated = gated
        text = repr((repository.head, name, kind, sorted((f, _sha256(c)) for f, c in files.items())))
        repository.head = hashlib.sha1(text.encode()).hexdigest()
        repository.commits[repository.head] = dict(files)
        return repository.head

    def grant(self, token: str, *names: str) -> None:
        """Make `token` valid, with access to these gated repositories."""
        self.granted.setdefault(token, set()).update(names)

    def fault(self, name: str, file: str, *faults: Fault) -> None:
        """Answer the next requests for the content of a file so, one fault each; after them all is well."""
        self._faults.setdefault((name, file), []).extend(faults)

    def heal(self) -> None:
        """Forget the faults that nobody has met."""
        self._faults.clear()

    def next_fault(self, name: str, file: str) -> Fault | None:
        waiting = self._faults.get((name, file))
        return waiting.pop(0) if waiting else None

    def received(self, method: str = "", containing: str = "") -> list[Request]:
        return [r for r in self.requests if method in ("", r.method) and containing in r.path]

    def environment(self, home: Path, *, token: str | None = None) -> dict[str, str]:
        """The environment of a process that knows only this hub; nothing of the caller's hub settings and proxies."""
        kept = {k: v for k, v in os.environ.items() if not k.upper().startswith(FROM_THE_ENVIRONMENT)}
        kept |= {"HF_ENDPOINT": self.url, "HF_HOME": str(home), "HOME": str(home), "NO_PROXY": "*"}
        return kept | ({"HF_TOKEN": token} if token is not None else {})


class _Server(ThreadingHTTPServer):
    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that was killed, or that hung up, is no fault of the hub's; anything else is."""
        if not isinstance(sys.exception(), ConnectionError):
            super().handle_error(request, client_address)


class _Handler(BaseHTTPRequestHandler):
    hub: LoopbackHub
    protocol_version = "HTTP/1.1"
    _CONTENT = re.compile(r"/(datasets/)?([^/]+/[^/]+)/resolve/([^/]+)/(.+)")
    _FACTS = re.compile(r"/api/(models|datasets)/([^/]+/[^/]+)(?:/(revision|tree|paths-info)/([^/]+)(?:/(.+))?)?")

    def log_message(self, format: str, *args: Any) -> None:
        """Nothing: `hub.requests` holds it."""

    def do_HEAD(self) -> None:
        self._answer()

    def do_GET(self) -> None:
        self._answer()

    def do_POST(self) -> None:
        self._answer()

    def _answer(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        address = urllib.parse.urlsplit(self.path)
        path = urllib.parse.unquote(address.path)
        self.hub.requests.append(
            Request(self.command, path, self.headers.get("Host", ""), self._token(), self.headers.get("Range"))
        )
        if path.startswith("/cdn/"):
            return self._large(path)
        if (token := self._token()) is not None and token not in self.hub.granted:
            message = "Invalid credentials in Authorization header"
            return self._error(401, None, message)
        if path == "/api/whoami-v2":
            return self._json({"name": "somebody", "type": "user"}) if token else self._error(401, None, "who?")
        if match := self._FACTS.fullmatch(path):
            return self._facts(*match.groups(), urllib.parse.parse_qs(address.query), body)
        if match := self._CONTENT.fullmatch(path):
            dataset, name, revision, file = match.groups()
            return self._content("dataset" if dataset else "model", name, revision, file)
        return self._error(404, None, "no such page")

    def _token(self) -> str | None:
        return (self.headers.get("Authorization") or "").removeprefix("Bearer ") or None

    def _at(self, kind: str, name: str, revision: str | None) -> tuple[Repository, str] | None:
        """The repository and the commit, or None where the answer was an error or a redirect."""
        if name in self.hub.renamed:
            location = self.path.replace(name, self.hub.renamed[name], 1)
            self._send(307, b"", {"Location": location})
            return None
        repository = self.hub.repositories.get((kind, name))
        if repository is None:
            known = self._token() is not None
            self._error(404 if known else 401, "RepoNotFound" if known else None, "Repository not found")
            return None
        commit = repository.head if revision in (None, "main") else str(revision)
        if commit not in repository.commits:
            self._error(404, "RevisionNotFound", f"Invalid rev id: {revision}")
            return None
        return repository, commit

    def _facts(
        self,
        kinds: str,
        name: str,
        what: str | None,
        revision: str | None,
        below: str | None,
        query: dict[str, list[str]],
        body: bytes,
    ) -> None:
        found = self._at(kinds.removesuffix("s"), name, revision)
        if found is None:
            return
        repository, commit = found
        files = repository.commits[commit]
        if what == "tree":
            inside = {f: c for f, c in files.items() if f.startswith(f"{below}/" if below else "")}
            return self._json([_entry(f, c) for f, c in sorted(inside.items())])
        if what == "paths-info":
            asked = urllib.parse.parse_qs(body.decode())["paths"]
            return self._json([_entry(f, files[f]) for f in asked if f in files])
        self._json(
            {
                "id": name,
                "sha": commit,
                "private": False,
                "gated": "manual" if repository.gated else False,
                "disabled": False,
                "tags": [],
                "downloads": 0,
                "likes": 0,
                "siblings": [self._sibling(name, f, c, "blobs" in query) for f, c in sorted(files.items())],
            }
        )

    def _sibling(self, name: str, file: str, content: bytes, facts: bool) -> dict[str, Any]:
        if not facts:
            return {"rfilename": file}
        size = self.hub.claimed.get((name, file), len(content))
        sibling: dict[str, Any] = {"rfilename": file, "size": size, "blobId": _blob_id(content)}
        if file.endswith(LARGE):
            sibling |= {"blobId": _pointer_id(content)}
            sibling["lfs"] = {"sha256": _sha256(content), "size": size, "pointerSize": 134}
        return sibling

    def _content(self, kind: str, name: str, revision: str, file: str) -> None:
        found = self._at(kind, name, revision)
        if found is None:
            return
        repository, commit = found
        if repository.gated and name not in self.hub.granted.get(self._token() or "", ()):
            status = 403 if self._token() else 401
            message = f"Access to {kind} {name} is restricted and you are not in the authorized list."
            return self._error(status, "GatedRepo", message)
        content = repository.commits[commit].get(file)
        if content is None:
            return self._error(404, "EntryNotFound", "Entry not found", {"X-Repo-Commit": commit})
        headers = {"X-Repo-Commit": commit, "Accept-Ranges": "bytes"}
        if not file.endswith(LARGE):
            return self._bytes(name, file, content, {**headers, "ETag": f'"{_blob_id(content)}"'})
        where = urllib.parse.quote(f"{kind}/{name}/{commit}/{file}", safe="")
        location = f"http://localhost:{self.hub.port}/cdn/{where}?Signature=secret"
        linked = {"X-Linked-Etag": f'"{_sha256(content)}"', "X-Linked-Size": str(len(content)), "Location": location}
        self._send(302, b"", {**headers, **linked})

    def _large(self, path: str) -> None:
        """The host that large files are redirected to: it knows signed addresses, not tokens."""
        kind, owner, name, commit, file = path.removeprefix("/cdn/").split("/", 4)
        content = self.hub.repositories[kind, f"{owner}/{name}"].commits[commit][file]
        self._bytes(f"{owner}/{name}", file, content, {"ETag": f'"{_sha256(content)}"', "Accept-Ranges": "bytes"})

    def _bytes(self, name: str, file: str, content: bytes, headers: dict[str, str]) -> None:
        fault = self.hub.next_fault(name, file) if self.command == "GET" else None
        if isinstance(fault, Status):
            return self._error(fault.code, None, "as asked by the test")
        if isinstance(fault, Wrong):
            content = fault.content
        start = 0
        asked = re.fullmatch(r"bytes=(\d+)-", self.headers.get("Range") or "")
        if asked and not isinstance(fault, IgnoreRange):
            start = int(asked[1])
            if start >= len(content):
                return self._send(416, b"", {"Content-Range": f"bytes */{len(content)}"})
            headers = {**headers, "Content-Range": f"bytes {start}-{len(content) - 1}/{len(content)}"}
        self._send(206 if start else 200, content[start:], headers, fault)

    def _json(self, value: Any) -> None:
        self._send(200, json.dumps(value).encode(), {"Content-Type": "application/json"})

    def _error(self, status: int, code: str | None, message: str, headers: Mapping[str, str] | None = None) -> None:
        told = {"X-Error-Message": message, **({"X-Error-Code": code} if code else {}), **(headers or {})}
        self._send(status, json.dumps({"error": message}).encode(), {"Content-Type": "application/json", **told})

    def _send(self, status: int, body: bytes, headers: Mapping[str, str], fault: Fault | None = None) -> None:
        self.send_response(status)
        for name, value in {**headers, "Content-Length": str(len(body))}.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command == "HEAD":
            return
        try:
            self._write(body, fault)
        except (BrokenPipeError, ConnectionResetError):  # the client was killed
            self.close_connection = True

    def _write(self, body: bytes, fault: Fault | None) -> None:
        if isinstance(fault, Cut):
            self.wfile.write(body[: fault.after])
            self.close_connection = True
        elif isinstance(fault, Stall):
            self.wfile.write(body[: fault.after])
            self.wfile.flush()
            fault.reached.set()
            fault.go.wait(60)
            self.wfile.write(body[fault.after :])
        elif isinstance(fault, Slow):
            step = max(1, len(body) // fault.pieces)
            for start in range(0, len(body), step):
                self.wfile.write(body[start : start + step])
                self.wfile.flush()
                time.sleep(fault.pause)
        else:
            self.wfile.write(body)


def _sha256(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def _blob_id(content: bytes) -> str:
    """What git calls a small file."""
    return hashlib.sha1(b"blob %d\0" % len(content) + content).hexdigest()


def _pointer_id(content: bytes) -> str:
    """What git calls a large file: the id of its pointer."""
    pointer = f"version https://git-lfs.github.com/spec/v1\noid sha256:{_sha256(content)}\nsize {len(content)}\n"
    return _blob_id(pointer.encode())


def _entry(file: str, content: bytes) -> dict[str, Any]:
    entry: dict[str, Any] = {"type": "file", "path": file, "size": len(content), "oid": _blob_id(content)}
    if file.endswith(LARGE):
        entry |= {"oid": _pointer_id(content)}
        entry["lfs"] = {"oid": _sha256(content), "size": len(content), "pointerSize": 134}
    return entry
