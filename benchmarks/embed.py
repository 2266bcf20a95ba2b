"""Times the embed loop beside the bare forward pass on prepared tiles, and beside a plain torch DataLoader loop.

    make bench-embed ARGS="--encoder Virchow2 --device cuda"
    python benchmarks/embed.py --tiles 1024 --format jpeg     # in the environment of an encoder family

An encoder of the catalogue with random weights, by default a ViT-S/16; tiles of 256 pixels. Each measurement runs in a
process of its own, the three in turn, `--repeats` times; the best of each counts. Rates are those from the third batch
on, and so is `CPU`, the seconds of all processes per tile, which other work on the machine moves less than time; what
comes before (processes that start, imports, two batches) is told apart. The DataLoader loop is the usual one: Pillow,
torchvision's transforms, `num_workers`, pinned memory on CUDA, nothing hashed, nothing stored before the end.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

WARM = 2
"""Batches before measuring starts: workers that start, and the first batches that they are behind with."""
PARTS = ("forward", "loop", "DataLoader")
SIDE = 256
VIT_S = {
    "name": "ViT-S",
    "family": "bench",
    "backend": "timm",
    "model": "vit_small_patch16_224",
    "width": 384,
    "tokens": {"patches": 196},
    "recipe": {
        **{"size": 224, "edge": "shorter", "interpolation": "bicubic", "via": "pil", "crop": 224},
        **{"mean": (0.5, 0.5, 0.5), "std": (0.5, 0.5, 0.5)},
    },
    "pooling": "cls",
    "batch_size": 64,
    "generation": "bench",
    "control": True,
    "votes": False,
    "licence": "none",
    "citation": "none",
}


def make(folder: Path, count: int, ending: str) -> None:
    """A folder tileset `bench` of smooth colours with grain, about as compressible as tissue."""
    import csv

    import numpy as np
    from PIL import Image

    rng = np.random.default_rng(0)
    rows = []
    for i in range(count):
        colours = Image.fromarray(rng.integers(90, 250, (32, 32, 3), dtype=np.uint8)).resize((SIDE, SIDE), 3)
        grain = np.asarray(colours) + rng.normal(0, 4, (SIDE, SIDE, 1))
        Image.fromarray(grain.clip(0, 255).astype(np.uint8)).save(folder / f"t{i}.{ending}", quality=90)
        rows.append([f"t{i}", f"t{i}.{ending}", ("a", "b")[i % 2], ("x", "y")[i // 2 % 2], f"g{i // 8}"])
    with (folder / "c.csv").open("w", newline="") as handle:
        csv.writer(handle).writerows([["sample_id", "image_path", "label", "medical_center", "group_id"], *rows])
    command = [sys.executable, "-m", "croma_bundle", "--volume", str(folder / "volume"), "tiles", "add", "bench"]
    subprocess.run([*command, "--manifest", str(folder / "c.csv")], check=True, capture_output=True)


class Timed:
    """An encoder that notes when it began first, and how long the device computed."""

    def __init__(self, inner: Any) -> None:
        self.inner, self.batches, self.before, self.start, self.cpu, self.busy = inner, 0, 0, 0.0, 0.0, 0.0
        self.on_cpu = inner.on_cpu
        self.events: list[tuple[Any, Any]] = []

    def __call__(self, batch: Any) -> Any:
        return self.begin(batch)()

    def begin(self, batch: Any) -> Callable[[], Any]:
        import torch

        self.note(len(batch))
        now = time.perf_counter()
        if self.on_cpu:
            wait = self.inner.begin(batch)
            self.busy += time.perf_counter() - now
            return wait
        began, ended = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        began.record()
        wait = self.inner.begin(batch)
        ended.record()
        self.events.append((began, ended))
        return wait

    def note(self, count: int) -> None:
        """A batch begins; what is measured starts with the third."""
        self.batches += 1
        if self.batches <= WARM:
            self.before += count
        if self.batches == WARM + 1:
            self.busy, self.start, self.cpu = 0.0, time.perf_counter(), cpu_seconds()
            self.events.clear()

    def seconds_busy(self) -> float:
        return self.busy or sum(a.elapsed_time(b) for a, b in self.events) / 1e3


def entry_of(asked: argparse.Namespace, volume: Any) -> Any:
    from croma_bundle.manifests.catalogue import load_catalogue
    from croma_bundle.manifests.models import Encoder, Recipe, Tokens

    if asked.encoder:
        entry = load_catalogue(volume).encoder(asked.encoder)
    else:
        entry = Encoder(**{**VIT_S, "recipe": Recipe(**VIT_S["recipe"]), "tokens": Tokens(**VIT_S["tokens"])})
    if entry.recipe is None:
        raise SystemExit(f"{entry.name}: its recipe is open")
    return entry.model_copy(update={"batch_size": asked.batch}) if asked.batch else entry


def network(entry: Any, device: str) -> Timed:
    """The entry's architecture with random weights."""
    import torch
    import torchvision  # noqa: F401 (it cannot be imported first below)

    from croma_bundle.encoders.architectures import build
    from croma_bundle.encoders.construct import fill as fill_randomly
    from croma_bundle.encoders.forward import TorchForward

    with torch.device("meta"):
        architecture = build(entry)
    module = architecture.module.to_empty(device="cpu").eval()
    fill_randomly(module)
    return Timed(TorchForward(module, architecture.forward, entry, device))


