"""Writing that a kill can't break: the process is stopped, and the disk filled, at each call in turn."""

import errno
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from anyformer import files
from anyformer.errors import InputError, fault_of, file_fault
from anyformer.files import NewFolder, replace_file, settle

SAVE = """
import os, signal, sys
from pathlib import Path
from anyformer import files

class Deadly(files.Disk):
    calls = 0
    def count(self):
        Deadly.calls += 1
        if Deadly.calls == int(sys.argv[2]):
            os.kill(os.getpid(), signal.SIGKILL)
    def sync(self, path): self.count(); super().sync(path)
    def rename(self, source, target): self.count(); super().rename(source, target)
    def remove(self, path): self.count(); super().remove(path)

files.DISK = Deadly()
with files.NewFolder(Path(sys.argv[1]), "ab") as new:
    for name in "ab":
        (new.path / name).write_text(sys.argv[3])
    new.commit()
print(Deadly.calls)
"""


def content(folder: Path) -> set[str]:
    return {file.read_text() for file in folder.iterdir()}


def save(place: Path, text: str, kill_at: int = 0) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", SAVE, str(place), str(kill_at), text], capture_output=True, text=True, timeout=900
    )


def test_folder_killed_at_every_call_is_the_old_one_or_the_new_one(tmp_path):
    place = tmp_path / "run"
    assert save(place, "old").returncode == 0
    calls = int(save(place, "old").stdout)
    assert calls >= 8
    seen = []
    for kill_at in range(1, calls + 1):
        done = save(place, f"new {kill_at}", kill_at)
        assert done.returncode == -9, done.stderr
        before = content(settle(place))
        assert len(before) == 1, f"a mixture after a kill at call {kill_at}: {before}"
        seen.append(f"new {kill_at}" in before)
    # Early kills leave the old folder, late ones the new: the test reached both sides.
    assert {True, False} == set(seen)
    assert seen == sorted(seen)
    assert save(place, "last").returncode == 0
    assert content(place) == {"last"}
    assert os.listdir(tmp_path) == ["run"], "what the killed processes left has been removed"


class Failing(files.Disk):
    """A disk on which one call fails."""

    def __init__(self, fail_at: int) -> None:
        self.calls, self.fail_at = 0, fail_at

    def _count(self) -> None:
        self.calls += 1
        if self.calls == self.fail_at:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    def sync(self, path: Path) -> None:
        self._count()
        super().sync(path)

    def rename(self, source: Path, target: Path) -> None:
        self._count()
        super().rename(source, target)


def fill(place: Path, text: str) -> None:
    with NewFolder(place, "ab") as new:
        (new.path / "a").write_text(text)
        new.commit()


def test_folder_on_a_full_disk_stays_as_it_was(tmp_path, monkeypatch):
    place = tmp_path / "run"
    fill(place, "old")
    disk = Failing(0)
    monkeypatch.setattr(files, "DISK", disk)
    fill(place, "old")
    for fail_at in range(1, disk.calls + 1):
        monkeypatch.setattr(files, "DISK", Failing(fail_at))
        with pytest.raises(OSError, match="space"):
            fill(place, "new")
        monkeypatch.setattr(files, "DISK", files.Disk())
        # After the last rename only a sync can fail: the new folder is then in its place already.
        assert content(settle(place)) in ({"old"}, {"new"})
        fill(place, "old")
    assert os.listdir(tmp_path) == ["run"]


def test_folder_left_by_an_error_is_removed_and_the_old_one_stays(tmp_path):
    place = tmp_path / "deep" / "run"
    fill(place, "old")

    def stumble() -> None:
        with NewFolder(place, "ab") as new:
            (new.path / "a").write_text("half")
            raise KeyError

    with pytest.raises(KeyError):
        stumble()
    assert content(place) == {"old"}
    assert os.listdir(place.parent) == ["run"]


def test_folder_of_a_living_process_is_not_swept(tmp_path):
    place = tmp_path / "run"
    other = tmp_path / f".run.tmp-{os.getppid()}"
    other.mkdir()
    fill(place, "mine")
    assert other.is_dir()
    assert content(place) == {"mine"}


def test_file_that_fails_to_be_written_leaves_the_old_one(tmp_path):
    place = tmp_path / "spec.toml"
    place.write_text("old")

    def half(beside: Path) -> None:
        beside.write_text("ha")
        raise OSError(errno.ENOSPC, "no space left")

    with pytest.raises(OSError, match="no space") as info:
        replace_file(place, half)
    assert info.value.filename == str(place)
    assert (place.read_text(), os.listdir(tmp_path)) == ("old", ["spec.toml"])
    replace_file(place, lambda beside: beside.write_text(json.dumps("new")))
    assert (place.read_text(), os.listdir(tmp_path)) == ('"new"', ["spec.toml"])


@pytest.mark.parametrize("name", ["", ".", "..", "runs/.."])
def test_folder_without_a_name_of_its_own_is_refused(name):
    with pytest.raises(InputError, match="names no new folder"):
        NewFolder(name, "ab")


