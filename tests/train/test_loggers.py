"""Loggers: what each service is told, and that none of them can end a run."""

import sys

import pytest

from anyformer.errors import CapabilityError, InputError
from anyformer.train.loggers import LoggerGroup, Service, name_there, scalars, services

STEP = {
    "step": 3, "stage": 0, "loss": 1.5, "terms": {"z": 0.25}, "gradient_norm": 0.5, "rate": 1.0, "tokens": 96,
    "seconds": 2.0, "batch": "ab", "skipped": False, "memory": 7,
}  # fmt: skip
LOOK = {"step": 3, "loss": 1.25, "figures": {"accuracy": 0.5}, "bits_per_byte": None, "final": True}


class Notes:
    """Stands for any package, class or run: every call is noted, every attribute is another one like it."""

    def __init__(self, calls, name=""):
        self._calls, self._name = calls, name

    def __getattr__(self, name):
        return Notes(self._calls, f"{self._name}.{name}".lstrip("."))

    def __call__(self, *args, **kwargs):
        self._calls.append((self._name, args, kwargs))
        return self


@pytest.fixture
def packages(monkeypatch):
    """Every package that a service may ask for, as something that notes what it is asked."""
    calls = []
    for name in [*Service.kinds(), "torch.utils.tensorboard"]:
        monkeypatch.setitem(sys.modules, name, Notes(calls, name))
    return calls


@pytest.mark.parametrize("kind", Service.kinds())
def test_service_told_of_a_run_passes_on_numbers_and_samples(tmp_path, packages, kind):
    told = LoggerGroup(services([kind], tmp_path))
    told.begin("mine", {"run": {"seed": 3}}, 0)
    told.log("step", STEP)
    told.log("look", LOOK)
    told.log("sample", {"step": 3, "text": "a <b> c"})
    told.log("save", {"step": 3, "seconds": 0.5})
    told.end()
    written = repr(packages)
    for piece in ("train/loss", "1.5", "train/terms/z", "valid/figures/accuracy", "train/skipped", "c'"):
        assert piece in written, piece
    assert "final" not in written
    last = packages[-1][0]
    assert last.endswith((".close", ".finish"))


@pytest.mark.parametrize("kind", Service.kinds())
def test_service_without_its_package_is_one_error_that_names_it(tmp_path, monkeypatch, kind):
    monkeypatch.setitem(sys.modules, Service.named(kind).package, None)
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", None)
    with pytest.raises(CapabilityError, match=rf"{kind} needs .*pip install {Service.named(kind).package}"):
        LoggerGroup(services([kind], tmp_path)).begin("mine", {}, 0)


@pytest.mark.parametrize("kind", ["wandb", "trackio"])
def test_service_of_a_resumed_run_goes_on_under_the_same_name(tmp_path, packages, kind):
    for step in (0, 4, 0):
        told = LoggerGroup(services([kind], tmp_path))
        told.begin("mine", {}, step)
        told.end()
    names = [kwargs.get("id", kwargs["name"]) for name, _, kwargs in packages if name == f"{kind}.init"]
    assert names[0] == names[1]
    # Begun anew, it is another run.
    assert names[2] != names[0]


def test_services_of_unknown_name_are_refused_with_the_right_one(tmp_path):
    with pytest.raises(InputError, match="'tensorbord' is no logger; did you mean 'tensorboard'"):
        services(["tensorbord"], tmp_path)


def test_services_named_twice_are_one(tmp_path):
    assert len(services(["wandb", "wandb"], tmp_path)) == 1


def test_name_there_is_kept_and_drawn_anew_for_a_fresh_run(tmp_path):
    first = name_there(tmp_path, fresh=True)
    assert name_there(tmp_path, fresh=False) == first
    assert name_there(tmp_path, fresh=True) != first


def test_scalars_of_an_event_have_paths_and_leave_texts_out():
    found = dict(scalars(STEP, "train"))
    assert found["train/terms/z"] == 0.25
    assert found["train/skipped"] == 0.0
    assert not {"train/batch", "train/step", "train/stage"} & found.keys()


class Mine:
    """A logger of a user's, which may fail."""

    def __init__(self, fails=""):
        self.fails, self.heard = fails, []

    def begin(self, name, config, step):
        self._hear("begin")

    def log(self, event, values):
        self._hear(event)

    def end(self):
        self._hear("end")

    def _hear(self, what):
        self.heard.append(what)
        if what == self.fails:
            raise OSError("the line is dead")


def test_told_logger_that_fails_in_the_middle_is_warned_of_once_and_left_out():
    bad, good = Mine("step"), Mine()
    told = LoggerGroup([bad, good])
    told.begin("mine", {}, 0)
    with pytest.warns(UserWarning, match=r"Mine failed and is left out.*OSError: the line is dead"):
        told.log("step", STEP)
    # A second warning would be an error here.
    told.log("step", STEP)
    told.end()
    assert bad.heard == ["begin", "step"]
    assert good.heard == ["begin", "step", "step", "end"]


def test_told_logger_that_fails_at_the_end_does_not_keep_others_from_ending():
    bad, good = Mine("end"), Mine()
    told = LoggerGroup([bad, good])
    told.begin("mine", {}, 0)
    with pytest.warns(UserWarning, match="left out"):
        told.end()
    assert good.heard[-1] == "end"


def test_told_loggers_that_cannot_begin_are_named_together_and_others_are_ended():
    good = Mine()
    with pytest.raises(CapabilityError, match=r"(?s)Mine can't begin: OSError.*Mine can't begin"):
        LoggerGroup([Mine("begin"), good, Mine("begin")]).begin("mine", {}, 0)
    assert good.heard == ["begin", "end"]


def test_tensorboard_itself_reads_what_was_written(tmp_path):
    pytest.importorskip("tensorboard", reason="tensorboard is not installed")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    for step in (0, 2):
        told = LoggerGroup(services(["tensorboard"], tmp_path))
        told.begin("mine", {"run": {}}, step)
        for i in range(step + 1, step + 4):
            told.log("step", STEP | {"step": i, "loss": float(i + step)})
        told.end()
    read = EventAccumulator(str(tmp_path / "tensorboard")).Reload()
    # Step 3 was written twice: what came after the checkpoint is forgotten.
    assert [(event.step, event.value) for event in read.Scalars("train/loss")] == [
        (1, 1),
        (2, 2),
        (3, 5),
        (4, 6),
        (5, 7),
    ]
