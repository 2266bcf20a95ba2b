"""Surveys kept by the hash of what they were made of, so that adding one encoder computes one encoder.

`metrics/.surveys/<tileset>/<Encoder>/<matrix>.<key>.npz`; the key covers the matrix, the evaluated rows, every k, and
the version of the survey. A file that cannot be read is computed again; nothing but time depends on the folder.
"""

from __future__ import annotations

import hashlib
import io
import json
import zipfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from croma_bundle.durable import remove, write_bytes
from croma_bundle.layout import Volume
from croma_bundle.metrics.cohort import Cohort
from croma_bundle.metrics.survey import M_MAX, SURVEY_VERSION, Survey, pack, unpack
from croma_bundle.scoring.roster import Member


@dataclass(frozen=True)
class SurveyCache:
    """The kept surveys of one view (its rows and confounder) of a tileset."""

    volume: Volume
    tileset: str
    view_sha256: str

    def load(self, member: Member, cohort: Cohort, ks: Sequence[int], pinned: Sequence[int]) -> Survey | None:
        """The kept survey of this very input, or None."""
        try:
            with np.load(self._path(member, ks, pinned), allow_pickle=False) as arrays:
                return unpack(cohort, dict(arrays))  # reading every member checks its CRC
        except (OSError, EOFError, ValueError, KeyError, zipfile.BadZipFile):
            return None

    def store(self, member: Member, survey: Survey, ks: Sequence[int], pinned: Sequence[int]) -> None:
        """Keep a survey; those of earlier matrices of this encoder go."""
        path = self._path(member, ks, pinned)
        buffer = io.BytesIO()
        np.savez(buffer, **pack(survey))  # type: ignore[arg-type]
        write_bytes(path, buffer.getvalue())
        for other in path.parent.glob("*.npz"):
            if not other.name.startswith(_short(member)):
                remove(other)

    def _path(self, member: Member, ks: Sequence[int], pinned: Sequence[int]) -> Path:
        matrix = member.sidecar["matrix_sha256"]
        parts = [SURVEY_VERSION, matrix, self.view_sha256, list(ks), list(pinned), M_MAX]
        key = hashlib.sha256(json.dumps(parts).encode()).hexdigest()[:16]
        return self.volume.surveys(self.tileset, member.name) / f"{_short(member)}.{key}.npz"


def _short(member: Member) -> str:
    return str(member.sidecar["matrix_sha256"])[:16]
