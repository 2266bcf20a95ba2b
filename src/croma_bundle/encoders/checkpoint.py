"""Checkpoints: reading the tensors of a file that was hashed, and filling a network with exactly these."""

from __future__ import annotations

import pickle
import warnings
import zipfile
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from croma_bundle.errors import InputError, ManifestError, some
from croma_bundle.manifests.models import Encoder
from croma_bundle.weights.resolve import LocalFile
from croma_bundle.weights.wanted import PICKLES

SAFE = ".safetensors"
Tensors = Mapping[str, Tensor]
NUMBERS = (torch.float16, torch.bfloat16, torch.float32, torch.float64)
COUNTS = (torch.bool, torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64)


def weights_file(entry: Encoder, files: Sequence[LocalFile]) -> LocalFile:
    """The one file that holds the tensors."""
    found = [file for file in files if file.name.endswith((SAFE, *PICKLES))]
    if len(found) != 1:
        names = ", ".join(file.name for file in found) or "none"
        wanted = f"one file that ends in {', '.join((SAFE, *PICKLES))}"
        raise ManifestError(f"encoder {entry.name}", "its tensors are not in one file", wanted=wanted, found=names)
    return found[0]


def read_tensors(entry: Encoder, file: LocalFile) -> dict[str, Tensor]:
    """The tensors of a verified file by the names that its entry's `state` leaves of theirs; mapped, where they can be.

    Raises:
        InputError: a damaged file, or a pickle that needs more than tensors and plain values; no code of it has run.
        ManifestError: the file is laid out otherwise than the entry says.
    """
    content = _read_safetensors(entry, file) if file.name.endswith(SAFE) else _read_pickle(entry, file)
    return _named(entry, file, _inside(entry, file, content))


def fill(entry: Encoder, module: nn.Module, tensors: Tensors) -> None:
    """Give the module every tensor of its own and no other, as float32, in place of what it has.

    Raises:
        ManifestError: missing or unexpected names, or other shapes.
    """
    own: Tensors = module.state_dict()
    wrong = [
        unlike(name, tensors[name], own[name])
        for name in own
        if name in tensors and not alike(tensors[name], own[name])
    ]
    require_fit(entry, [n for n in own if n not in tensors], [n for n in tensors if n not in own], wrong)
    module.load_state_dict({name: _as_float32(tensor) for name, tensor in tensors.items()}, strict=True, assign=True)


def require_fit(entry: Encoder, missing: Iterable[str], unexpected: Iterable[str], wrong: Iterable[str]) -> None:
    """Raise `ManifestError` where a checkpoint and its network differ; what the entry ignores may be unexpected."""
    left = [name for name in unexpected if not name.startswith(entry.state.ignore)]
    faults = {"missing": sorted(missing), "unexpected": sorted(left), "of another shape or kind": sorted(wrong)}
    told = [f"{len(names)} {kind}: {some(names, 5)}" for kind, names in faults.items() if names]
    if told:
        raise ManifestError(
            f"encoder {entry.name}",
            "its checkpoint does not fit its network",
            wanted=f"every tensor of {entry.model}, and no other",
            found="; ".join(told),
            detail=_what_the_entry_can_say(faults),
        )


def _what_the_entry_can_say(faults: Mapping[str, Sequence[str]]) -> str:
    if faults["missing"] and faults["unexpected"]:
        return 'Where names differ, the entry says how: state = { prefix = "backbone.", inside = "model" }'
    if faults["unexpected"] and not faults["of another shape or kind"]:
        return 'Tensors that the network has no use for are named in its entry: state = { ignore = ["head."] }'
    return "The network is that of `model` and `arguments` in its entry: one of them is not this checkpoint's."


def alike(stored: Tensor, own: Tensor) -> bool:
    """Whether a stored tensor may take the place of the network's: of its shape, and numbers for numbers."""
    return bool(stored.shape == own.shape and stored.is_floating_point() == own.is_floating_point())


def unlike(name: str, stored: Tensor, own: Tensor) -> str:
    if stored.shape != own.shape:
        return f"{name} is {_shape(stored)}, not {_shape(own)}"
    return f"{name} is {_kind(stored)}, not {_kind(own)}"


def _read_safetensors(entry: Encoder, file: LocalFile) -> Mapping[str, Any]:
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    try:
        tensors: Mapping[str, Any] = load_file(file.path)
    except (SafetensorError, ValueError, OSError) as error:
        raise _damaged(entry, file, error) from None
    return tensors