def forward(entry: Any, tiles: Any, embed: Timed, workers: int) -> Any:
    """Batches that lie prepared in memory."""
    import numpy as np

    from croma_bundle.encoders.recipes import prepare
    from croma_bundle.extraction.loop import computed
    from croma_bundle.tiles.pixels import decode

    size, count = entry.batch_size, len(tiles.paths)
    batch = np.stack([prepare(entry.recipe, decode(path).rgb) for path in tiles.paths[:size]])
    sizes = [min(size, count - first) for first in range(0, count, size)]
    return np.concatenate([vectors for _, vectors in computed((batch[:n] for n in sizes), embed)])[:size]


def loop(entry: Any, tiles: Any, embed: Timed, workers: int) -> Any:
    import numpy as np

    from croma_bundle.encoders.loading import Loaded
    from croma_bundle.encoders.recipes import prepare
    from croma_bundle.extraction.chunks import ChunkStore, chunk_rows
    from croma_bundle.extraction.loop import fill
    from croma_bundle.progress import Reporter

    with tempfile.TemporaryDirectory(dir=tiles.volume.root) as folder:
        store = ChunkStore("bench", Path(folder), {}, len(tiles.paths), chunk_rows(entry.batch_size))
        store.open()
        loaded = Loaded(partial(prepare, entry.recipe), embed, {})
        fill(store, set(), tiles, entry, loaded, workers, "bench", Reporter(as_json=False))
        return np.concatenate(list(store.blocks()))


def data_loader(entry: Any, tiles: Any, embed: Timed, workers: int) -> Any:
    import numpy as np
    import torch
    from PIL import Image
    from torch.utils.data import DataLoader, Dataset
    from torchvision import transforms

    recipe, mode = entry.recipe, transforms.InterpolationMode(entry.recipe.interpolation)
    size = recipe.size if recipe.edge == "shorter" else (recipe.size, recipe.size)
    steps: list[Any] = [transforms.Resize(size, mode), transforms.CenterCrop(recipe.side)]
    transform = transforms.Compose([*steps, transforms.ToTensor(), transforms.Normalize(recipe.mean, recipe.std)])

    class Tiles(Dataset):  # type: ignore[type-arg]
        def __len__(self) -> int:
            return len(tiles.paths)

        def __getitem__(self, i: int) -> Any:
            with Image.open(tiles.paths[i]) as image:
                return transform(image.convert("RGB"))

    inner, device = embed.inner, embed.inner.device
    loader = DataLoader(Tiles(), entry.batch_size, num_workers=workers, pin_memory=not embed.on_cpu)
    out = []
    with torch.inference_mode():
        for batch in loader:
            embed.note(len(batch))
            began = time.perf_counter()
            out.append(inner._vectors(batch.to(device, non_blocking=True)).cpu())
            embed.busy += time.perf_counter() - began
    return np.concatenate([vectors.numpy() for vectors in out])


