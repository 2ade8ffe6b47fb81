"""Checkpoints of a run with many processes: gathered into plain files, or each process's part in a file of its own.

    step-00000100/  optimizer-00002-of-00004.safetensors   what one process holds, each stretch once over all of them
                    parts.json                             for each tensor its shape and where its stretches lie

Nothing in it names a mesh: a tensor is a set of boxes, so any number of processes, cut in any way, reads it back, and
each reads only what it holds. torch's own distributed checkpoint keeps its index as a pickle, which runs code when it
is read; this one is safetensors and JSON, and goes by the same protocol as any checkpoint.
"""

import json
import os
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple, Self

import torch
from torch import Tensor

from anyformer.errors import CheckpointError, file_fault
from anyformer.files import Written, write_new
from anyformer.model.safetensors_file import DTYPES, TensorFile
from anyformer.optim.rule import as_dtensor, local
from anyformer.train.checkpoint import FOLDER, NAMES, Checkpoint, Contents, Table, name_of, write
from anyformer.train.ranks import Ranks


class Stretch(NamedTuple):
    """A box of a whole tensor."""

    start: tuple[int, ...]
    shape: tuple[int, ...]

    def of(self, whole: Tensor) -> Tensor:
        for dim, (start, size) in enumerate(zip(self.start, self.shape, strict=True)):
            whole = whole.narrow(dim, start, size)
        return whole

    def within(self, outer: Self) -> Self:
        """The same box, counted from where another one begins."""
        return self._replace(start=tuple(a - b for a, b in zip(self.start, outer.start, strict=True)))


