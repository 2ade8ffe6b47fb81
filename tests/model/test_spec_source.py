"""af.spec: from a file, a directory, a table or a spec, and what it says to anything else."""

import pytest

import anyformer as af
from tests.contract.draw import BASE


def test_spec_from_a_file_a_directory_a_table_and_a_spec_is_the_same(tmp_path):
    spec = af.spec(BASE)
    (tmp_path / "spec.toml").write_text(spec.to_toml())
    assert af.spec(tmp_path) == af.spec(str(tmp_path / "spec.toml")) == af.spec(spec) == spec
    assert af.spec(tmp_path, {"depth": 5}).depth == 5


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        (("no-such-model",), af.InputError, "is no preset, no .toml file and no directory"),
        (("no-such-file.toml",), af.SpecError, "No such file"),
        ((7,), TypeError, "expected a name, a path, a table or a ModelSpec, got int"),
        ((BASE, ["depth"]), TypeError, "changes: expected dotted names"),
        ((BASE, {"dept": 3}), af.SpecError, "did you mean 'depth'"),
    ],
    ids=["a name", "a missing file", "a number", "changes as a list", "an unknown name"],
)
def test_spec_from_something_else_says_what_to_give(arguments, error, message):
    with pytest.raises(error, match=message):
        af.spec(*arguments)


def test_spec_from_a_directory_without_one_says_what_is_missing(tmp_path):
    with pytest.raises(af.SpecError, match=r"directory without a spec\.toml"):
        af.spec(tmp_path)
