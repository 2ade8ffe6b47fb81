"""A model's directory, whoever wrote it: our own format, or a published model's config.json and safetensors.

A name on the Hugging Face hub means the local cache; it is fetched where there is a network. Only what is read is
fetched: the config, safetensors with their index, and the tokenizer with its chat template. Never code, never pickles.
"""

from __future__ import annotations

import re
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from anyformer.errors import CheckpointError, InputError, SpecError
from anyformer.families.gguf.header import is_gguf
from anyformer.families.quantization import FLOATS
from anyformer.families.shards import CONFIG, SENTENCE, headers_of, opened, widest
from anyformer.files import settle
from anyformer.model.safetensors_header import read_header
from anyformer.specs.model import ModelSpec
from anyformer.specs.parameters import weights

if TYPE_CHECKING:
    import torch

    from anyformer.model.model import Model
    from anyformer.model.native_checkpoint import Recipe
    from anyformer.parts.quantized import Numbers

FORMATS = ("anyformer", "hf", "gguf")
HUB_NAME = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*")
HUB_FILES = (
    "config.json", "*.safetensors", "model.safetensors.index.json", "tokenizer.json", "tokenizer_config.json",
    "special_tokens_map.json", "added_tokens.json", "vocab.json", "merges.txt", "vocab.txt", "generation_config.json", "chat_template.jinja",
    "modules.json", "sentence_bert_config.json", "config_sentence_transformers.json", "[0-9]_*/*.json",
)  # fmt: skip


def find_folder(source: str | Path, revision: str | None = None) -> Path:
    """The directory of a model, or a GGUF file: the path itself, or the place in the local cache of a name such as
    org/name.
    """
    place = settle(source)
    if place.is_dir() or (is_gguf(place) and place.is_file()):
        return place
    name = str(source)
    if place.exists():
        raise InputError(f"{name}: is a file; give the directory of a model, or a .gguf file")
    check_weights(name)
    if isinstance(source, Path) or not HUB_NAME.fullmatch(name):
        raise InputError(f"{name}: there is no such directory; give one, or a name on the hub such as org/name")
    return fetched(name, revision)


def check_weights(name: str) -> None:
    """Refuse the name of a preset where weights are needed. One with an owner may be a repository, and is not refused."""
    from anyformer.families.zoo import known

    if "/" not in name and known(name) is not None:
        raise InputError(
            f"{name} is a preset: an architecture without weights; `anyformer explain {name}` shows it, "
            "`anyformer quickstart` trains one; give the folder of a trained model, or a name on the hub such as org/name"
        )


def fetched(name: str, revision: str | None = None) -> Path:
    """The snapshot of a repository of the hub, fetched if it is not there yet."""
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HfHubHTTPError, HFValidationError, LocalEntryNotFoundError

    try:
        found = Path(snapshot_download(name, revision=revision, allow_patterns=list(HUB_FILES)))
    except HFValidationError as error:
        raise InputError(f"{name}: there is no such directory, and it is no name on the hub: {error}") from error
    except LocalEntryNotFoundError as error:
        raise CheckpointError(
            f"{name}: there is no such directory, it is not in the local cache of the hub, and the hub can't be reached; "
            "fetch it where there is a network (hf download), or give a directory"
        ) from error
    except (HfHubHTTPError, OSError) as error:
        first = (str(error).strip().splitlines() or [type(error).__name__])[0]
        raise CheckpointError(f"{name}: there is no such directory, and the hub gives none: {first}") from error
    if not any((found / name).is_file() for name in (CONFIG, SENTENCE[0])):
        raise CheckpointError(f"{name}: its copy in the local cache ({found}) has no config.json")
    return found


