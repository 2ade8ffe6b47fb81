"""Quickstart as a whole, on a tiny text and with few steps."""

import itertools
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from safetensors import SafetensorError
from safetensors.torch import save_file

import anyformer as af
from anyformer.errors import DataError, SpecError
from anyformer.lab import quickstart as quickstarting
from anyformer.lab.quickstart import Quickstart, compare, earlier, read_result
from anyformer.lab.quickstart_plan import SPEC, Budget, Plan
from anyformer.train.perplexity import score
from anyformer.train.train_step import TrainStep
from tests.cli.command import run

SMALL = {"width": 16, "depth": 1, "context": 32, "vocab": 300, "attention.heads": 2, "attention.kv_heads": 1}
FLAGS = [flag for name, value in SMALL.items() for flag in ("--set", f"{name}={value}")]
TEXT = "".join(f"line {i}: the quick brown fox jumps over {i % 7} lazy dogs\n" for i in range(400))
FILES = ["loss.png", "metrics.jsonl", "model.safetensors", "spec.toml", "tokenizer.json"]


@pytest.fixture
def here(tmp_path, monkeypatch):
    """An empty folder with a text in it, as the place where commands run."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "foxes.txt").write_text(TEXT)
    return tmp_path


def quickstart(**more):
    made = Quickstart(Plan(**({"text": "foxes.txt", "budget": Budget(steps=12), "changes": SMALL} | more)))
    with made.folder:
        made.read()
        made.prepare()
        records = list(made.train())
        made.measure()
        made.keep()
    return made, records


class Clock:
    """Time passes only when somebody asks for it, and when it is let pass."""

    def __init__(self):
        self.now = 100.0

    def __call__(self):
        self.now += 0.5
        return self.now


def test_quickstart_by_the_clock_counts_getting_ready_looks_and_the_last_measurement(here, monkeypatch):
    clock = Clock()
    made = Quickstart(Plan(text="foxes.txt", budget=Budget(seconds=600.0), changes=SMALL), clock=clock)
    glimpse, score_ids = Quickstart._quick_eval, quickstarting.score_ids

    def slow(self):
        clock.now += 4.0
        return glimpse(self)

    def measured(model, documents, **more):
        if "bytes" in more:
            clock.now += 4.0 * sum(2 * len(ids) for ids in documents) / (16 * 33)
        return score_ids(model, documents, **more)

    monkeypatch.setattr(Quickstart, "_quick_eval", slow)
    monkeypatch.setattr(quickstarting, "score_ids", measured)
    with made.folder:
        made.read()
        made.prepare()
        clock.now += 100.0
        records = list(made.train())
        made.measure()
        made.keep()
    spent = clock.now - made.began
    # A look may begin just before the end.
    assert 570.0 < spent < 610.0
    assert records[-1].progress == 1.0
    assert not made.late


def test_quickstart_whose_time_is_gone_before_it_begins_still_trains_and_says_so(here):
    clock = Clock()
    made = Quickstart(Plan(text="foxes.txt", budget=Budget(seconds=20.0), changes=SMALL), clock=clock)
    with made.folder:
        made.read()
        made.prepare()
        clock.now += 100.0
        assert len(list(made.train())) > 1
        made.measure()
        made.keep()
    assert made.late
    assert made.steps_seconds == 5.0


def test_quickstart_default_is_a_modern_decoder_of_one_to_three_million_parameters():
    spec = Plan().spec()
    assert 1e6 < spec.count().params < 3e6
    kinds = (spec.norm.leaf.kind, spec.norm.placement, spec.position.kind, spec.ffn.kind)
    assert kinds == ("rmsnorm", "pre", "rope", "swiglu")
    assert 1 < spec.attention.kv_heads < spec.attention.heads


def test_quickstart_leaves_a_folder_that_loads_and_scores_the_same(here):
    made, records = quickstart()
    place = made.plan.place
    assert sorted(os.listdir(place)) == FILES
    assert os.listdir("runs") == [place.name]
    model, tokenizer = af.load(place), af.tokenizer(place)
    assert model.spec == af.spec(place) == made.spec
    again = score(model, tokenizer, [d.text for d in made.corpus.held_out])
    assert again.nats_per_token == pytest.approx(made.result.loss, rel=1e-6)
    assert read_result(place) == made.result
    steps = [json.loads(line) for line in (place / "metrics.jsonl").read_text().splitlines()]
    assert [s["loss"] for s in steps if s["event"] == "step"] == [r.loss for r in records]


def test_quickstart_learns_and_its_figures_hang_together(here):
    made, records = quickstart(budget=Budget(steps=60))
    result = made.result
    assert records[-1].loss < 0.6 * records[0].loss
    assert result.bits_per_byte < result.unigram_bits_per_byte
    tokens = sum(map(len, made.held_out)) - len(made.held_out)
    size = sum(len(d.text.encode()) for d in made.corpus.held_out)
    assert result.bits_per_byte == pytest.approx(result.loss * tokens / size / 0.6931471805599453)
    assert result.perplexity == pytest.approx(2.718281828459045**result.loss)
    assert result.params == made.spec.count().params == sum(p.numel() for p in made.model.parameters())


@pytest.mark.parametrize("more", [{}, {"block.dropout": 0.3}, {"layers.0.attention.dropout": 0.3}])
def test_quickstart_by_steps_repeats_to_the_bit(here, more):
    torch.manual_seed(time.time_ns())
    ends = [quickstart(budget=Budget(steps=4), out=f"runs/{i}", changes=SMALL | more)[0] for i in range(2)]
    for a, b in zip(ends[0].model.parameters(), ends[1].model.parameters(), strict=True):
        assert torch.equal(a, b)
    assert list(ends[0].sample(20)) == list(ends[1].sample(20))


def test_quickstart_of_another_seed_differs(here):
    first, second = (quickstart(budget=Budget(steps=2), seed=s, out=f"runs/{s}")[0] for s in (0, 1))
    assert not torch.equal(first.model.embed.tokens.weight, second.model.embed.tokens.weight)


def test_quickstart_places_each_set_of_changes_in_its_own_folder():
    assert Plan().place == Path("runs/quickstart")
    assert Plan(changes={"position.kind": "alibi"}).place == Path("runs/quickstart+position=alibi")
    assert Plan(changes={"ffn.kind": "relu"}, seed=3).place == Path("runs/quickstart+ffn=relu+seed=3")
    assert Plan(text="a/b c.txt.gz").place == Path("runs/quickstart-b-c")
    assert Plan(text="position=alibi.txt").place != Plan(changes={"position.kind": "alibi"}).place
    # What a name can't hold is told apart by a few more letters.
    patterns = ["causal & window(8)", "causal | window(8)", "causal - window(8)"]
    names = {Plan(changes={"attention.pattern": pattern}).place.name for pattern in patterns}
    assert len(names) == 3
    assert all(name.startswith("quickstart+attention.pattern=causal-window-8-") for name in names)
    long = [Plan(changes={f"name{i}": i + j for i in range(40)}).place.name for j in range(2)]
    assert long[0] != long[1]
    assert len(long[0]) < 130
    assert Plan(changes={"ffn.kind": "relu"}).base == Plan().place


def test_quickstart_refuses_what_can_not_predict_the_next_token():
    with pytest.raises(SpecError) as info:
        Plan(changes={"topology": "encoder", "head": {"kind": "none"}}).spec()
    assert [p.split(":")[0] for p in info.value.problems] == ["topology", "head.kind"]


def test_quickstart_on_a_text_shorter_than_a_context_says_both_numbers(here):
    Path("short.txt").write_text("just a few words")
    with pytest.raises(DataError, match=r"short\.txt: has \d+ tokens to learn from, and one row takes 32"):
        quickstart(text="short.txt")
    assert not list(Path("runs").iterdir())


def test_quickstart_run_again_replaces_its_own_folder(here):
    first, _ = quickstart(budget=Budget(steps=2))
    second, _ = quickstart(budget=Budget(steps=3))
    assert read_result(first.plan.place) == second.result
    assert os.listdir("runs") == [first.plan.place.name]


def test_comparison_needs_the_same_text_and_two_folders(here):
    first, _ = quickstart(budget=Budget(steps=3), out="runs/a")
    second, _ = quickstart(budget=Budget(steps=3), out="runs/b", changes=SMALL | {"position.kind": "alibi"})
    compared = compare(Path("runs/a"), Path("runs/b"))
    assert [a.name for a, _ in compared.difference.axes] == ["position"]
    assert compared.fair
    assert compared.gain == pytest.approx(1 - second.result.bits_per_byte / first.result.bits_per_byte)
    Path("other.txt").write_text(TEXT.replace("fox", "cat"))
    quickstart(budget=Budget(steps=3), out="runs/c", text="other.txt")
    assert compare(Path("runs/a"), Path("runs/c")) is None
    assert compare(Path("runs/none"), Path("runs/a")) is None
    # Without a plain run, the first one on the same text is what a run is compared with.
    assert earlier(Path("runs/quickstart"), Path("runs/b")) == Path("runs/a")
    assert earlier(Path("runs/b"), Path("runs/a")) == Path("runs/b")
    assert earlier(Path("runs/quickstart"), Path("runs/c")) is None


def test_result_with_a_figure_that_is_none_is_no_result(here):
    made, _ = quickstart(budget=Budget(steps=2))
    assert read_result(made.plan.place) is not None
    file = made.plan.place / "metrics.jsonl"
    text = file.read_text()
    file.write_text(text.replace(f'"bits_per_byte": {made.result.bits_per_byte}', '"bits_per_byte": null'))
    assert read_result(made.plan.place) is None


def test_command_shows_text_model_steps_result_sample_and_folder(here, capsys):
    ran = run(capsys, "quickstart", "--text", "foxes.txt", "--steps", "20", "--out", "runs/foxes", *FLAGS)
    assert (ran.status, ran.err) == (0, "")
    for wanted in (
        "foxes.txt: 19.0 kB to learn from",
        "byte-level BPE",
        "tokens/s",
        "gzip -9",
        "this model",
        "perplexity",
        "Kept in runs/",
    ):
        assert wanted in ran.out
    assert "\x1b" not in ran.out
    assert max(map(len, ran.out.split("this model")[0].splitlines())) <= 100


def test_command_run_a_second_time_with_a_change_compares_itself(here, capsys):
    base = ["quickstart", "--text", "foxes.txt", "--set", "width=32"]
    assert "Beside" not in run(capsys, *base, "--steps", "6").out
    out = run(capsys, *base, "--steps", "6", "--position", "alibi", "--ffn", "relu").out
    assert "Beside quickstart-foxes+width=32: 2 axes differ" in out
    assert "bits per byte" in out.split("Beside")[1]
    assert "may be chance" in out
    names = ["quickstart-foxes+ffn=relu+position=alibi+width=32", "quickstart-foxes+width=32"]
    assert sorted(os.listdir("runs")) == names
    out = run(capsys, *base, "--steps", "3", "--position", "alibi", "--ffn", "relu").out
    assert "holds a run (6 steps" in out
    assert "different budgets" in out
    assert "may be chance" not in out


def test_command_gives_its_result_as_json_alone(here, capsys):
    ran = run(capsys, "quickstart", "--text", "foxes.txt", "--steps", "3", "--json", *FLAGS)
    assert ran.json["steps"] == 3
    assert ran.json["bits_per_byte"] > 0
    assert sorted(os.listdir(ran.json["folder"])) == FILES


@pytest.mark.parametrize(
    ("flags", "status", "message"),
    [
        (["--text", "nowhere.txt"], 2, "nowhere.txt: there is no such file"),
        (["--text", "empty.txt"], 2, "empty.txt: is empty"),
        (["--text", "latin.txt"], 2, "latin.txt: is not UTF-8 text: byte 3"),
        (["--text", "short.txt"], 2, "short.txt: has"),
        (["--text", "."], 2, "is a directory"),
        (["--position", "alibbi"], 2, "did you mean 'alibi'?"),
        (["--set", "width"], 2, "'width' is not NAME=VALUE"),
        (["--set", "widht=32"], 2, "did you mean 'width'?"),
        (["--set", "topology=encoder"], 2, "can't predict the next token"),
        (["--set", "vocab=100"], 2, "vocab: 100 is less than 257"),
        (["--set", "context=1"], 2, "context: 1 leaves nothing to predict"),
        (["--seed", str(2**70)], 2, "is not from 0 to 2^63 - 1"),
        (
            [
                "--text",
                "foxes.txt",
                "--set",
                "width=1000000",
                "--set",
                "attention.heads=1",
                "--set",
                "attention.kv_heads=1",
            ],
            1,
            "not enough memory",
        ),
        (["--minutes", "0"], 2, "0 is not above 0"),
        (["--minutes", "1", "--steps", "2"], 2, "not allowed with"),
        (["--text", "foxes.txt", "--steps", "2", "--device", "abacus"], 1, "device 'abacus' can't be used here"),
        (["--text", "foxes.txt", "--steps", "2", "--device", "cuda:99"], 1, "device 'cuda:99' can't be used here"),
        (["--steps", "many"], 2, "'many' is not a whole number"),
        (["--postion", "alibi"], 2, "did you mean '--position'?"),
        (["--text", "foxes.txt", "--steps", "2", "--out", "foxes.txt/run"], 2, "foxes.txt/run: can't be written"),
        (["--text", "foxes.txt", "--steps", "2", "--out", "locked"], 2, "locked: is a file"),
        (["--text", "foxes.txt", "--steps", "2", "--out", "."], 2, "names no new folder"),
        (["--text", "foxes.txt", "--steps", "2", "--out", "thesis"], 2, "holds chapter1, which would be lost"),
    ],
)
def test_command_with_bad_input_says_so_and_leaves_nothing(here, capsys, flags, status, message):
    Path("empty.txt").write_text("")
    Path("latin.txt").write_bytes(b"abc\xe9 def")
    Path("short.txt").write_text("a b c d e f")
    Path("locked").write_text("a file where a folder should be")
    Path("thesis").mkdir()
    Path("thesis/chapter1").write_text("three years")
    before = sorted(os.listdir(here))
    ran = run(capsys, "quickstart", *flags)
    assert (ran.status, ran.out.count("Traceback")) == (status, 0)
    assert message in ran.err
    assert [name for name in os.listdir(here) if name not in before] in ([], ["runs"])
    assert not (here / "runs").exists() or not os.listdir(here / "runs")


def command(*flags: str) -> list[str]:
    return [sys.executable, "-m", "anyformer", "quickstart", "--text", "foxes.txt", *FLAGS, *flags]


def started(launch, here, *flags: str) -> subprocess.Popen[str]:
    """A run that has begun to train."""
    environment = os.environ | {"PYTHONPATH": str(Path(af.__file__).parents[1])}
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    process = launch(command(*flags), cwd=here, env=environment, text=True, **pipes)
    deadline = time.monotonic() + 600
    while not list((here / "runs").glob(".*.tmp-*/metrics.jsonl")):
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < deadline
        time.sleep(0.05)
    return process


@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_command_stopped_in_the_middle_leaves_the_earlier_run_usable(launch, here, how):
    made, _ = quickstart(budget=Budget(steps=2))
    place = made.plan.place
    before = {file.name: file.read_bytes() for file in place.iterdir()}
    process = started(launch, here, "--minutes", "5")
    process.send_signal(how)
    _, err = process.communicate(timeout=900)
    assert {file.name: file.read_bytes() for file in place.iterdir()} == before
    af.load(place)
    if how == signal.SIGINT:
        assert (process.returncode, "Traceback" in err) == (130, False)
        assert len(err.strip().splitlines()) == 1
        assert f"stopped; {place} is as it was before" in err
        assert os.listdir("runs") == [place.name]
    elif how == signal.SIGTERM:
        assert (process.returncode, err, os.listdir("runs")) == (143, "", [place.name])
    else:
        # What the killed run left goes with the next one.
        quickstart(budget=Budget(steps=2))
        assert os.listdir("runs") == [place.name]


@pytest.mark.parametrize("error", [OSError(28, "No space left on device"), SafetensorError("No space left on device")])
@pytest.mark.parametrize("when", [0, 1])
def test_command_on_a_full_disk_ends_in_one_line_and_keeps_the_earlier_run(here, capsys, monkeypatch, error, when):
    made, _ = quickstart(budget=Budget(steps=2))
    before = read_result(made.plan.place)
    calls = itertools.count()

    def full(tensors, place, metadata):
        place.write_bytes(b"half of it")
        if next(calls) == when:
            raise error
        save_file(tensors, place, metadata)

    # The first weights are written before training, the second after it.
    monkeypatch.setattr("anyformer.model.native_checkpoint.save_file", full)
    ran = run(capsys, "quickstart", "--text", "foxes.txt", "--steps", "2", *FLAGS)
    assert ran.status == 1
    assert ran.err.startswith("anyformer: ")
    assert "model.safetensors: No space left on device; make room on that disk" in ran.err
    assert len(ran.err.splitlines()) == 1
    assert ("step" in ran.out) == bool(when)
    assert read_result(made.plan.place) == before
    assert os.listdir("runs") == [made.plan.place.name]
    af.load(made.plan.place)


@pytest.mark.parametrize(
    ("pace", "steps", "words"),
    [
        (0.1, 100, []),
        (0.4, 50, ["slow: the machine is busy", "about 0:20 instead of 0:10", "it took 20 s instead of 10 s"]),
        (1.0, 30, ["slow: the machine is busy", "at most 0:30", "30 of 50 steps were made in 30 s", "--minutes"]),
    ],
    ids=["idle", "busy", "very busy"],
)
def test_command_on_a_slow_machine_takes_more_time_up_to_a_limit_and_says_so(
    here, capsys, monkeypatch, pace, steps, words
):
    monkeypatch.setattr("anyformer.cli.quickstart.MINUTES", 10 / 60)
    monkeypatch.setattr("anyformer.cli.quickstart.MOST_MINUTES", 30 / 60)
    monkeypatch.setattr("anyformer.cli.quickstart.LEAST_STEPS", 50)
    monkeypatch.setattr("anyformer.lab.quickstart.KEEPING", 0.0)
    # Nothing takes time but the steps, and each of them as long as the test says.
    now, step = [0.0], TrainStep.step

    def clock():
        return now[0]

    def slow(learner, *given, **more):
        now[0] += pace
        return step(learner, *given, **more)

    monkeypatch.setattr(TrainStep, "step", slow)
    monkeypatch.setitem(Quickstart.__init__.__kwdefaults__, "clock", clock)
    for place in ("lab.quickstart", "cli.quickstart"):
        monkeypatch.setattr(f"anyformer.{place}.time", SimpleNamespace(perf_counter=clock))
    ran = run(capsys, "quickstart", "--text", "foxes.txt", *FLAGS)
    assert ran.status == 0, ran.err
    assert read_result(Path("runs") / os.listdir("runs")[0]).steps == pytest.approx(steps, abs=1)
    said = " ".join(ran.out.split())
    assert [part for part in words if part not in said] == []
    assert ("slow" in said) == bool(words)


def test_spec_of_quickstart_reads_as_the_library_reads_any_spec():
    assert af.spec(SPEC) == Plan().spec()
