"""The forward pass of a torch network: a batch of prepared tiles in, one float32 vector per tile out."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from croma_bundle.encoders.poolings import pool
from croma_bundle.errors import DeviceMemory, EnvironmentFault
from croma_bundle.manifests.models import Encoder

Floats = npt.NDArray[np.float32]
Forward = Callable[[nn.Module, Tensor], Tensor]


class TorchForward:
    """A network on a device. Called with a batch it gives the vectors; `begin` lets something else be done meanwhile.

    Of a batch on CUDA everything is enqueued: pinned memory, the copy in on a stream of its own, the network, the copy
    out. float16 is computed in on CUDA alone, where the entry says so. `on_cpu` tells the loop that the network
    computes on the cores that its workers use.

    Raises:
        EnvironmentFault: a part of the network is in training mode. DeviceMemory: its weights do not fit.
    """

    def __init__(self, module: nn.Module, forward: Forward, entry: Encoder, device: str) -> None:
        _require_evaluation(module, entry)
        set_arithmetic()
        self.device, self.forward, self.entry = torch.device(device), forward, entry
        self.on_cuda = self.device.type == "cuda"
        self.on_cpu = self.device.type == "cpu"
        if self.device.index is not None:
            torch.cuda.set_device(self.device)
        with self._faults("its weights"):
            self.module = module.to(self.device)
        self.copying_in = torch.cuda.Stream(self.device) if self.on_cuda else None

    def __call__(self, batch: npt.NDArray[np.float32]) -> Floats:
        """Prepared tiles (B, 3, side, side) → (B, width)."""
        return self.begin(batch)()

    def begin(self, batch: npt.NDArray[np.float32]) -> Callable[[], Floats]:
        """Start on a batch; the returned call waits for its vectors.

        Raises:
            DeviceMemory: the device has no room for a batch of this size. EnvironmentFault: the device failed.
        """
        with self._faults(f"{len(batch)} tiles at once", max(1, len(batch) // 2)):
            return self._enqueued(batch) if self.on_cuda else self._computed(batch)

    def _computed(self, batch: npt.NDArray[np.float32]) -> Callable[[], Floats]:
        vectors: Floats = self._vectors(_host(batch, pinned=False)).numpy()
        return lambda: vectors

    def _enqueued(self, batch: npt.NDArray[np.float32]) -> Callable[[], Floats]:
        with torch.cuda.stream(self.copying_in):
            tiles = _host(batch, pinned=True).to(self.device, non_blocking=True)
        computing = torch.cuda.current_stream(self.device)
        computing.wait_stream(self.copying_in)
        tiles.record_stream(computing)
        vectors = self._vectors(tiles)
        out = torch.empty(vectors.shape, dtype=vectors.dtype, pin_memory=True)
        out.copy_(vectors, non_blocking=True)
        done = torch.cuda.Event()
        done.record(computing)

        def wait() -> Floats:
            with self._faults(f"{len(batch)} tiles at once"):
                done.synchronize()
            ready: Floats = out.numpy()
            return ready

        return wait

    def _vectors(self, tiles: Tensor) -> Tensor:
        half = self.entry.precision_on(self.device.type) == "mixed-float16"
        with torch.inference_mode(), torch.autocast(self.device.type, torch.float16, enabled=half):
            return pool(self.entry, self.forward(self.module, tiles)).float()

    @contextmanager
    def _faults(self, what: str, smaller: int | None = None) -> Iterator[None]:
        """Tell what the device could not hold, or that it failed; `smaller` is a batch size to try."""
        subject = f"encoder {self.entry.name}"
        command = f"make embed FAMILY={self.entry.family} ENCODERS={self.entry.name}"
        try:
            yield
        except torch.OutOfMemoryError:
            raise DeviceMemory(
                subject,
                f"{self.device} has no memory left for {what}",
                wanted="a device that nobody else computes on, or a smaller batch (BATCH=auto finds one)",
                detail="The batch size is part of what a matrix is; FORCE=1 replaces one that was made with another.",
                then=f"{command} BATCH={smaller} FORCE=1" if smaller else None,
            ) from None
        except RuntimeError as error:
            if "CUDA error" not in str(error):
                raise
            raise EnvironmentFault(
                subject,
                f"{self.device} failed while it computed",
                found=str(error).splitlines()[0],
                detail="What was stored is whole; the same command goes on from there.",
                then="croma-bundle doctor",
            ) from None


def set_arithmetic() -> None:
    """Say explicitly how torch computes: as in the published runs, which left its defaults alone, and repeatably.

    TF32 in cuDNN's convolutions, not in matrix products; every kind of attention kernel; no search for fast algorithms.
    """
    torch.set_float32_matmul_precision("highest")
    torch.backends.cuda.matmul.allow_tf32 = False
    torch.backends.cudnn.allow_tf32 = True
    torch.backends.cudnn.benchmark = False
    torch.backends.cudnn.deterministic = True
    for enable in ATTENTION_KERNELS:
        enable(True)
    torch.set_num_threads(torch.get_num_threads())  # else MKL reads them later, when workers' settings may stand


ATTENTION_KERNELS = (
    torch.backends.cuda.enable_flash_sdp,
    torch.backends.cuda.enable_mem_efficient_sdp,
    torch.backends.cuda.enable_cudnn_sdp,
    torch.backends.cuda.enable_math_sdp,
)


def _host(batch: npt.NDArray[np.float32], *, pinned: bool) -> Tensor:
    """A copy as torch lays memory out: aligned alike whoever made the batch, so that the same kernels run."""
    room = torch.empty(batch.shape, dtype=torch.float32, pin_memory=pinned)
    return room.copy_(torch.from_numpy(batch))


def _require_evaluation(module: nn.Module, entry: Encoder) -> None:
    training = [name or "the network" for name, part in module.named_modules() if part.training]
    if training:
        raise EnvironmentFault(
            f"encoder {entry.name}",
            "it is in training mode, in which dropout and normalisation change the vectors",
            wanted="every part in evaluation mode",
            found=f"{training[0]} and {len(training) - 1} others" if training[1:] else training[0],
        )