def spec_of(folder: Path, ignore_keys: Sequence[str] = ()) -> ModelSpec:
    """The spec of the model in a directory; `ignore_keys` as in `load`."""
    settle(folder)
    check_ignored(ignore_keys, folder)
    if is_gguf(folder) and folder.is_file():
        from anyformer.families.gguf.files import spec_of_gguf

        return spec_of_gguf(folder, ignore_keys)
    if (folder / "spec.toml").is_file():
        return ModelSpec.from_file(folder / "spec.toml")
    if (folder / CONFIG).is_file():
        from anyformer.families.checkpoint import described

        return described(folder, ignore_keys)[1]
    weights = folder / "model.safetensors"
    if weights.is_file() and "spec" in (metadata := read_header(weights).metadata):
        # The weights of our own format carry the spec that they were saved with.
        return ModelSpec.from_toml(metadata["spec"], f"in {weights}")
    raise SpecError([f"{str(folder)!r} is a directory without a spec.toml or a config.json"])


def check_ignored(keys: Sequence[str], folder: Path) -> None:
    """Refuse keys to be ignored where no config.json is read."""
    if isinstance(keys, str):
        raise TypeError(f"ignore_keys: expected names, such as ({keys!r},), got the text {keys!r}")
    if keys and not is_published(folder) and not is_gguf(folder):
        raise InputError(f"ignore_keys: {folder} has no {CONFIG} that is read, so there is nothing to ignore")


def is_published(folder: Path) -> bool:
    """Whether a directory is in the format of published models, and not in our own."""
    return (folder / CONFIG).is_file() and not (folder / "spec.toml").is_file()


def stored_dtype(folder: Path, ignore_keys: Sequence[str] = ()) -> torch.dtype:
    """The widest floating-point dtype among the plain tensors of a model's folder, which loses nothing of any.

    Those that stay in float32 whatever a model is cast to say nothing.
    """
    import torch

    if is_gguf(folder):
        from anyformer.families.gguf.files import open_gguf

        return open_gguf(folder)[2].widest
    if is_published(folder):
        with opened(folder) as shards:
            held, shapes = shards.plain, shards.shapes
    else:
        places = {name: place for header in headers_of(folder).values() for name, place in header.tensors.items()}
        held = {name: place.dtype for name, place in places.items()}
        shapes = {name: place.shape for name, place in places.items()}
    exact = exact_names(folder, shapes, ignore_keys) if len({*held.values()} & {*FLOATS}) > 1 else set[str]()
    found = {dtype for name, dtype in held.items() if name not in exact}
    return widest(found & {*FLOATS}) or torch.float32


def exact_names(folder: Path, stored: Mapping[str, tuple[int, ...]], ignore_keys: Sequence[str] = ()) -> set[str]:
    """Names of stored tensors that stay in float32 when a model is cast."""
    with warnings.catch_warnings():
        # Whoever loads the folder is told what its config has besides.
        warnings.simplefilter("ignore", UserWarning)
        spec = spec_of(folder, ignore_keys)
    exact = {name for name, weight in weights(spec).items() if weight.exact}
    if not exact or not is_published(folder):
        return exact
    from anyformer.families.checkpoint import family_in

    table = family_in(folder, ignore_keys).table(spec).layout(spec, stored)
    entries = table.entries(spec)
    placed = table.placed(stored, (entry.theirs for entry in entries))
    return {placed[entry.theirs] for entry in entries if entry.ours[0] in exact and entry.theirs in placed}


