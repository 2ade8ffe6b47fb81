"""Stopping: the first signal asks, the second is at once, and the handlers of before come back."""

import os
import signal
import threading

import pytest

from anyformer.train.signals import StopSignals
from tests.train.faulty import forked


@pytest.mark.parametrize(("number", "status"), [(signal.SIGTERM, 143), (signal.SIGINT, 130)])
def test_first_signal_asks_for_a_stop_and_handlers_come_back(number, status, capfd):
    before = [signal.getsignal(each) for each in (signal.SIGTERM, signal.SIGINT)]
    with StopSignals() as stopping:
        assert not stopping.requested
        assert stopping.status == 0
        os.kill(os.getpid(), number)
        assert stopping.requested
        assert stopping.status == status
        # The same Ctrl-C, passed on by whoever started this process.
        os.kill(os.getpid(), number)
    assert [signal.getsignal(each) for each in (signal.SIGTERM, signal.SIGINT)] == before
    assert capfd.readouterr().err == "anyformer: stopping after this step; once more to stop at once\n"


def test_second_interrupt_is_at_once():
    with StopSignals(quiet=True, apart=0.0) as stopping:
        stopping.request()
        with pytest.raises(KeyboardInterrupt):
            os.kill(os.getpid(), signal.SIGINT)


def test_second_term_ends_the_process():
    def work():
        with StopSignals(quiet=True, apart=0.0):
            os.kill(os.getpid(), signal.SIGTERM)
            os.kill(os.getpid(), signal.SIGTERM)

    status = forked(work)
    assert os.WIFSIGNALED(status)
    assert os.WTERMSIG(status) == signal.SIGTERM


def test_stopping_in_another_thread_installs_nothing():
    seen = []

    def work():
        before = signal.getsignal(signal.SIGINT)
        with StopSignals() as stopping:
            seen.append(signal.getsignal(signal.SIGINT) is before)
            stopping.request(signal.SIGINT)
            seen.append(stopping.status)

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert seen == [True, 130]