def stretch(tensor: Tensor) -> Stretch:
    """What this process holds of a tensor. Products are shared out first and parts are cut of that, as `spread` does."""
    start, size = [0] * tensor.dim(), list(tensor.shape)
    held = as_dtensor(tensor.detach())
    if held is None:
        return Stretch(tuple(start), tuple(size))
    mesh = held.device_mesh
    for i in reversed(range(mesh.ndim)):
        # Of two cuts of one dimension, one has a placement of its own class, which has the dimension too.
        dim = getattr(held.placements[i], "dim", None)
        if not isinstance(dim, int):
            continue
        # As torch.chunk cuts: equal parts rounded up, and the last ones may be short or empty.
        each = -(-size[dim] // mesh.size(i))
        before = min(each * mesh.get_local_rank(i), size[dim])
        start[dim], size[dim] = start[dim] + before, min(each, size[dim] - before)
    if tuple(size) != tuple(held.to_local().shape):
        raise TypeError(f"a part of shape {tuple(held.to_local().shape)} is not cut as expected: {held.placements}")
    return Stretch(tuple(start), tuple(size))


@torch.no_grad()
def put(tensor: Tensor, whole: Tensor) -> None:
    """Give a tensor its part of a whole one. Nothing is sent: every process has the whole."""
    if tensor.shape != whole.shape:
        raise CheckpointError(f"a tensor of shape {tuple(whole.shape)} was given for one of {tuple(tensor.shape)}")
    local(tensor.detach()).copy_(stretch(tensor).of(whole))


def whole(tensor: Tensor) -> Tensor:
    """The whole of what processes hold in parts. All processes of the run must call it, in the same order."""
    tensor = tensor.detach()
    held = as_dtensor(tensor)
    if held is None:
        return tensor
    from torch.distributed.tensor import Replicate

    # One direction of the mesh after the other: a dimension may be cut along two of them.
    where = list(held.placements)
    for i in range(len(where)):
        where[i] = Replicate()
        held = held.redistribute(placements=where)
    return held.to_local()


Parts = dict[str, dict[str, tuple[Tensor, tuple[int, ...]]]]
"""By table and name what one process writes, and where it begins in the whole."""
PARTS, LIST = "parts.json", "part-{:05d}.json"
CONTINUES = "After that the same command continues from the checkpoint before"


def gathered_contents(contents: Contents, ranks: Ranks) -> Contents:
    """The same with whole tensors, gathered one at a time, on the host of rank 0. All take part."""
    tables: dict[str, Table] = {}
    for name, table in contents.tables.items():
        wholes = ((each, whole(tensor)) for each, tensor in table.tensors.items())
        kept = {each: full.to("cpu", copy=True) for each, full in wholes if ranks.is_rank0}
        tables[name] = Table(kept, table.metadata)
    return replace(contents, tables=tables)


def save_parts(ranks: Ranks, run: Path, step: int, contents: Contents, keep: int) -> None:
    """Save a checkpoint to which each process adds what it holds. If one of them can't, nothing is left of it."""
    told = False

    def beside(made: Path) -> Mapping[str, Written]:
        nonlocal told
        told = True
        ranks.broadcast(os.getpid())
        _write_mine(made, contents.tables, ranks)
        return collected(made, contents.tables, ranks.world)

    with ranks.rank0_first() as first:
        if first:
            try:
                write(run, step, replace(contents, tables={}, public="", beside=beside), keep)
            finally:
                if not told:
                    ranks.broadcast(-1)
        elif (writer := ranks.broadcast(0)) >= 0:
            _write_mine(run / FOLDER / f"{name_of(step)}.tmp-{writer}", contents.tables, ranks)


def _write_mine(made: Path, tables: Mapping[str, Table], ranks: Ranks) -> None:
    """The stretches that this process answers for; then wait for the others to have theirs."""
    fault: OSError | None = None
    try:
        mine: Parts = {}
        for table, held in tables.items():
            answered = {name: tensor for name, tensor in held.tensors.items() if _answers_for(tensor, ranks)}
            mine[table] = {name: (local(tensor.detach()), stretch(tensor).start) for name, tensor in answered.items()}
        write_part(made, mine, ranks.rank, ranks.world)
    except OSError as error:
        fault = error
    if ranks.any(fault is not None):
        other = "another process could not write its part; its own message says why"
        mine_too = "" if fault is None else f"the part of this process can't be saved: {file_fault(fault)}. {CONTINUES}"
        raise CheckpointError(f"{made}: {mine_too or other}") from fault


def write_part(made: Path, parts: Parts, rank: int, world: int) -> None:
    """One file for each table, and a list of what is in them."""
    listed: dict[str, Any] = {}
    for table, held in parts.items():
        file = f"{Path(table).stem}-{rank:05d}-of-{world:05d}.safetensors"
        written = write_new(made / file, Table({name: tensor for name, (tensor, _) in held.items()}).pieces())
        starts = {name: list(start) for name, (_, start) in held.items()}
        listed[table] = {"file": file, "size": written.size, "sha256": written.sha256, "starts": starts}
    write_new(made / LIST.format(rank), [json.dumps(listed).encode()])


def _answers_for(tensor: Tensor, ranks: Ranks) -> bool:
    """Whether this process writes what it holds: of copies the first one is written, and of nothing nothing."""
    held = as_dtensor(tensor.detach())
    if held is None:
        return ranks.is_rank0
    copies = [i for i, where in enumerate(held.placements) if where.is_replicate()]
    return all(held.device_mesh.get_local_rank(i) == 0 for i in copies) and held.to_local().numel() > 0


def collected(made: Path, tables: Mapping[str, Table], world: int) -> dict[str, Written]:
    """The index of all parts, written by the first process, and every file that belongs to the checkpoint."""
    files: dict[str, Written] = {}
    index: dict[str, Any] = {}
    lists = [json.loads((made / LIST.format(rank)).read_bytes()) for rank in range(world)]
    for table, held in tables.items():
        tensors: dict[str, Any] = {
            name: {"dtype": NAMES[tensor.dtype], "shape": list(tensor.shape), "pieces": []}
            for name, tensor in held.tensors.items()
        }
        for listed in lists:
            told = listed[table]
            files[told["file"]] = Written(told["size"], told["sha256"])
            for name, start in told["starts"].items():
                tensors[name]["pieces"].append({"file": told["file"], "start": start})
        index[table] = {"metadata": dict(held.metadata), "tensors": tensors}
    files[PARTS] = write_new(made / PARTS, [json.dumps({"tables": index}).encode()])
    for rank in range(world):
        (made / LIST.format(rank)).unlink()
    return files


class Stored:
    """A table of a checkpoint, plain or in parts, open for reading in a `with`. Its hashes have been checked."""

    def __init__(self, found: Checkpoint, table: str) -> None:
        self.found, self.table, self.metadata = found, table, dict[str, str]()
        self.shapes: dict[str, tuple[tuple[int, ...], torch.dtype]] = {}
        self._pieces: dict[str, list[tuple[str, Stretch]]] = {}
        self._files: dict[str, TensorFile] = {}
        self._open = ExitStack()

    def __enter__(self) -> Self:
        try:
            self._read()
        except BaseException as error:
            self._open.close()
            if isinstance(error, KeyError | TypeError | ValueError):
                raise CheckpointError(f"{self.found.folder / PARTS}: can't be used: {error!r}") from error
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self._open.close()

    def _read(self) -> None:
        if self.table in self.found.files:
            header = self._file(self.table).header
            self.metadata = header.metadata
            for name, place in header.tensors.items():
                shape = tuple(place.shape)
                self.shapes[name] = shape, DTYPES[place.dtype]
                self._pieces[name] = [(self.table, Stretch((0,) * len(shape), shape))]
            return
        if PARTS not in self.found.files:
            raise CheckpointError(f"{self.found.folder}: holds no {self.table}, only {', '.join(self.found.files)}")
        index = json.loads((self.found.folder / PARTS).read_bytes())["tables"][self.table]
        self.metadata = {str(key): str(value) for key, value in index["metadata"].items()}
        for name, told in index["tensors"].items():
            self.shapes[name] = tuple(map(int, told["shape"])), DTYPES[told["dtype"]]
            self._pieces[name] = []
            for piece in told["pieces"]:
                if piece["file"] not in self.found.files:
                    place = self.found.folder / PARTS
                    raise CheckpointError(f"{place}: names {piece['file']!r:.120}, which is no part")
                shape = tuple(self._file(piece["file"]).header.tensors[name].shape)
                self._pieces[name].append((piece["file"], Stretch(tuple(map(int, piece["start"])), shape)))
            _check_boxes(name, self.shapes[name][0], [box for _, box in self._pieces[name]])

    def _file(self, name: str) -> TensorFile:
        if name not in self._files:
            self._files[name] = self._open.enter_context(TensorFile(self.found.folder / name))
        return self._files[name]

    @torch.no_grad()
    def copy(self, name: str, wanted: Stretch, into: Tensor) -> None:
        """Read a stretch of a tensor into one of its shape. Of the files no more is read than that."""
        for file, box in self._pieces[name]:
            both = _overlap(box, wanted)
            if both is not None:
                both.within(wanted).of(into).copy_(both.within(box).of(self._file(file).view(name)))


def _overlap(a: Stretch, b: Stretch) -> Stretch | None:
    start = tuple(max(x, y) for x, y in zip(a.start, b.start, strict=True))
    ends = (min(x + m, y + n) for x, m, y, n in zip(a.start, a.shape, b.start, b.shape, strict=True))
    shape = tuple(end - first for end, first in zip(ends, start, strict=True))
    return Stretch(start, shape) if all(size > 0 for size in shape) else None


def _check_boxes(name: str, shape: tuple[int, ...], boxes: list[Stretch]) -> None:
    """Boxes that lie inside, don't overlap and are as many numbers as the whole cover it."""
    inside = all(
        len(box.start) == len(shape)
        and all(s >= 0 and s + n <= whole for s, n, whole in zip(box.start, box.shape, shape, strict=True))
        for box in boxes
    )
    apart = inside and not any(_overlap(a, b) for i, a in enumerate(boxes) for b in boxes[:i] if a.shape and b.shape)
    if not apart or sum(torch.Size(box.shape).numel() for box in boxes) != torch.Size(shape).numel():
        raise CheckpointError(f"{PARTS}: the parts of {name} do not make up {shape}")


def fill(found: Checkpoint, table: str, tensors: Mapping[str, Tensor]) -> dict[str, str]:
    """Give tensors, cut or whole, what a table has under their names; its texts. All must fit, or none is touched."""
    with Stored(found, table) as stored:
        wrong = [f"{name}: is missing" for name in tensors.keys() - stored.shapes.keys()]
        wrong += [f"{name}: is not asked for" for name in stored.shapes.keys() - tensors.keys()]
        for name in tensors.keys() & stored.shapes.keys():
            (shape, dtype), want = stored.shapes[name], tensors[name]
            if (shape, dtype) != (tuple(want.shape), want.dtype):
                wrong.append(f"{name}: is {dtype} of shape {shape}, not {want.dtype} of {tuple(want.shape)}")
        if wrong:
            raise CheckpointError("\n  ".join([f"{found.folder / table} does not fit this run:", *sorted(wrong)]))
        for name, tensor in tensors.items():
            stored.copy(name, stretch(tensor), local(tensor.detach()))
        return stored.metadata
