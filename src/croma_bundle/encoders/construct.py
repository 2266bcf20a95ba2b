"""`construct`: every architecture of a family at full size, with random weights, from a tile to a saved vector.

It shows that an image can compute its encoders, without a network, weights or licences.
"""

from __future__ import annotations

import gc
import math
import resource
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from croma_bundle import __version__
from croma_bundle.errors import BundleError, EnvironmentFault, InputError, VerdictFailed, raise_all
from croma_bundle.manifests.models import Encoder
from croma_bundle.progress import Reporter

if TYPE_CHECKING:
    from torch import nn

TILE_SIDE = 256
SEED = 0
BLOCK = 1_000_003
"""Random numbers that are drawn once and repeated; prime, so that no two rows of a weight are equal."""


@dataclass(frozen=True)
class Constructed:
    """One architecture that computed. `tokens` is null where the network returns vectors."""

    parameters: int
    tokens: int | None
    stand_in: str | None


def construct_all(entries: Sequence[Encoder], out: Path | None, reporter: Reporter) -> None:
    """Construct and run each entry's architecture, a line each, and a summary.

    Raises:
        VerdictFailed, SeveralErrors: every encoder that failed, after all others ran.
        EnvironmentFault: there is no torch here. InputError: an encoder without a network.
    """
    _require_networks(entries)
    made, faults = list[Constructed](), list[BundleError]()
    with _folder(out) as folder:
        for entry in entries:
            started = time.monotonic()
            try:
                found = construct(entry, folder)
            except Exception as error:  # whatever a library raises is the verdict on this encoder
                faults.append(_verdict(entry, error))
                reporter.say(f"{entry.name}: failed", "failed", encoder=entry.name)
            else:
                _report(entry, found, time.monotonic() - started, reporter)
                made.append(found)
            gc.collect()
    _summarise(len(entries), made, reporter)
    raise_all(faults)


def construct(entry: Encoder, folder: Path) -> Constructed:
    """One tile through the entry's recipe, architecture and pooling, saved and read again.

    Raises:
        VerdictFailed: the vector is not finite, or not what was saved. ManifestError: other tokens or another width.
    """
    import torch

    from croma_bundle.encoders.architectures import build
    from croma_bundle.encoders.poolings import pool

    with torch.device("meta"):
        architecture = build(entry)
    module = architecture.module.to_empty(device="cpu").eval()
    fill(module)
    with torch.inference_mode():
        output = architecture.forward(module, torch.from_numpy(_input(entry))[None])
        vectors = pool(entry, output).float().numpy()
    _save(entry, vectors, folder / f"{entry.name}.npy")
    parameters = sum(parameter.numel() for parameter in module.parameters())
    return Constructed(parameters, output.shape[1] if output.ndim == 3 else None, architecture.stand_in)


