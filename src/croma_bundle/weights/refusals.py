"""What the hub's refusals mean to the reader: no token, bad token, no access, offline, no such commit or file."""

from __future__ import annotations

import errno
import os
import re

from croma_bundle.errors import BundleError, EnvironmentFault, InputError, ManifestError
from croma_bundle.weights.wanted import HubCommit

HTTP_LIBRARIES = {"httpx", "httpx2", "httpcore", "httpcore2", "requests", "urllib3"}
PASSING = {408, 429, 500, 502, 503, 504}
"""HTTP statuses that may be others a moment later."""
TOKEN = "HF_TOKEN, or the hub's token file (HF_TOKEN_PATH, else ~/.cache/huggingface/token)"  # noqa: S105
LOGIN = "Make a token that may read on the hub, then: HF_TOKEN=… make weights FAMILY=…, or `hf auth login` once."


class HubUnreachable(EnvironmentFault):
    """Nothing can be fetched for any encoder."""


def token_fault(found: str) -> EnvironmentFault:
    return EnvironmentFault("the hub's token", "it cannot be used", wanted=TOKEN, found=found, then=LOGIN)


def refusal(error: Exception, commit: HubCommit, name: str | None, token: str | None) -> BundleError | None:
    """The fault to tell, or None where the error is not the hub's or the network's."""
    from huggingface_hub import errors as hub

    subject = commit.repository if name is None else f"{commit.repository}, {name}"
    status = _status(error)
    if isinstance(error, hub.OfflineModeIsEnabled):
        return HubUnreachable(
            "the hub", "offline mode is on", found="HF_HUB_OFFLINE or TRANSFORMERS_OFFLINE in the environment"
        )
    if isinstance(error, hub.HFValidationError):
        return ManifestError(f"repository {commit.repository!r}", "this cannot be one", wanted="owner/name on the hub")
    if isinstance(error, hub.GatedRepoError):
        return _gated(commit, token)
    if isinstance(error, hub.RevisionNotFoundError):
        return InputError(subject, f"the hub has no commit {commit.revision} of it", then=commit.listing)
    if isinstance(error, hub.EntryNotFoundError):
        return InputError(subject, f"there is no such file at commit {commit.revision}")
    if isinstance(error, hub.RepositoryNotFoundError) or (status == 401 and token is None):
        return _no_repository(commit, token)
    if status == 401:
        return token_fault(f"the hub refuses it (HTTP 401, {commit.repository}): expired, revoked or mistyped")
    if status == 403:
        return _gated(commit, token)
    if isinstance(error, OSError) and error.errno == errno.ENOSPC:
        return EnvironmentFault(subject, "the disk is full", then="Free some, or name another folder: CROMA_WEIGHTS")
    if status is not None:
        return EnvironmentFault(subject, f"the hub answers HTTP {status}", then="Try again later.")
    if isinstance(error, OSError) and error.errno is not None and not isinstance(error, ConnectionError):
        return None
    if isinstance(error, OSError) or type(error).__module__.partition(".")[0] in HTTP_LIBRARIES:
        return HubUnreachable(
            "the hub",
            "it cannot be reached",
            wanted=f"a connection to {_endpoint()}",
            found=f"{type(error).__name__}: {_discreet(str(error), token)}",
            then="Check network, proxy (HTTPS_PROXY) and certificates (docs/hospital-it.md), then run it again.",
        )
    return None


def transient(error: Exception) -> bool:
    """Whether trying again may help: a busy hub, a connection that broke. Not a host that cannot be found."""
    status = _status(error)
    names = {kind.__name__ for kind in type(error).__mro__}
    if status is not None:
        return status in PASSING
    broken = {"RemoteProtocolError", "ChunkedEncodingError", "ReadError", "ReadTimeout", "TimeoutException"}
    return bool(names & broken) or type(error) is OSError


def _gated(commit: HubCommit, token: str | None) -> EnvironmentFault:
    page = f"{_endpoint()}/{commit.page}"
    found = "no token" if token is None else "a token whose account has not been granted access"
    return EnvironmentFault(
        commit.repository,
        "access to it is granted by its owners",
        wanted=f"the licence accepted at {page}, and {TOKEN}",
        found=found,
        then=LOGIN
        if token is None
        else f"Accept the licence at {page} with the token's account; some owners take days.",
    )


def _no_repository(commit: HubCommit, token: str | None) -> BundleError:
    found = (
        "no token; the hub says the same of private repositories"
        if token is None
        else "the token given does not show it"
    )
    return InputError(
        commit.repository,
        "the hub has no such repository, or does not show it",
        found=found,
        then=commit.listing,
    )


def _status(error: Exception) -> int | None:
    response = getattr(error, "response", None)
    return None if response is None else int(response.status_code)


def _endpoint() -> str:
    from huggingface_hub import constants

    return constants.ENDPOINT


def _discreet(text: str, token: str | None) -> str:
    """One line without the token and without the signatures of addresses."""
    line = re.sub(r"\?\S+", "?…", " ".join(text.split()))
    for secret in filter(None, (token, os.environ.get("HF_TOKEN", "").strip())):
        line = line.replace(secret, "…")
    return line[:300]


def not_what_was_pinned(subject: str, wanted: str, found: str, source: object) -> InputError:
    """A download of another hash than the pinned one, already removed; `wanted` says the hash and who stated it."""
    return InputError(
        subject,
        "what was downloaded is not what was pinned; it was removed",
        wanted=wanted,
        found=f"sha256 {found} (from {source})",
        then="Run it again; if it stays so, something on the way changes files.",
    )
