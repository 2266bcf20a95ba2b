"""The hub through its own client: what it states of a commit, and a file's bytes. The only importer of huggingface_hub.

Bytes are fetched over HTTP into a partial file of ours, which a later run takes up where a killed one stopped: current
releases of the client start a cut-off download again from nothing. Redirects never carry the token to another host.
"""

from __future__ import annotations

import io
import os
import re
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from croma_bundle.errors import EnvironmentFault
from croma_bundle.weights.refusals import refusal, token_fault, transient
from croma_bundle.weights.wanted import HubCommit

if TYPE_CHECKING:
    from huggingface_hub import HfApi

SPARE = 64 << 20
"""Bytes that stay free beside what is fetched."""
T = TypeVar("T")
ATTEMPTS = 3
TIMEOUT = 20.0
"""Seconds to wait for the hub's facts."""
ONE_LINE = re.compile(r"[\x21-\x7e]+")
"""What can stand in a header; anything else would be quoted, token and all, in an error of the HTTP library."""


@dataclass(frozen=True)
class Stated:
    """What the hub says of a file at a commit. `sha256` is null for small files, whose `blob` is git's id of them."""

    name: str
    bytes: int
    blob: str
    sha256: str | None

    @property
    def etag(self) -> str:
        """What the hub's client calls the file's content in a cache."""
        return self.sha256 or self.blob


@dataclass(frozen=True)
class Hub:
    """A connection: the client, and the caller's token, which is never shown."""

    api: HfApi
    token: str | None
    known: dict[HubCommit, Mapping[str, Stated]] = field(default_factory=dict)

    def stated(self, commit: HubCommit) -> Mapping[str, Stated]:
        """Every file of the commit; asked once."""
        if commit in self.known:
            return self.known[commit]
        ask = self.api.model_info if commit.kind == "model" else self.api.dataset_info
        told = self._ask(
            commit, lambda: ask(commit.repository, revision=commit.revision, files_metadata=True, timeout=TIMEOUT)
        )
        self.known[commit] = {
            file.rfilename: Stated(
                file.rfilename, file.size or 0, file.blob_id or "", file.lfs.sha256 if file.lfs else None
            )
            for file in told.siblings or ()
        }
        return self.known[commit]

    def head(self, repository: str) -> str:
        """The newest commit of a repository."""
        asked = HubCommit(repository, "main")
        return str(self._ask(asked, lambda: self.api.model_info(repository, timeout=TIMEOUT)).sha)

    def read(self, commit: HubCommit, stated: Stated) -> bytes:
        """A small file's content."""
        content = io.BytesIO()
        self._ask(commit, lambda: self._get(commit, stated, content, 0))
        return content.getvalue()

    def download(self, commit: HubCommit, stated: Stated, partial: Path, arrived: Callable[[int], None]) -> None:
        """Fetch a file into `partial`, after what is there already; `arrived` hears how many bytes there are."""
        partial.parent.mkdir(parents=True, exist_ok=True)
        if partial.exists() and partial.stat().st_size > stated.bytes:
            partial.unlink()

        def fetch() -> None:
            with _Counted(io.FileIO(partial, "a"), arrived) as handle:
                self._get(commit, stated, handle, partial.stat().st_size)

        self._ask(commit, fetch, stated.name)

    def _get(self, commit: HubCommit, stated: Stated, into: io.BufferedIOBase, have: int) -> None:
        from huggingface_hub import hf_hub_url
        from huggingface_hub.file_download import http_get
        from huggingface_hub.utils import build_hf_headers  # type: ignore[attr-defined]

        http_get(
            hf_hub_url(commit.repository, stated.name, revision=commit.revision, repo_type=commit.kind),
            into,  # type: ignore[arg-type]
            resume_size=have,
            headers={**build_hf_headers(token=self.token or False), "Accept-Encoding": "identity"},
            expected_size=stated.bytes,
        )

    def _ask(self, commit: HubCommit, ask: Callable[[], T], name: str | None = None) -> T:
        """What `ask` returns, tried again where the fault may pass; any other fault as one of ours."""
        for attempt in range(1, ATTEMPTS + 1):
            try:
                return ask()
            except Exception as error:
                told = refusal(error, commit, name, self.token)
                if told is None:
                    raise
                if attempt == ATTEMPTS or not transient(error):
                    raise told from None
                time.sleep(attempt)
        raise AssertionError("unreachable")


class _Counted(io.BufferedWriter):
    """A file that says how long it is whenever it grows."""

    def __init__(self, raw: io.FileIO, arrived: Callable[[int], None]) -> None:
        super().__init__(raw)
        self._arrived = arrived

    def write(self, chunk: object) -> int:
        count = super().write(chunk)  # type: ignore[arg-type]
        self._arrived(self.tell())
        return count


def connect() -> Hub:
    """The hub's client with the caller's token: HF_TOKEN, or the hub's token file.

    Raises:
        EnvironmentFault: the client is not installed, or the token can be none.
    """
    os.environ["HF_HUB_DISABLE_TELEMETRY"] = (
        "1"  # read at import; without it the client asks and tells more than it must
    )
    try:
        import huggingface_hub
        from huggingface_hub.utils import disable_progress_bars  # type: ignore[attr-defined]
    except ImportError:
        raise EnvironmentFault(
            "weights",
            "huggingface_hub is not installed here",
            wanted="the image `tiles` or its venv",
            then="make weights FAMILY=…",
        ) from None
    disable_progress_bars()
    try:
        token = huggingface_hub.get_token()
    except (OSError, UnicodeDecodeError) as error:
        raise token_fault(f"its file cannot be read ({type(error).__name__})") from None
    if token is not None and not ONE_LINE.fullmatch(token):
        raise token_fault("it is not one line of plain characters")
    return Hub(huggingface_hub.HfApi(token=token or False), token)
