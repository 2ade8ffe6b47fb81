"""By whatever means tokens are read, they are the same."""

import pytest
import torch

import anyformer as af
from anyformer.generation.generate import compiled
from tests.contract.contracts import model_of
from tests.contract.draw import draw
from tests.generation.talking import talking


def test_generate_through_torch_compile_gives_the_same_tokens():
    seed = talking(range(30), "decoder")[0]
    model = model_of(draw(seed))
    ids = torch.randint(0, model.spec.input_vocab, (2, 12), generator=torch.Generator().manual_seed(seed))
    want = af.generate(model, ids, max_new_tokens=5, stop=())
    torch._dynamo.reset()
    assert torch.equal(af.generate(model, ids, max_new_tokens=5, stop=(), compile="eager"), want)


def test_compiled_pass_of_a_model_is_made_once():
    model = model_of(draw(talking(range(40), "decoder")[0]))
    assert compiled(model, "eager") is compiled(model, "eager")
    assert compiled(model, "eager") is not compiled(model, "aot_eager")


def test_compile_of_something_else_is_refused():
    model = model_of(draw(talking(range(40), "decoder")[0]))
    with pytest.raises(af.InputError, match="compile: expected True, False or the name of a backend"):
        af.generate(model, torch.zeros(1, 12, dtype=torch.long), compile=3)