def _read_pickle(entry: Encoder, file: LocalFile) -> Any:
    """Only tensors and plain values: whatever else the pickle asks for is refused by torch before it is imported."""
    try:
        with warnings.catch_warnings(action="ignore"):  # of pickles that are unlike torch's own
            return torch.load(file.path, map_location="cpu", weights_only=True, mmap=zipfile.is_zipfile(file.path))
    except pickle.UnpicklingError as error:
        asked = next((line for line in str(error).splitlines() if "GLOBAL" in line or "global" in line), None)
        if asked is None:
            raise _damaged(entry, file, error) from None
        raise InputError(
            f"encoder {entry.name}, {file.name}",
            "this pickle asks for more than tensors and plain values, so it was not read; no code of it has run",
            wanted="a file of tensors (weights_only)",
            found=_less_advice(asked),
            detail="Read it once where it can do no harm, in a container without network and volume, write its tensors "
            "with safetensors.torch.save_file, and declare that file, with its sha256, as a private encoder.",
        ) from None
    except MemoryError:
        raise
    except Exception as error:  # what torch's reader trips over in a damaged file is of any kind
        raise _damaged(entry, file, error) from None


def _damaged(entry: Encoder, file: LocalFile, error: Exception) -> InputError:
    found = f"{type(error).__name__}: {_less_advice(str(error))}"
    return InputError(f"encoder {entry.name}, {file.name}", "it cannot be read as a checkpoint", found=found)


def _less_advice(said: str) -> str:
    """What torch says, without its advice, which is to run the code of the pickle."""
    return said.partition("In PyTorch 2.6")[0].partition("Please use `torch.ser")[0].strip()[:300]


def _inside(entry: Encoder, file: LocalFile, content: Any) -> Mapping[str, Any]:
    """The mapping of tensors: the whole content, or what stands in it under the entry's `state.inside`."""
    subject, key = f"encoder {entry.name}, {file.name}", entry.state.inside
    found = content if key is None else content.get(key) if isinstance(content, Mapping) else None
    if isinstance(found, Mapping) and found and all(_is_named_tensor(*item) for item in found.items()):
        odd = [f"{name} ({_kind(tensor)})" for name, tensor in found.items() if not _is_plain(tensor)]
        if odd:
            problem = f"{len(odd)} of its tensors are of a kind that no network here has"
            raise ManifestError(subject, problem, wanted="dense float or integer tensors", found=some(odd, 5))
        return found
    wanted = "tensors by name" if key is None else f"tensors by name under {key!r}"
    raise ManifestError(
        subject,
        "its tensors are not where the entry says",
        wanted=wanted,
        found=_layout(content),
        detail='The entry says where they are: state = { inside = "teacher", prefix = "backbone." }',
    )


def _is_named_tensor(name: Any, value: Any) -> bool:
    return isinstance(name, str) and isinstance(value, Tensor)


def _is_plain(tensor: Tensor) -> bool:
    """Dense values on the CPU, of a kind that torch computes with."""
    dense = tensor.layout == torch.strided and not tensor.is_quantized and tensor.device.type == "cpu"
    return dense and tensor.dtype in (*NUMBERS, *COUNTS)


def _kind(tensor: Tensor) -> str:
    """ "float32", with what is odd of the tensor besides."""
    odd = [str(tensor.layout).removeprefix("torch.")] if tensor.layout != torch.strided else []
    odd += [tensor.device.type] if tensor.device.type != "cpu" and not odd else []
    return " ".join([str(tensor.dtype).removeprefix("torch."), *odd])


def _layout(content: Any) -> str:
    if not isinstance(content, Mapping):
        return type(content).__name__
    kinds = [f"{key!r} ({type(value).__name__})" for key, value in content.items() if not _is_named_tensor(key, value)]
    tensors = len(content) - len(kinds)
    return f"{tensors} tensors, and {some(kinds, 6)}" if kinds else f"{tensors} tensors"


def _named(entry: Encoder, file: LocalFile, tensors: Tensors) -> dict[str, Tensor]:
    """Without the prefix, and without what the entry ignores."""
    prefix = entry.state.prefix or ""
    others = [name for name in tensors if not name.startswith((prefix, *entry.state.ignore))]
    if others:
        subject = f"encoder {entry.name}, {file.name}"
        problem = f"{len(others)} of its tensors do not start with {prefix!r}"
        raise ManifestError(subject, problem, found=some(others, 5))
    bare = {name.removeprefix(prefix): tensor for name, tensor in tensors.items()}
    return {name: tensor for name, tensor in bare.items() if not name.startswith(entry.state.ignore)}


def _as_float32(tensor: Tensor) -> Tensor:
    return tensor.to(torch.float32) if tensor.is_floating_point() else tensor


def _shape(tensor: Tensor) -> str:
    return "×".join(map(str, tensor.shape)) or "a number"