def measure(asked: argparse.Namespace) -> None:
    """One part, here: prints what it found as JSON, and keeps its vectors."""
    import numpy as np
    import torch

    from croma_bundle.extraction.run import open_tiles
    from croma_bundle.layout import Volume
    from croma_bundle.manifests.catalogue import load_catalogue

    volume = Volume(asked.folder / "volume")
    entry = entry_of(asked, volume)
    tiles = open_tiles(volume, load_catalogue(volume).tileset("bench"), None)
    embed = network(entry, asked.device)
    embed.inner(np.zeros((entry.batch_size, 3, entry.recipe.side, entry.recipe.side), np.float32))  # warm
    began = time.perf_counter()
    vectors = {"forward": forward, "loop": loop, "DataLoader": data_loader}[asked.part](
        entry, tiles, embed, asked.workers
    )
    ended = time.perf_counter()
    for worker in multiprocessing.active_children():
        worker.join(30)  # its CPU and memory count once it is gone
    np.save(asked.folder / f"{asked.part}.npy", vectors)
    count, seconds = len(tiles.paths) - embed.before, ended - embed.start
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
    found = {"rate": count / seconds, "busy": embed.seconds_busy() / seconds, "before": embed.start - began}
    found |= {"cpu": (cpu_seconds() - embed.cpu) / count, "peak_gib": peak}
    found |= {"worker_gib": resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss / 2**20}
    found |= {"device_gib": 0 if embed.on_cpu else torch.cuda.max_memory_allocated() / 2**30}
    print(json.dumps({**found, "batch": entry.batch_size, "name": entry.name, "threads": torch.get_num_threads()}))


def cpu_seconds() -> float:
    """Of this process, its workers, and those that have ended."""
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    ticks = 0
    for worker in multiprocessing.active_children():
        with suppress(OSError):  # it has just ended
            fields = Path(f"/proc/{worker.pid}/stat").read_text().rpartition(")")[2].split()
            ticks += int(fields[11]) + int(fields[12])
    return sum(u.ru_utime + u.ru_stime for u in used) + ticks / os.sysconf("SC_CLK_TCK")


def compare(asked: argparse.Namespace) -> None:
    import numpy as np

    runs: dict[str, list[dict[str, Any]]] = {part: [] for part in PARTS}
    with tempfile.TemporaryDirectory() as name:
        make(Path(name), asked.tiles, asked.format)
        for repeat in range(asked.repeats):
            for part in PARTS:
                command = [sys.executable, __file__, *sys.argv[1:], "--part", part, "--folder", name]
                done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
                runs[part].append(found := json.loads(done.stdout.splitlines()[-1]))
                print(f"{repeat + 1} {part:<11} {line(found)}", flush=True)
        ours, theirs = (np.load(Path(name) / f"{part}.npy") for part in ("loop", "DataLoader"))
        bare = np.load(Path(name) / "forward.npy")
    best = {part: max(found["rate"] for found in runs[part]) for part in PARTS}
    cpu = {part: min(found["cpu"] for found in runs[part]) for part in PARTS}
    one = runs["loop"][0]
    print(f"{one['name']}, batch {one['batch']}, {asked.tiles} {asked.format} tiles, {asked.device}, best of each:")
    print("tiles/s     ", *(f"{part} {best[part]:.2f}  " for part in PARTS))
    print(f"loop / forward {best['loop'] / best['forward']:.3f}, in CPU {cpu['forward'] / cpu['loop']:.3f}")
    print(f"loop / DataLoader {best['loop'] / best['DataLoader']:.3f}, in CPU {cpu['DataLoader'] / cpu['loop']:.3f}")
    print(f"first batch equal to the bare forward's: {np.array_equal(ours[: len(bare)], bare)}")
    print(f"largest difference from the DataLoader's vectors: {np.abs(ours - theirs).max():.3g}")


def line(found: dict[str, Any]) -> str:
    text = f"{found['rate']:8.2f} tiles/s, device busy {found['busy']:6.1%}, {found['before']:5.1f} s before"
    text += f", CPU {1e3 * found['cpu']:.1f} ms/tile, peak {found['peak_gib']:.2f} GiB"
    text += f" + {found['worker_gib']:.2f} per worker" if found["worker_gib"] else ""
    return text + (f", {found['device_gib']:.2f} GiB on the device" if found["device_gib"] else "")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--encoder", help="an encoder of the catalogue; default: a ViT-S/16")
    parser.add_argument("--device", default="cpu", help="cpu, cuda or cuda:N; default: cpu")
    parser.add_argument("--tiles", type=int, default=768, help="tiles per run; default: 768")
    parser.add_argument("--batch", type=int, help="tiles per batch; default: the encoder's")
    parser.add_argument(
        "--workers", type=int, default=len(os.sched_getaffinity(0)), help="processes that decode; default: one per core"
    )
    parser.add_argument("--format", choices=["png", "jpeg"], default="png", help="of the tiles; default: png")
    parser.add_argument("--repeats", type=int, default=3, help="rounds, in turn; default: 3")
    parser.add_argument("--part", choices=PARTS, help=argparse.SUPPRESS)
    parser.add_argument("--folder", type=Path, help=argparse.SUPPRESS)
    asked = parser.parse_args()
    measure(asked) if asked.part else compare(asked)


if __name__ == "__main__":
    main()