def load(
    path: str | Path,
    device: str | torch.device | None = None,
    dtype: torch.dtype | None = None,
    quantize: str | None = None,
    *,
    ignore_keys: Sequence[str] = (),
) -> Model:
    """Read a model from a directory: one that `save` wrote, or a published one with config.json and safetensors; or from
    a GGUF file.

    A name such as "org/name" that is no path is looked up in the local cache of the Hugging Face hub, and fetched if
    it is not there. Weights that need no conversion are views of the files, read when they are first used: replace
    such a file, as `save` does, but don't write into it while the model is in use.

    `dtype` defaults to the checkpoint's own on an accelerator and to float32 on a CPU. The model is in evaluation mode:
    call `model.train()` before you train it.

    A published config.json with a key that changes what is computed in a way that we don't know is refused. `ignore_keys`
    names such keys that are to be taken as absent (those of a nested table by dotted names), to go on at your own risk.

    `quantize="int8"` (or "int4") keeps the weights of large products in whole numbers: less memory, and faster for a few
    tokens at a time. Such a model reads and generates; it can't be trained. `save` writes it as it is, and what it wrote
    is read without `quantize`. `anyformer eval --quantize` says what it costs in quality.

    Published files whose weights are quantised (MXFP4, FP8, GPTQ, AWQ, compressed-tensors) are read as the numbers that
    they stand for. With `quantize`, those that ours hold exactly, such as symmetric int4 in groups, are taken as stored.
    """
    from anyformer.families.checkpoint import load_published
    from anyformer.model import native_checkpoint

    folder = find_folder(path)
    if quantize is not None:
        import torch

        from anyformer.model.quantize import quantize as quantise
        from anyformer.parts.quantized import check_kind

        # Before the weights are read.
        check_kind(quantize, torch.device(device or "cpu"))
        held = quantisation_of(folder)
        if held is not None:
            raise InputError(
                f"quantize: {folder} holds {held.kind} weights already; leave quantize out, or quantise the model that it "
                "was made from"
            )
        known = known_numbers(folder, quantize, ignore_keys)
        return warn_if_slow(quantise(load(folder, device, dtype, ignore_keys=ignore_keys), quantize, known))
    check_ignored(ignore_keys, folder)
    if is_gguf(folder):
        from anyformer.families.gguf.files import load_gguf

        return load_gguf(folder, device, dtype, ignore_keys).eval()
    if is_published(folder):
        return load_published(folder, device, dtype, ignore_keys).eval()
    return warn_if_slow(native_checkpoint.load(folder, device, dtype).eval())


def known_numbers(folder: Path, kind: str, ignore_keys: Sequence[str] = ()) -> dict[str, Numbers]:
    """Weights, by our names, that a published model's files hold in whole numbers of ours."""
    from anyformer.families.checkpoint import stored_numbers

    if is_gguf(folder):
        from anyformer.families.gguf.files import gguf_numbers

        return gguf_numbers(folder, kind, ignore_keys)
    return stored_numbers(folder, kind, ignore_keys) if is_published(folder) else {}


def warn_if_slow(model: Model) -> Model:
    """The model, with a warning if its weights have no fast product where it is."""
    from anyformer.parts.quantized import QuantizedLinear

    kinds = {m.kind for m in model.modules() if isinstance(m, QuantizedLinear)}
    if "int4" in kinds and next(model.parameters()).device.type == "cpu":
        warnings.warn(
            "int4 weights on a CPU are unpacked for every product: they save memory, and a token takes many times as long "
            "as in float32. For speed take int8 (quantize='int8'), or a CUDA device.",
            stacklevel=3,
        )
    return model


def quantisation_of(folder: Path) -> Recipe | None:
    """How the weights of a folder of ours are quantised; None if they are not."""
    from anyformer.model.native_checkpoint import WEIGHTS, stored_recipe

    file = folder / WEIGHTS
    return stored_recipe(file) if not is_published(folder) and file.is_file() else None


def save(model: Model, path: str | Path, format: str = "anyformer", *, gguf_type: str = "f16") -> None:
    """Write a model into a directory, which is made if need be; or with the format "gguf" into a file.

    "anyformer" is our own format, for quantised models too. "hf" is that of a published class, for other tools: the one that the model was read
    from, or, if it was built here or its spec no longer fits that class, the first whose files can hold the spec. "gguf" is one
    file for llama.cpp, with matrices in `gguf_type` (f32, f16, bf16 or q8_0), and without a tokenizer: that is put into
    it by `anyformer convert`.
    """
    from anyformer.families.checkpoint import save_published
    from anyformer.model import native_checkpoint

    if format not in FORMATS:
        raise InputError(f"format: {format!r} is unknown (known: {', '.join(FORMATS)})")
    if format == "gguf":
        from anyformer.families.gguf.files import save_gguf

        save_gguf(model, path, gguf_type)
    elif format == "hf":
        save_published(model, path)
    else:
        native_checkpoint.save(model, path)
