"""Checkpoints: what is written is read back to the bit, what is damaged is found out, what is whole is never lost."""

import errno
import json
import os
import shutil
import signal
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

import anyformer as af
from anyformer import files
from anyformer.errors import ADVICE, CheckpointError
from anyformer.model.native_checkpoint import metadata_of
from anyformer.train import checkpoint
from anyformer.train.checkpoint import Contents, Saver, Table, newest, resume, write
from anyformer.train.distributed.sharded_checkpoint import fill
from tests.train.faulty import BrokenDisk, CountingDisk, DeadlyDisk, QuickDisk, forked

SPEC = af.ModelSpec.from_data(
    {"topology": "decoder", "vocab": 16, "width": 8, "depth": 1, "context": 8, "attention": {"heads": 2}}
)


@pytest.fixture(scope="module")
def model():
    return af.build(SPEC, seed=0).requires_grad_(False)


@pytest.fixture(autouse=True)
def quick(monkeypatch):
    monkeypatch.setattr(files, "DISK", QuickDisk())


def failure(run: Path, new: Contents) -> str:
    """What a save that fails says, or nothing if it does not."""
    try:
        write(run, 3, new)
    except CheckpointError as failed:
        return str(failed)
    return ""


def shown(run: Path) -> float:
    """The step whose model the run's folder shows."""
    return float(next(af.load(run).parameters()).detach().flatten()[0])


def contents(model, step: int) -> Contents:
    """A checkpoint in which every number tells its step."""
    with torch.no_grad():
        for p in model.parameters():
            p.fill_(step)
    table = Table(dict(model.named_parameters()), metadata_of(model.spec, model.family))
    rest = Table({"m.step": torch.tensor(float(step)), "m.sum": torch.full((3, 5), step, dtype=torch.float64)})
    return Contents(
        tables={"model.safetensors": table, "optimizer.safetensors": rest},
        state={"step": step},
        texts={"spec.toml": model.spec.to_toml()},
    )


def whole(run: Path, warn=lambda _: None) -> int:
    """The step of the newest checkpoint, all of whose parts must be of that step."""
    found = newest(run, warn)
    assert found is not None
    assert found.state == {"step": found.step}
    for name in ("model.safetensors", "optimizer.safetensors"):
        for tensor in found.read(name).tensors.values():
            assert (tensor == found.step).all()
    return found.step


def test_checkpoint_written_and_read_is_the_same_to_the_bit(tmp_path, model):
    folder = write(tmp_path, 7, contents(model, 7))
    assert sorted(each.name for each in folder.iterdir()) == [
        "manifest.json", "model.safetensors", "optimizer.safetensors", "spec.toml", "state.json",
    ]  # fmt: skip
    assert whole(tmp_path) == 7
    for place in (folder, tmp_path):
        loaded = af.load(place)
        assert loaded.spec == SPEC
        assert all((p == 7).all() for p in loaded.parameters())
    assert (tmp_path / "model.safetensors").samefile(folder / "model.safetensors")


def test_table_of_every_dtype_is_the_file_that_the_library_writes(tmp_path):
    tensors = {
        "wide": torch.randn(3, 2, dtype=torch.float64), "half": torch.randn(5).to(torch.bfloat16),
        "none": torch.zeros(0, 4), "one": torch.tensor(3), "yes": torch.tensor([True, False]),
        "turned": torch.randn(4, 3).T, "na\u00efve": torch.tensor([float("nan"), float("-inf")]),
    }  # fmt: skip
    files.write_new(tmp_path / "ours", Table(tensors, {"a": "\u00e9"}).pieces())
    save_file({name: t.contiguous() for name, t in tensors.items()}, tmp_path / "theirs", {"a": "\u00e9"})
    assert (tmp_path / "ours").stat().st_size == (tmp_path / "theirs").stat().st_size
    back = load_file(tmp_path / "ours")
    assert back.keys() == tensors.keys()
    for name, tensor in tensors.items():
        assert back[name].dtype == tensor.dtype
        assert torch.equal(back[name].nan_to_num(), tensor.nan_to_num())
    with pytest.raises(CheckpointError, match=r"no place for c \(torch.complex64\)"):
        list(Table({"c": torch.zeros(1, dtype=torch.complex64)}).pieces())


def test_checkpoints_beyond_those_kept_are_deleted_oldest_first(tmp_path, model):
    for step in range(1, 5):
        write(tmp_path, step, contents(model, step), keep=2 if step < 4 else 3)
    assert list(checkpoint.steps_in(tmp_path)) == [4, 3, 2]
    with pytest.raises(CheckpointError, match="keep: 1 is not at least 2"):
        write(tmp_path, 5, contents(model, 5), keep=1)