def fill(module: nn.Module) -> None:
    """Seeded values that keep activations of order 1: uniform with variance 1 / inputs; scales 1, biases 0.

    Raises:
        VerdictFailed: a buffer whose value construction on the meta device has lost.
    """
    import torch

    block = torch.empty(BLOCK).uniform_(-1, 1, generator=torch.Generator().manual_seed(SEED))
    for name, parameter in module.named_parameters():
        if parameter.ndim < 2:
            parameter.data.fill_(0.0 if name.endswith("bias") else 1.0)
            continue
        bound = math.sqrt(3 / math.prod(parameter.shape[1:]))
        repeats = -(-parameter.numel() // BLOCK)
        parameter.data.copy_(block.repeat(repeats)[: parameter.numel()].view_as(parameter)).mul_(bound)
    for name, buffer in module.named_buffers():
        if (value := BUFFERS.get(name.rpartition(".")[2])) is None:
            raise VerdictFailed(name, "nobody says how this buffer is filled", wanted=", ".join(BUFFERS))
        buffer.fill_(value)


BUFFERS = {"running_mean": 0, "running_var": 1, "num_batches_tracked": 0}


def _input(entry: Encoder) -> npt.NDArray[np.float32]:
    """A random tile as the recipe makes it; where the recipe is open, random numbers of the architecture's size."""
    random = np.random.default_rng(SEED)
    if entry.recipe is None:
        side = int(entry.arguments["img_size"])
        return random.standard_normal((3, side, side), dtype=np.float32)
    from croma_bundle.encoders.recipes import prepare

    prepared = prepare(entry.recipe, random.integers(0, 256, (TILE_SIDE, TILE_SIDE, 3), dtype=np.uint8))
    if prepared.shape != (3, entry.recipe.side, entry.recipe.side):
        raise VerdictFailed(f"encoder {entry.name}", "its recipe makes another size", found=str(prepared.shape))
    return prepared


def _save(entry: Encoder, vectors: npt.NDArray[np.float32], path: Path) -> None:
    subject = f"encoder {entry.name}"
    if vectors.dtype != np.float32 or not np.isfinite(vectors).all() or not vectors.any():
        raise VerdictFailed(subject, "its vector is not made of finite float32 numbers, or all zero")
    np.save(path, vectors)
    if not np.array_equal(np.load(path), vectors):
        raise VerdictFailed(subject, "its vector is not what was saved", declared=str(path))


def _require_networks(entries: Sequence[Encoder]) -> None:
    raise_all(
        [
            InputError(f"encoder {entry.name}", "it is a descriptor without a network: there is nothing to construct")
            for entry in entries
            if entry.backend == "classical"
        ]
    )
    try:
        import torch  # noqa: F401
        import torchvision  # noqa: F401
    except ImportError as error:
        family = entries[0].family
        image, only = f"croma-bundle/{family}:{__version__}", f"--encoders {','.join(entry.name for entry in entries)}"
        raise EnvironmentFault(
            "construct",
            f"{error.name} is not installed here",
            wanted=f"the image of the family {family}",
            then=f"docker run --rm --network none --entrypoint croma-bundle {image} construct {only}"
            f"   # or: .venv-{family}/bin/python -m croma_bundle construct {only}",
        ) from None


@contextmanager
def _folder(out: Path | None) -> Iterator[Path]:
    if out is not None:
        out.mkdir(parents=True, exist_ok=True)
        yield out
        return
    with tempfile.TemporaryDirectory() as temporary:
        yield Path(temporary)


def _report(entry: Encoder, found: Constructed, seconds: float, reporter: Reporter) -> None:
    tokens = "vectors" if found.tokens is None else f"{found.tokens} tokens"
    facts = [entry.model, f"{found.parameters / 1e6:,.1f} M parameters", tokens, f"width {entry.width:,}"]
    facts += [f"{seconds:.1f} s"]
    facts += [f"stand-in for {found.stand_in}"] if found.stand_in else []
    facts += [] if entry.recipe else ["recipe open: random input"]
    fields: dict[str, Any] = {"model": entry.model, "parameters": found.parameters, "tokens": found.tokens}
    fields |= {"width": entry.width, "seconds": round(seconds, 1), "stand_in": found.stand_in}
    reporter.result(f"{entry.name}: {', '.join(facts)}", "constructed", encoder=entry.name, **fields)


def _summarise(asked: int, made: Sequence[Constructed], reporter: Reporter) -> None:
    stand_ins = sum(1 for found in made if found.stand_in)
    gib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
    facts = [f"{len(made)} of {asked} architectures computed, {stand_ins} of them stand-ins"]
    facts += [f"at most {gib:.1f} GiB of memory"]
    fields: dict[str, Any] = {"computed": len(made), "stand_ins": stand_ins}
    reporter.result("; ".join(facts), "summary", asked=asked, peak_gib=round(gib, 2), **fields)


def _verdict(entry: Encoder, error: Exception) -> VerdictFailed:
    if isinstance(error, BundleError) and hasattr(error, "problem"):
        return VerdictFailed(f"encoder {entry.name}", error.problem, wanted=error.wanted, found=error.found)
    return VerdictFailed(f"encoder {entry.name}", "its architecture failed", found=f"{type(error).__name__}: {error}")
