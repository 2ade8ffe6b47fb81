"""The queue of a study: workers that are killed, stopped or out of memory take down no more than their own job."""

import os
import signal
import sys
from collections import Counter

import pytest

from anyformer.errors import InputError, TrainingError
from anyformer.lab.engine.job import Job
from anyformer.lab.engine.queue import ATTEMPTS, Queue, Slot
from anyformer.lab.engine.train_job import run_job
from anyformer.train.checkpoint import newest
from tests.lab.small_study import children, found_by, is_running, job_of, variants_of, wait_until, write_base

STEPS = 60
ROOM = 8 * 2**20
"""KiB of memory that a worker may ask for."""
HUGE = {"vocab": 2**24, "width": 2**15}
"""Sizes that no machine of ours has room for."""


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    folder = tmp_path_factory.mktemp("queue")
    every = variants_of(write_base(folder, STEPS), variants=[{"name": "huge", "set": HUGE}])
    return folder, {each.name: each.run for each in every}


@pytest.fixture(scope="module")
def limited(made):
    """Workers that get no more than so much memory."""
    place = made[0] / "python"
    place.write_text(f'#!/bin/sh\nulimit -v {ROOM}\nexec {sys.executable} "$@"\n')
    place.chmod(0o755)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "executable", str(place))
        yield


@pytest.fixture(scope="module")
def happened(made, limited):
    """All events of five jobs on one worker: two that are killed, one out of memory, one that is stopped, and one besides."""
    folder, runs = made
    jobs = {
        name: job_of(runs["huge" if name == "huge" else "base"], folder / "runs" / name, name=name, seed=seed)
        for seed, name in enumerate(("killed", "doomed", "huge", "stopped", "besides"))
    }
    events, begun = [], Counter[str]()
    with Queue([Slot(device="cpu", threads=1)], folder / "logs") as queue:
        for event in queue.run(list(jobs.values())):
            events.append(event)
            begun[event.job.variant] += event.event == "started"
            if event.event == "progress" and event.done < STEPS:
                [worker] = children(os.getpid())
                match event.job.variant:
                    case "killed" if begun["killed"] == 1:
                        os.kill(worker, signal.SIGKILL)
                    case "doomed":
                        os.kill(worker, signal.SIGKILL)
                    case "stopped" if begun["stopped"] == 1:
                        os.kill(worker, signal.SIGTERM)
                    case _:
                        continue
                assert wait_until(lambda worker=worker: not is_running(worker))
        idle = list(queue.workers)
    return jobs, events, begun, [worker._process.returncode for worker in idle]


def last(happened, name):
    return next(event for event in reversed(happened[1]) if event.job.variant == name)


def alone(made, job: Job):
    """The same job that nothing happens to."""
    return run_job(Job.from_data({**job.to_data(), "folder": str(made[0] / "alone" / job.variant)}))


def test_job_whose_worker_is_killed_is_given_out_again_and_ends_the_same(made, happened):
    job, begun = happened[0]["killed"], happened[2]
    assert begun["killed"] == 2
    assert last(happened, "killed").event == "done"
    found = job.result()
    assert found is not None
    assert found.status == "finished"
    assert found_by(found) == found_by(alone(made, job))


def test_job_whose_worker_is_asked_to_stop_saves_and_is_given_out_again(made, happened):
    job, begun = happened[0]["stopped"], happened[2]
    assert begun["stopped"] == 2
    assert last(happened, "stopped").event == "done"
    found = job.result()
    assert found is not None
    assert found_by(found) == found_by(alone(made, job))


def test_job_whose_worker_dies_twice_failed_and_the_rest_finish(made, happened):
    jobs, _, begun, _ = happened
    assert begun["doomed"] == ATTEMPTS
    failed = last(happened, "doomed")
    assert failed.event == "failed"
    assert failed.error.startswith(f"its process ended 2 times with status -9; see {made[0] / 'logs'}")
    assert jobs["doomed"].result() is None
    besides = jobs["besides"].result()
    assert besides is not None
    assert besides.status == "finished"
    assert begun["besides"] == 1


def test_job_without_memory_is_marked_and_the_rest_finish(happened):
    jobs, _, begun, _ = happened
    found = jobs["huge"].result()
    assert found is not None
    assert found.status == "out of memory"
    assert "allocate" in found.reason
    # It took no worker down.
    assert begun["huge"] == 1
    assert last(happened, "huge").value["status"] == "out of memory"


def test_queue_leaves_no_process_and_no_worker_is_lost_from_its_sight(happened):
    assert children(os.getpid()) == []
    # The one that waited for work ended by itself when nobody was there to ask it.
    assert happened[3] == [0]
    ends = [event.job.variant for event in happened[1] if event.event in ("done", "failed")]
    assert sorted(ends) == ["besides", "doomed", "huge", "killed", "stopped"]


def test_queue_asks_a_new_worker_where_one_died_idle_and_stops_runs_in_good_order(made):
    """One queue, to start few workers: what it says of a request that can't be, of a death, and what an interrupt leaves."""
    folder, runs = made
    job = job_of(runs["base"], folder / "runs" / "interrupted", seed=9)

    wrong = {**job.to_data(), "config": {**job.config, "modle": {}}}

    def interrupted(queue):
        with queue:
            with pytest.raises(TrainingError, match="KeyError: 'nonsense'"):
                queue.ask({"do": "nonsense"})
            with pytest.raises(InputError, match="did you mean"):
                queue.ask({"do": "calibrate", "job": wrong, "seconds": 0.1})
            [worker] = children(os.getpid())
            os.kill(worker, signal.SIGKILL)
            assert wait_until(lambda: not is_running(worker))
            assert queue.ask({"do": "check", "jobs": []})[0]["wrong"] == {}
            for event in queue.run([job]):
                if event.event == "progress":
                    raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted(Queue([Slot(device="cpu", threads=1)], folder / "more"))
    assert children(os.getpid()) == []
    # It was asked to stop, and saved the step that it was at.
    saved = newest(folder / "runs" / "interrupted")
    assert saved is not None
    assert 0 < saved.step < STEPS
    assert job.result() is None
    found = run_job(job)
    assert found_by(found) == found_by(alone(made, job))
