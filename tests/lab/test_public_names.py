"""`af.lab`: public names that are loaded when first used."""

import pytest

import anyformer as af
from tests.test_import import fresh


def test_lab_is_imported_without_anything_heavy():
    code = "import anyformer as af; import anyformer.lab; assert af.lab is anyformer.lab; assert 'scipy' not in sys.modules"
    assert fresh(code) == []
    # Whoever reads or plans a study needs no torch.
    code = "import anyformer as af; assert af.lab.Study and af.lab.run and af.lab.read and af.lab.Experiment; assert 'scipy' not in sys.modules"
    assert "torch" not in fresh(code)


def test_lab_has_every_name_that_it_lists_and_no_other():
    assert {*af.lab.__all__} <= {*dir(af.lab)}
    for name in af.lab.__all__:
        assert callable(getattr(af.lab, name)), name
    with pytest.raises(AttributeError, match=r"module 'anyformer\.lab' has no attribute 'nothing'"):
        _ = af.lab.nothing
