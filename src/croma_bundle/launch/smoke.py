"""Launching `smoke`: weights that are missing are fetched, then the family's image runs its encoders, offline."""

from __future__ import annotations

from collections.abc import Sequence

from croma_bundle.launch.run import Launcher, device_for, run_with_weights
from croma_bundle.launch.steps import Step, smoke_service
from croma_bundle.manifests.catalogue import Catalogue
from croma_bundle.manifests.choice import choose_encoders


def launch_smoke(
    launch: Launcher, catalogue: Catalogue, family: str, encoders: Sequence[str] | None, device: str
) -> int:
    """The worst exit code. Weights that could not be fetched stop only their own encoders."""
    chosen = choose_encoders(catalogue, "smoke", family, encoders)
    service = smoke_service(family)
    device, on_gpu = device_for(launch, Step(service), device, chosen)
    names = ("--encoders", ",".join(encoders)) if encoders else ()
    computing = Step(service, ("--device", device, *names), on_gpu=on_gpu)
    return run_with_weights(launch, family, chosen, names, (), computing)