def test_folder_that_holds_something_else_is_never_replaced(tmp_path):
    place = tmp_path / "thesis"
    place.mkdir()
    (place / "chapter1.tex").write_text("three years")
    with pytest.raises(InputError, match=r"holds chapter1\.tex, which would be lost"):
        fill(place, "new")
    assert content(place) == {"three years"}
    (tmp_path / "file").write_text("x")
    with pytest.raises(InputError, match="is a file"):
        fill(tmp_path / "file", "new")
    with pytest.raises(InputError, match=r"can't be written: .*file: File exists"):
        fill(tmp_path / "file" / "run", "new")


def test_folder_that_gets_something_else_meanwhile_is_not_replaced(tmp_path):
    place = tmp_path / "run"
    fill(place, "old")

    def meanwhile() -> None:
        with NewFolder(place, "ab") as new:
            (new.path / "a").write_text("new")
            (place / "notes").write_text("mine")
            new.commit()

    with pytest.raises(InputError, match="holds notes"):
        meanwhile()
    assert content(place) == {"old", "mine"}


def test_settle_leaves_a_folder_alone_whose_process_is_at_work(tmp_path):
    place = tmp_path / "m[1]*"
    for owner in (os.getpid(), 2**22 + 1):
        (tmp_path / f".{place.name}.new-{owner}").mkdir()
        (tmp_path / f".{place.name}.new-{owner}" / "a").write_text(str(owner))
    assert content(settle(place)) == {str(2**22 + 1)}
    assert (tmp_path / f".{place.name}.new-{os.getpid()}").is_dir()


def test_folder_behind_a_link_is_replaced_and_the_link_stays(tmp_path):
    fill(tmp_path / "real", "old")
    (tmp_path / "link").symlink_to(tmp_path / "real")
    fill(tmp_path / "link", "new")
    assert (tmp_path / "link").is_symlink()
    assert content(tmp_path / "real") == {"new"}
    assert sorted(os.listdir(tmp_path)) == ["link", "real"]


def test_file_can_be_read_by_whom_any_new_file_can(tmp_path):
    (tmp_path / "plain").write_text("x")

    def private(beside: Path) -> None:
        beside.unlink()
        os.close(os.open(beside, os.O_CREAT | os.O_WRONLY, 0o600))

    replace_file(tmp_path / "file", private)
    assert (tmp_path / "file").stat().st_mode == (tmp_path / "plain").stat().st_mode


FAULTS = [
    (errno.ENOSPC, "make room"), (errno.EDQUOT, "make room"), (errno.EACCES, "no permission"), (errno.EPERM, "no permission"),
    (errno.EROFS, "mount it for writing"), (errno.EIO, "the disk reports a fault"),
]  # fmt: skip


@pytest.mark.parametrize(("number", "advice"), FAULTS)
def test_file_fault_says_which_file_what_happened_and_advice_that_fits(number, advice):
    said = file_fault(OSError(number, os.strerror(number), "runs/x/model.safetensors"))
    assert said.startswith(f"runs/x/model.safetensors: {os.strerror(number)}; ")
    assert [words for words in dict.fromkeys(words for _, words in FAULTS) if words in said] == [advice]


def test_file_fault_without_a_name_takes_that_of_the_place():
    assert file_fault(OSError(errno.ENOSPC, "No space"), "a/b").startswith("a/b: No space; ")
    assert file_fault(OSError("odd")) == "odd"


def test_file_fault_told_in_words_by_another_library_is_known():
    found = fault_of("Error while serializing: I/O error: No space left on device (os error 28)", "x")
    assert (found.errno, found.filename) == (errno.ENOSPC, "x")
    assert fault_of("Permission denied", "x").errno == errno.EACCES
    assert fault_of("invalid header", "x") is None


class FullDisk(files.Disk):
    """A disk that fails at one kind of call, in the way that the kernel does: a write knows no name."""

    def __init__(self, call: str, number: int) -> None:
        self.call, self.number = call, number

    def write(self, handle: int, piece: files.Bytes) -> None:
        if self.call == "write":
            raise OSError(self.number, os.strerror(self.number))
        super().write(handle, piece)

    def sync(self, path: Path) -> None:
        if self.call == "sync":
            raise OSError(self.number, os.strerror(self.number))
        super().sync(path)


@pytest.mark.parametrize("call", ["write", "sync"])
def test_new_file_that_fails_names_itself(tmp_path, monkeypatch, call):
    monkeypatch.setattr(files, "DISK", FullDisk(call, errno.ENOSPC))
    with pytest.raises(OSError, match="No space") as info:
        files.write_new(tmp_path / "weights", [b"x"])
    assert info.value.filename == str(tmp_path / "weights")


def test_new_folder_where_permission_is_missing_says_so_and_never_to_make_room(tmp_path, monkeypatch):
    class Closed(files.Disk):
        def folder(self, path: Path) -> None:
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(path))

    monkeypatch.setattr(files, "DISK", Closed())
    with (
        pytest.raises(InputError, match="Permission denied; this user has no permission there") as info,
        NewFolder(tmp_path / "run", {"a"}),
    ):
        pass
    assert "make room" not in str(info.value)
