"""Open axes: kinds are found by name, once, and a mistake in a leaf is not swallowed."""

import pickle
import sys
import textwrap

import pytest

from anyformer import registry
from anyformer.errors import AnyformerError, CapabilityError, CheckpointError, DataError, InputError, SpecError, nearest
from anyformer.registry import OpenAxis


@pytest.fixture
def package(tmp_path, monkeypatch):
    """A package with two leaves of an axis of its own."""
    root = tmp_path / "fruit_axis"
    (root / "leaves").mkdir(parents=True)
    (root / "__init__.py").write_text(
        textwrap.dedent("""
        from anyformer.registry import OpenAxis
        class Fruit(OpenAxis, axis="fruit", leaves="fruit_axis.leaves"): pass
        class Stone(Fruit): pass
    """)
    )
    (root / "leaves" / "__init__.py").write_text("")
    (root / "leaves" / "plum.py").write_text("from fruit_axis import Stone\nclass Plum(Stone, kind='plum'): pass\n")
    (root / "leaves" / "pear.py").write_text("from fruit_axis import Fruit\nclass Pear(Fruit, kind='pear'): pass\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    yield root
    for name in [name for name in sys.modules if name.split(".")[0] == "fruit_axis"]:
        del sys.modules[name]
    registry._loaded.discard("fruit_axis.leaves")


def test_axis_loads_its_leaves_when_a_kind_is_first_looked_up(package):
    from fruit_axis import Fruit, Stone

    assert "fruit_axis.leaves.plum" not in sys.modules
    assert Fruit.kinds() == ("pear", "plum")
    assert Stone.kinds() == ("plum",)
    assert Fruit.named("plum").kind == "plum"
    assert Fruit.named("apple") is None
    assert Fruit.axis == "fruit"


def test_kind_that_is_taken_is_refused(package):
    from fruit_axis import Fruit

    Fruit.kinds()
    with pytest.raises(TypeError, match=r"fruit kind 'plum' is taken by fruit_axis\.leaves\.plum\.Plum"):
        type("Other", (Fruit,), {}, kind="plum")


def test_leaf_that_cannot_be_imported_fails_every_look_up_not_only_the_first(package):
    from fruit_axis import Fruit

    (package / "leaves" / "rotten.py").write_text("raise RuntimeError('rotten')\n")
    for _ in range(2):
        with pytest.raises(RuntimeError, match="rotten"):
            Fruit.named("plum")


def test_extension_is_loaded_from_its_entry_point_only_when_a_kind_is_not_ours(package, monkeypatch):
    from fruit_axis import Fruit

    loads: list[str] = []

    class Point:
        def load(self) -> None:
            loads.append("fig")
            type("Fig", (Fruit,), {}, kind="fig")

    monkeypatch.setattr(registry, "_loaded", registry._loaded - {registry.ENTRY_POINTS})
    monkeypatch.setattr(
        registry.importlib.metadata, "entry_points", lambda group: [Point()] * (group == "anyformer.leaves")
    )
    assert Fruit.named("plum") is not None
    assert loads == []
    assert Fruit.named("fig").kind == "fig"
    assert Fruit.kinds() == ("fig", "pear", "plum")
    assert loads == ["fig"]


def test_axes_do_not_see_each_others_kinds(package):
    from fruit_axis import Fruit

    class Other(OpenAxis, axis="other", leaves="fruit_axis.leaves"):
        pass

    Fruit.kinds()
    assert Other.kinds() == ()


@pytest.mark.parametrize(
    ("name", "known", "clause"),
    [
        ("alibbi", ["rope", "alibi"], "; did you mean 'alibi'? (known: alibi, rope)"),
        ("ROPE", ["rope", "alibi"], "; did you mean 'rope'? (known: alibi, rope)"),
        ("swiglu", ["SwiGLU"], "; did you mean 'SwiGLU'? (known: SwiGLU)"),
        ("zzz", ["rope", "alibi"], " (known: alibi, rope)"),
        ("zzz", [], " (known: nothing)"),
    ],
)
def test_nearest_names_one_spelling_and_lists_all(name: str, known: list[str], clause: str):
    assert nearest(name, known) == clause


def test_spec_error_lists_its_problems_and_survives_pickling():
    error = SpecError(["a: is wrong", "b: is wrong"], "my.toml")
    assert str(error) == "invalid spec (my.toml):\n  a: is wrong\n  b: is wrong"
    assert str(SpecError(["a"])) == "invalid spec:\n  a"
    again = pickle.loads(pickle.dumps(error))
    assert (str(again), again.problems, again.source) == (str(error), error.problems, "my.toml")


@pytest.mark.parametrize(
    ("error", "builtin"),
    [(SpecError, ValueError), (InputError, ValueError), (DataError, ValueError), (CapabilityError, RuntimeError),
     (CheckpointError, RuntimeError)],
)  # fmt: skip
def test_errors_are_ours_and_of_a_builtin_kind(error: type[Exception], builtin: type[Exception]):
    assert issubclass(error, AnyformerError)
    assert issubclass(error, builtin)
