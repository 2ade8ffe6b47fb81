"""Pickled weights to safetensors, in a process of its own: `python -m anyformer.convert.unpickle FOLDER NEW`.

Opening a pickle runs what is in it. torch.load with weights_only=True allows tensors and little else, but that has
been broken twice; so the process that does it also refuses to start programs, open connections or write elsewhere.
Nothing but the folder of safetensors that it leaves is used by the one that asked.
"""

import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from anyformer.errors import CheckpointError
from anyformer.families.shards import INDEX, INDEX_BYTES, read_json
from anyformer.files import inside

PICKLES = ("pytorch_model.bin", "model.bin", "*.bin", "*.pt", "*.pth")
WRAPPERS = ("state_dict", "model_state_dict", "model", "module")
"""Names below which training scripts put the weights."""
SHARD = "model-{:05}-of-{:05}.safetensors"
FORBIDDEN = (
    "subprocess.", "os.system", "os.exec", "os.posix_spawn", "os.spawn", "os.fork", "socket.connect", "socket.bind",
    "os.remove", "os.rename", "os.rmdir", "os.chmod", "os.link", "os.symlink", "shutil.", "ctypes.dlopen", "webbrowser.",
)  # fmt: skip


def pickles(folder: Path) -> list[Path]:
    """The pickled weights of a folder: those that an index names, or else one file."""
    index = folder / "pytorch_model.bin.index.json"
    if index.is_file():
        placed = read_json(index, INDEX_BYTES).get("weight_map")
        names = sorted({str(name) for name in placed.values()}) if isinstance(placed, Mapping) else []
        wrong = next((name for name in names if Path(name).name != name or not (folder / name).is_file()), None)
        if not names or wrong is not None:
            raise CheckpointError(f"{index}: {wrong or 'weight_map'!r} is not the name of a file beside it")
        return [inside(folder / name, folder) for name in names]
    for pattern in PICKLES:
        found = sorted(path for path in folder.glob(pattern) if path.is_file())
        if len(found) > 1:
            raise CheckpointError(f"{folder}: holds {', '.join(p.name for p in found)}; leave only the one that counts")
        if found:
            return [inside(found[0], folder)]
    raise CheckpointError(f"{folder}: holds no pickled weights ({', '.join(PICKLES)})")


def unpickled(folder: Path, new: Path) -> None:
    """Write the pickled weights of a folder as safetensors into a new one, by a process of its own."""
    pickles(folder)
    paths = [str(path) for path in (Path(__file__).parents[2], folder.resolve(), new.resolve())]
    done = subprocess.run([sys.executable, "-I", "-c", RUN, *paths], capture_output=True, text=True, check=False)
    if done.returncode:
        lines = done.stderr.strip().splitlines() or [f"its process ended with status {done.returncode}"]
        raise CheckpointError(f"{folder}: its pickled weights can't be read: {lines[-1]}")


RUN = "import sys; sys.path.insert(0, sys.argv[1]); from anyformer.convert.unpickle import main; main(*sys.argv[2:])"
"""Isolated: neither the environment nor the working directory decides what is imported."""


def main(source: str, target: str) -> None:
    """What the process does."""
    import json

    import torch
    from safetensors.torch import save_file

    folder, new = Path(source), Path(target)
    files = pickles(folder)
    _fence(new)
    placed: dict[str, str] = {}
    for i, file in enumerate(files, 1):
        try:
            state = torch.load(file, map_location="cpu", weights_only=True)
        except Exception as error:
            first = (str(error).strip().splitlines() or [type(error).__name__])[0]
            sys.exit(f"{file.name}: {first}")
        name = SHARD.format(i, len(files))
        tensors = {key: tensor.contiguous().clone() for key, tensor in _weights(state, file.name).items()}
        if twice := sorted(tensors.keys() & placed.keys()):
            sys.exit(f"{file.name}: {twice[0]} stands in another file too")
        placed |= dict.fromkeys(tensors, name)
        save_file(tensors, new / name, {"format": "pt"})
    (new / INDEX).write_text(json.dumps({"metadata": {}, "weight_map": placed}), encoding="utf-8")


def _weights(state: Any, name: str) -> dict[str, Any]:
    """The table of tensors, wherever a training script put it."""
    import torch

    for wrapper in WRAPPERS:
        if isinstance(state, Mapping) and isinstance(state.get(wrapper), Mapping):
            state = state[wrapper]
    if not isinstance(state, Mapping) or not state:
        sys.exit(f"{name}: holds {type(state).__name__}, not a table of tensors")
    wrong = [key for key, value in state.items() if not isinstance(value, torch.Tensor) or not isinstance(key, str)]
    if wrong:
        sys.exit(f"{name}: {wrong[0]!r} is not a tensor")
    return dict(state)


def _fence(new: Path) -> None:
    """From here on this process may compute, read, and write into one folder."""
    home = str(new)

    def watch(event: str, args: tuple[Any, ...]) -> None:
        if event.startswith(FORBIDDEN) or (event == "open" and _writes(args) and not str(args[0]).startswith(home)):
            os.write(2, f"the file tried to {event}, which weights have no need of\n".encode())
            os._exit(3)

    sys.addaudithook(watch)


def _writes(args: tuple[Any, ...]) -> bool:
    # A descriptor was checked when it was opened; the null device keeps nothing.
    mode, flags = args[1], args[2]
    if isinstance(args[0], int) or str(args[0]) == os.devnull:
        return False
    written = isinstance(flags, int) and flags & (os.O_WRONLY | os.O_RDWR | os.O_CREAT)
    return bool(written) or (isinstance(mode, str) and any(letter in mode for letter in "wax+"))
