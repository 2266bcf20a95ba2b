"""The forward pass on the CPU: pooling, precision, mode, flags; and with the loop, the same bytes whatever the workers.

What only CUDA does (pinned memory, streams, float16) is tested where there is CUDA.
"""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="the families' suite needs torch")
pytest.importorskip("torchvision", reason="the families' suite needs torchvision")

from torch import nn  # noqa: E402

from croma_bundle.artifacts.environment import capture  # noqa: E402
from croma_bundle.durable import sha256_file  # noqa: E402
from croma_bundle.encoders.forward import TorchForward, set_arithmetic  # noqa: E402
from croma_bundle.encoders.loading import Opened  # noqa: E402
from croma_bundle.encoders.recipes import prepare  # noqa: E402
from croma_bundle.errors import DeviceMemory, EnvironmentFault, ManifestError  # noqa: E402
from croma_bundle.extraction.embed import embed  # noqa: E402
from croma_bundle.layout import Volume  # noqa: E402
from croma_bundle.manifests.models import Recipe, Tokens  # noqa: E402
from embedded import Recorder, add_cohort, entry_of, tiles_of  # noqa: E402

pytestmark = pytest.mark.encoders
cuda = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")

RECIPE = Recipe(size=16, edge="squash", interpolation="bicubic", via="pil", mean=(0.5, 0.4, 0.3), std=(0.2, 0.3, 0.4))
ENTRY = entry_of("Tiny", width=6, batch_size=4, pooling="cls+mean", tokens=Tokens(cls=1, registers=1, patches=3))


class Tiny(nn.Module):
    """A token per row of the image, and dropout, which must do nothing."""

    def __init__(self) -> None:
        super().__init__()
        self.rows = nn.Linear(3 * 16, 3)
        self.dropout = nn.Dropout(0.5)
        self.seen: list[Any] = []

    def forward(self, tiles: Any) -> Any:
        self.seen.append((tiles.dtype, torch.is_inference_mode_enabled(), torch.is_autocast_enabled(tiles.device.type)))
        rows = tiles.permute(0, 2, 1, 3).flatten(2)[:, :5]  # (B, 5, 48)
        return self.dropout(self.rows(rows))


@pytest.fixture
def network() -> Tiny:
    torch.manual_seed(3)
    return Tiny().eval()


def call(module: nn.Module, tiles: Any) -> Any:
    return module(tiles)


def some_tiles(count: int) -> np.ndarray:
    return np.random.default_rng(1).standard_normal((count, 3, 16, 16), dtype=np.float32)


def expected(network: Tiny, tiles: np.ndarray) -> np.ndarray:
    """In float64 by numpy: the class token beside the mean of the last three."""
    weight, bias = (p.detach().cpu().numpy().astype(np.float64) for p in (network.rows.weight, network.rows.bias))
    tokens = tiles.astype(np.float64).transpose(0, 2, 1, 3).reshape(len(tiles), 16, 48)[:, :5] @ weight.T + bias
    return np.concatenate([tokens[:, 0], tokens[:, 2:].mean(1)], axis=1)


@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=cuda)])
def test_a_batch_becomes_pooled_float32_vectors(network: Tiny, device: str):
    tiles = some_tiles(5)
    wanted = expected(network, tiles)
    vectors = TorchForward(network, call, ENTRY, device)(tiles)
    assert (type(vectors), vectors.dtype, vectors.shape) == (np.ndarray, np.float32, (5, 6))
    assert vectors == pytest.approx(wanted, abs=1e-5)
    assert network.seen == [(torch.float32, True, False)]


@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=cuda)])
def test_a_batch_that_was_begun_does_not_see_what_is_written_over_it(network: Tiny, device: str):
    """The loop's memory is used again while the device computes."""
    forward = TorchForward(network, call, ENTRY, device)
    tiles = some_tiles(4)
    wanted = expected(network, tiles)
    wait = forward.begin(tiles)
    tiles[:] = np.nan
    assert wait() == pytest.approx(wanted, abs=1e-5)


def test_half_precision_is_for_cuda_alone(network: Tiny):
    half = ENTRY.model_copy(update={"precision": "mixed-float16"})
    tiles = some_tiles(4)
    whole = TorchForward(network, call, ENTRY, "cpu")(tiles)
    assert np.array_equal(TorchForward(network, call, half, "cpu")(tiles), whole)


