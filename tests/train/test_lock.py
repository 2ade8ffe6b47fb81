"""The lock of a run folder: one trainer at a time, whoever dies."""

import errno
import fcntl
import os
import signal
import socket
import warnings

import pytest

from anyformer.errors import TrainingError
from anyformer.train.lock import LOCK_FILE, Lock
from tests.train.faulty import forked


def test_lock_refuses_a_second_trainer_and_names_the_first(tmp_path):
    with (
        Lock(tmp_path),
        pytest.raises(TrainingError, match=rf"process {os.getpid()} on {socket.gethostname()} \(since 20.*run.folder"),
        Lock(tmp_path),
    ):
        pass
    with Lock(tmp_path):
        pass


def test_lock_of_a_killed_process_is_free_at_once(tmp_path):
    def hold():
        Lock(tmp_path).__enter__()
        os.kill(os.getpid(), signal.SIGKILL)

    for _ in range(3):
        assert os.WTERMSIG(forked(hold)) == signal.SIGKILL
        with Lock(tmp_path):
            pass


def test_lock_is_not_held_by_a_child_that_outlives_its_parent(tmp_path):
    """A helper that was forked while the lock was held must not keep it."""
    begin, end = os.pipe(), os.pipe()

    def parent():
        with Lock(tmp_path), warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)
            if os.fork() == 0:
                os.write(begin[1], b"x")
                os.read(end[0], 1)
                os._exit(0)
            os.kill(os.getpid(), signal.SIGKILL)

    forked(parent)
    os.read(begin[0], 1)
    try:
        with Lock(tmp_path):
            pass
    finally:
        os.write(end[1], b"x")
        for handle in (*begin, *end):
            os.close(handle)


def test_two_trainers_never_write_at_the_same_time(tmp_path):
    """R11: many processes want the lock; what each writes while it holds it is never mixed with another's."""
    log = os.open(tmp_path / "log", os.O_WRONLY | os.O_CREAT | os.O_APPEND)

    def trainer():
        done = 0
        while done < 5:
            try:
                with Lock(tmp_path):
                    os.write(log, f"begin {os.getpid()}\n".encode())
                    os.sched_yield()
                    os.write(log, f"end {os.getpid()}\n".encode())
                    done += 1
            except TrainingError:
                os.sched_yield()

    children = []
    for _ in range(4):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)
            child = os.fork()
        if child == 0:
            try:
                trainer()
                os._exit(0)
            except BaseException:
                os._exit(1)
        children.append(child)
    assert [os.waitpid(child, 0)[1] for child in children] == [0] * 4
    lines = (tmp_path / "log").read_text().splitlines()
    os.close(log)
    assert len(lines) == 40
    mixed = [pair for pair in zip(lines[::2], lines[1::2], strict=True) if pair[0].split()[1] != pair[1].split()[1]]
    assert mixed == []
    assert all(line.startswith("begin") for line in lines[::2])


@pytest.mark.parametrize("text", [b"", b"{}", b"nonsense", b'{"pid": "x"}', b"[" * 5000])
def test_lock_whose_holder_wrote_nonsense_is_refused_in_plain_words(tmp_path, text):
    with Lock(tmp_path):
        (tmp_path / LOCK_FILE).write_bytes(text)
        with pytest.raises(TrainingError, match="another process is training here"), Lock(tmp_path):
            pass


def test_lock_on_a_file_system_without_locks_warns(tmp_path, monkeypatch):
    def no_locks(handle: int, what: int) -> None:
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(fcntl, "flock", no_locks)
    with pytest.warns(UserWarning, match=r"keeps no locks \(No locks available\)"), Lock(tmp_path):
        pass