def test_save_killed_at_every_call_leaves_a_whole_checkpoint(tmp_path, model, monkeypatch):
    """R1: the old one or the new one, and the run's folder can be loaded throughout."""
    base = tmp_path / "base"
    base.mkdir()
    for step in (1, 2):
        write(base, step, contents(model, step))
    new = contents(model, 3)
    counted = CountingDisk()
    shutil.copytree(base, tmp_path / "count")
    monkeypatch.setattr(files, "DISK", counted)
    write(tmp_path / "count", 3, new)
    assert counted.calls >= 40
    seen = []
    for at in range(1, counted.calls + 1):
        run = tmp_path / f"run{at}"
        shutil.copytree(base, run)
        monkeypatch.setattr(files, "DISK", DeadlyDisk(at))
        status = forked(lambda run=run: write(run, 3, new))
        assert os.WIFSIGNALED(status), at
        assert os.WTERMSIG(status) == signal.SIGKILL, at
        monkeypatch.setattr(files, "DISK", QuickDisk())
        seen.append(whole(run))
        assert shown(run) in (2, 3)
        found = resume(run)
        assert found is not None
        assert found.step == seen[-1]
        left = {each.name for each in (run / checkpoint.FOLDER).iterdir()}
        assert all(checkpoint.STEP.fullmatch(name) for name in left), left
        assert (run / "model.safetensors").samefile(found.folder / "model.safetensors")
        assert not [each.name for each in run.iterdir() if "tmp" in each.name]
        shutil.rmtree(run)
    # Early kills leave the old one, late ones the new: the test reached both sides.
    assert set(seen) == {2, 3}
    assert seen == sorted(seen)


def test_first_save_killed_at_every_call_is_none_or_whole(tmp_path, model, monkeypatch):
    new = contents(model, 1)
    counted = CountingDisk()
    (tmp_path / "count").mkdir()
    monkeypatch.setattr(files, "DISK", counted)
    write(tmp_path / "count", 1, new)
    for at in range(1, counted.calls + 1):
        run = tmp_path / f"run{at}"
        run.mkdir()
        monkeypatch.setattr(files, "DISK", DeadlyDisk(at))
        assert os.WIFSIGNALED(forked(lambda run=run: write(run, 1, new))), at
        monkeypatch.setattr(files, "DISK", QuickDisk())
        found = resume(run)
        assert found is None or whole(run) == 1
        write(run, 2, contents(model, 2))
        assert whole(run) == 2
        contents(model, 1)


@pytest.mark.parametrize(
    ("error", "lasting"),
    [(errno.ENOSPC, False), (errno.EIO, False), (errno.ENOSPC, True), (errno.EROFS, True), (errno.EACCES, True)],
)
def test_save_on_a_failing_disk_says_so_and_keeps_what_was(tmp_path, model, monkeypatch, error, lasting):
    """R4: at each call; only a second name for a file, for which a copy can stand in, may fail unnoticed."""
    base = tmp_path / "base"
    base.mkdir()
    for step in (1, 2):
        write(base, step, contents(model, step))
    new, at, unnoticed = contents(model, 3), 0, 0
    while True:
        at += 1
        run = tmp_path / f"run{at}"
        shutil.copytree(base, run)
        disk = BrokenDisk(at, error, lasting=lasting)
        monkeypatch.setattr(files, "DISK", disk)
        told = failure(run, new)
        assert not told or all(
            part in told for part in (os.strerror(error), "can't be saved", "same command continues", ADVICE[error])
        )
        assert not told or error == errno.ENOSPC or "room" not in told.lower()
        unnoticed += not told and disk.calls >= at
        monkeypatch.setattr(files, "DISK", QuickDisk())
        assert whole(run) in (2, 3)
        assert shown(run) in (2, 3)
        # The next save is as if nothing had been.
        write(run, 4, contents(model, 4))
        assert whole(run) == 4
        assert not list((run / checkpoint.FOLDER).glob("*tmp*"))
        contents(model, 3)
        shutil.rmtree(run)
        if disk.calls < at:
            break
    assert at > 40
    # Once: calls of `remove`, which promises nothing, and the link. Lasting: the last `remove`s.
    assert unnoticed <= (8 if not lasting else 3)