@cuda
def test_half_precision_computes_in_float16_on_cuda(network: Tiny):
    half = ENTRY.model_copy(update={"precision": "mixed-float16"})
    tiles = some_tiles(4)
    vectors = TorchForward(network, call, half, "cuda")(tiles)
    assert network.seen == [(torch.float32, True, True)]
    assert vectors.dtype == np.float32
    error = np.abs(vectors - expected(network, tiles)).max()
    assert 1e-6 < error < 1e-2


def test_a_network_in_training_mode_is_refused(network: Tiny):
    network.dropout.train()
    with pytest.raises(EnvironmentFault, match=r"encoder Tiny: it is in training mode(.|\n)*found +dropout"):
        TorchForward(network, call, ENTRY, "cpu")


def test_other_tokens_than_declared_are_refused(network: Tiny):
    other = ENTRY.model_copy(update={"tokens": Tokens(cls=1, registers=0, patches=3)})
    with pytest.raises(ManifestError, match="tokens"):
        TorchForward(network, call, other, "cpu")(some_tiles(2))


def test_a_device_without_room_is_one_paragraph_with_the_remedy(network: Tiny):
    def out_of_memory(module: nn.Module, tiles: Any) -> Any:
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 GiB")

    with pytest.raises(DeviceMemory) as refused:
        TorchForward(network, out_of_memory, ENTRY, "cpu")(some_tiles(4))
    assert refused.value.exit_code == 4
    text = refused.value.paragraph()
    assert "encoder Tiny: cpu has no memory left for 4 tiles at once" in text
    assert "make embed FAMILY=toys ENCODERS=Tiny BATCH=2 FORCE=1" in text
    assert "BATCH=auto" in text


def test_a_device_that_fails_is_no_traceback_and_another_error_is_not_taken_for_it(network: Tiny):
    def failing(said: str) -> TorchForward:
        def forward(module: nn.Module, tiles: Any) -> Any:
            raise RuntimeError(said)

        return TorchForward(network, forward, ENTRY, "cpu")

    with pytest.raises(EnvironmentFault, match=r"failed while it computed(.|\n)*found +CUDA error: unspec") as refused:
        failing("CUDA error: unspecified launch failure\nCompile with TORCH_USE_CUDA_DSA")(some_tiles(1))
    assert "DSA" not in refused.value.paragraph()
    with pytest.raises(RuntimeError, match="mat1 and mat2"):
        failing("mat1 and mat2 shapes cannot be multiplied")(some_tiles(1))


def test_the_arithmetic_is_set_whatever_it_was_and_recorded():
    torch.backends.cuda.matmul.allow_tf32 = True
    torch.backends.cudnn.allow_tf32 = False
    torch.backends.cudnn.benchmark = True
    torch.backends.cuda.enable_flash_sdp(False)
    set_arithmetic()
    recorded = capture("cpu")["torch"]
    assert recorded["version"] == torch.__version__
    assert (recorded["tf32_matmul"], recorded["tf32_convolution"]) == (False, True)
    assert recorded["float32_matmul_precision"] == "highest"
    assert (recorded["cudnn_benchmark"], recorded["cudnn_deterministic"]) == (False, True)
    assert recorded["attention_kernels"] == ["flash", "mem_efficient", "cudnn", "math"]
    assert recorded["threads"] == torch.get_num_threads()
    assert recorded["gpu"] is None
    assert capture("cpu")["packages"]["torch"] == torch.__version__.partition("+")[0]


def test_any_number_of_workers_gives_the_same_bytes(network: Tiny, volume: Volume, tmp_path: Path):
    add_cohort(volume, tmp_path / "tiles", size=20, slides=3, tiles=3)  # 36 tiles
    opened = Opened(partial(prepare, RECIPE), {}, lambda device: TorchForward(network, call, ENTRY, device))
    digests = set()
    for workers in (0, 1, 2):
        options = {"device": "cpu", "workers": workers, "force": True, "reporter": Recorder()}
        _, sidecar = embed(tiles_of(volume), ENTRY, opener=lambda entry, weights: opened, **options)
        digests.add(sha256_file(volume.matrix("cohort", "Tiny")))
        assert sidecar["environment"]["torch"]["threads"] == torch.get_num_threads()
    assert len(digests) == 1
