"""Which encoders a command is about."""

from __future__ import annotations

from collections.abc import Sequence

from croma_bundle.errors import BundleError, InputError, UsageError, raise_all
from croma_bundle.manifests.catalogue import Catalogue
from croma_bundle.manifests.models import Encoder


def choose_encoders(
    catalogue: Catalogue, command: str, family: str | None, names: Sequence[str] | None
) -> list[Encoder]:
    """The encoders asked for; raises for what does not exist or is of another family."""
    if family is None and names is None:
        wanted = "--family NAME, or --encoders A,B"
        raise UsageError(command, "which encoders?", wanted=wanted, then="croma-bundle list encoders")
    if names is None:
        return catalogue.family(str(family))
    if family is not None:
        catalogue.family(family)
    chosen, faults = list[Encoder](), list[BundleError]()
    for name in names:
        try:
            entry = catalogue.encoder(name)
        except BundleError as fault:
            faults.append(fault)
            continue
        chosen.append(entry)
        if family not in (None, entry.family):
            then = f"make {command} FAMILY={entry.family} ENCODERS={entry.name} …"
            problem = f"it is of the family {entry.family}, not {family}"
            faults.append(InputError(f"encoder {entry.name}", problem, then=then))
    raise_all(faults)
    return chosen