def test_checkpoint_with_a_flipped_bit_or_cut_short_is_passed_over(tmp_path, model):
    """R5: in any file, at many places, always noticed, always fallen back."""
    for step in (1, 2):
        write(tmp_path, step, contents(model, step))
    folder = tmp_path / checkpoint.FOLDER / checkpoint.name_of(2)
    damaged = 0
    for file in sorted(folder.iterdir()):
        right = file.read_bytes()
        spots = sorted({*range(0, len(right), max(1, len(right) // 12)), len(right) - 1})
        wrong = [right[:i] + bytes([right[i] ^ (1 << i % 8)]) + right[i + 1 :] for i in spots]
        wrong += [right[: len(right) // 2], right[:-1], b"", right + b"\0"]
        for content in wrong:
            # Not the second name of it.
            file.unlink()
            file.write_bytes(content)
            with pytest.warns(UserWarning, match=r"step-00000002.*going back to the one before it"):
                found = newest(tmp_path)
            assert found is not None
            assert found.step == 1
            damaged += 1
        file.unlink()
        with pytest.warns(UserWarning, match="can't be read"):
            assert whole(tmp_path, warn=None) == 1
        file.write_bytes(right)
        assert whole(tmp_path) == 2
    assert damaged > 60


def test_checkpoints_that_are_all_damaged_are_an_error_and_none_at_all_is_not(tmp_path, model):
    assert newest(tmp_path) is None
    write(tmp_path, 1, contents(model, 1))
    (tmp_path / checkpoint.FOLDER / "step-00000001" / "state.json").write_text("{}")
    with (
        pytest.warns(UserWarning, match="has 2 bytes"),
        pytest.raises(CheckpointError, match=r"none of 1 checkpoints is whole(.|\n)*begin anew"),
    ):
        newest(tmp_path)


def test_damaged_checkpoint_that_is_reached_again_is_set_aside(tmp_path, model):
    for step in (1, 2):
        write(tmp_path, step, contents(model, step))
    (tmp_path / checkpoint.FOLDER / "step-00000002" / "state.json").write_text("{}")
    write(tmp_path, 2, contents(model, 2))
    assert whole(tmp_path) == 2
    names = sorted(each.name for each in (tmp_path / checkpoint.FOLDER).iterdir())
    # The one before it is still there: the damaged one doesn't count among those that are kept.
    assert names == ["damaged-step-00000002", "step-00000001", "step-00000002"]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"files": {"../../secret": {"size": 1, "sha256": ""}}}, "names '../../secret'"),
        ({"files": {".hidden": {"size": 1, "sha256": ""}}}, "names '.hidden'"),
        ({"files": {}}, "names no model.safetensors, state.json"),
        ({"step": 2}, "is of step 2"),
        ({"version": 9}, "version 9; this anyformer reads 1"),
        ({"files": []}, "needs step, public, files"),
    ],
)
def test_manifest_that_somebody_wrote_is_refused(tmp_path, model, change, message):
    folder = write(tmp_path, 1, contents(model, 1))
    file = folder / checkpoint.MANIFEST
    head = json.loads(file.read_text()) | change
    del head["sha256"]
    file.write_bytes(checkpoint._signed(head))
    with pytest.raises(CheckpointError, match=message):
        checkpoint.verify(folder, 1)


def test_checkpoint_whose_file_is_a_link_out_of_it_is_refused(tmp_path, model):
    folder = write(tmp_path, 1, contents(model, 1))
    file = folder / "optimizer.safetensors"
    shutil.move(file, tmp_path / "elsewhere")
    file.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(CheckpointError, match="outside of its folder"):
        checkpoint.verify(folder, 1)


def test_tensors_are_filled_all_or_none(tmp_path, model):
    write(tmp_path, 5, contents(model, 5))
    found = newest(tmp_path)
    assert found is not None
    fresh = af.build(SPEC, seed=1)
    named = dict(fresh.named_parameters())
    fill(found, "model.safetensors", named)
    assert all((p == 5).all() for p in named.values())
    other = {"m.step": torch.zeros(2), "m.sum": torch.zeros(3, 5, dtype=torch.float64), "m.more": torch.zeros(1)}
    with pytest.raises(CheckpointError, match=r"m.more: is missing\n  m.step: is torch.float32 of shape \(\)"):
        fill(found, "optimizer.safetensors", other)
    assert not other["m.sum"].any()
    with pytest.raises(CheckpointError, match=r"holds no ema\.safetensors"):
        found.read("ema.safetensors")


def test_file_system_without_second_names_gets_a_copy(tmp_path, model, monkeypatch):
    class Plain(QuickDisk):
        def link(self, source: Path, target: Path) -> None:
            raise OSError(errno.EPERM, "not here")

    monkeypatch.setattr(files, "DISK", Plain())
    folder = write(tmp_path, 3, contents(model, 3))
    assert not (tmp_path / "model.safetensors").samefile(folder / "model.safetensors")
    assert all((p == 3).all() for p in af.load(tmp_path).parameters())


@pytest.mark.parametrize("background", [False, True])
def test_saver_keeps_one_save_under_way_and_the_values_of_its_step(tmp_path, model, background):
    with Saver(tmp_path, background=background) as saver:
        for step in range(1, 6):
            saver.check()
            saver.save(step, contents(model, step))
            contents(model, 99)
            saver.save(step, contents(model, step)) if not background else None
        saver.wait()
        assert saver.last == 5
        assert whole(tmp_path) == 5


def test_save_that_failed_in_the_background_is_heard_of_at_the_next_step(tmp_path, model, monkeypatch):
    with Saver(tmp_path, background=True) as saver:
        saver.save(1, contents(model, 1))
        saver.wait()
        monkeypatch.setattr(files, "DISK", BrokenDisk(5))
        saver.save(2, contents(model, 2))
        flying = saver._flying
        assert flying is not None
        assert flying.exception(timeout=10) is not None
        with pytest.raises(CheckpointError, match="No space left on device"):
            saver.check()
        saver.check()
        assert saver.last == 1
    monkeypatch.setattr(files, "DISK", QuickDisk())
    assert whole(tmp_path) == 1
