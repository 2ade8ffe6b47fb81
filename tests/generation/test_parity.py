"""Greedy text of every family against `generate` of its published class: the same tokens, from the same scores."""

import copy
import warnings
from typing import Any

import pytest
import torch

import anyformer as af
from anyformer.families.family import Family, families
from anyformer.families.hf_bridge import from_hf
from anyformer.model.model import Model
from tests.families.cases import COUNTED, OWN, gathered
from tests.families.oracle import is_ignored, lifted, oracle, public_class
from tests.tolerances import assert_close

NEW, ROOM = 64, 96
PROMPTS = (11, 7, 4)

ROOMS = (
    "max_position_embeddings", "n_positions", "max_seq_len", "max_encoder_position_embeddings",
    "max_decoder_position_embeddings",
)  # fmt: skip
"""Keys under which small configs have fewer positions than these tests need."""
COLUMNS = ("bart", "bigbird_pegasus", "blenderbot", "mbart", "mvp", "pegasus", "plbart")
CHANGES: dict[str, dict[str, Any]] = {
    # A loud token repeats itself where the table is the output matrix too.
    **{kind: {"scale_embedding": False} for kind in (*COLUMNS, "m2m_100")},
    # LSH attention is exact within one chunk, and only there the same with a cache and without.
    "reformer": {"lsh_attn_chunk_length": ROOM, "axial_pos_shape": [8, 12], "num_buckets": [4, 2]},
    # This release sizes the cache of a T5's decoder by the encoder's depth.
    "t5": {"num_layers": 3},
    "mt5": {"num_layers": 3},
    "umt5": {"num_layers": 3},
}
ALONE = {
    **dict.fromkeys((*COLUMNS, "led", "transformer"), "its encoder counts positions by column, padding included"),
    "llama4_text": "its temperature counts positions by column, padding included",
    "reformer": "it counts positions by column, padding included",
}
"""Kinds whose public class is right about unpadded rows only, and why."""
POST = ("bart", "fsmt", "gpt", "led", "mvp", "plbart", "transformer")
"""Kinds with norms after their blocks, where loud attention to all tokens drowns out the last one."""
SEEDS = {"bloom": 1, "gptj": 1, "m2m_100": 1, "mt5": 5, "t5": 10, "transformer": 6} | gathered("SEEDS")
"""Kinds whose first weights repeat one token for ever."""


def speaks(family: type[Family]) -> bool:
    """Whether the public class of a family generates."""
    return family.kind not in OWN and public_class(family).can_generate()


KINDS = [family.kind for family in families() if speaks(family)]


def pair(kind: str) -> tuple[Any, Model]:
    """The public model and ours. Its matrices are loud and its biases low, so that the answer follows what is read."""
    family = Family.named(kind)
    assert family is not None
    config = family.small | {key: ROOM for key in ROOMS if key in family.small} | CHANGES.get(kind, {})
    theirs = oracle(family, config, seed=SEEDS.get(kind, 0))
    table = family.weights(family.spec_from(config))
    tables = {
        id(part.weight)
        for part in theirs.modules()
        if "Embedding" in type(part).__name__ and "weight" in part._parameters
    }
    with torch.no_grad():
        for name, tensor in theirs.named_parameters():
            if is_ignored(name, table):
                continue
            if tensor.dim() > 1 and kind in POST:
                tensor.mul_(0.3 if "attn" in name else 1.0)
            elif tensor.dim() > 1:
                tensor.mul_(0.3 if id(tensor) in tables else 3.0)
            elif name.endswith("bias"):
                tensor.mul_(0.1)
            else:
                tensor.mul_(0.4).add_(1.0)
    return theirs, from_hf(theirs)


def published(theirs: Any, ids: torch.Tensor, mask: torch.Tensor, pad: int, **given: Any) -> Any:
    """What the public class generates, and its scores."""
    theirs.generation_config = copy.deepcopy(theirs.generation_config)
    for name in ("eos_token_id", "forced_eos_token_id", "max_length"):
        setattr(theirs.generation_config, name, None)
    given = {"do_sample": False, "num_beams": 1, "eos_token_id": None, "use_cache": True} | given
    with lifted(), torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return theirs.generate(
            ids, attention_mask=mask, pad_token_id=pad, return_dict_in_generate=True, output_logits=True, **given
        )


def prompts(vocab: int, pad: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Rows of three lengths, padded on the left, and their mask."""
    generator = torch.Generator().manual_seed(1)
    ids = torch.randint(3, vocab, (len(PROMPTS), max(PROMPTS)), generator=generator)
    mask = torch.stack([(torch.arange(max(PROMPTS)) >= max(PROMPTS) - length).long() for length in PROMPTS])
    return ids.masked_fill(mask == 0, pad), mask


@pytest.mark.parametrize("kind", KINDS)
def test_greedy_tokens_of_a_family_equal_those_of_its_public_class(kind):
    theirs, ours = pair(kind)
    pad = ours.spec.ids.pad or 0
    ids, mask = prompts(ours.spec.input_vocab, pad)
    batches = [(ids, mask)]
    if kind in ALONE:
        batches = [(ids[i : i + 1, -n:], mask[i : i + 1, -n:]) for i, n in enumerate(PROMPTS)]
    said = []
    for some, real in batches:
        # A class that counts positions from its padding's id on has to be told them: `generate` would begin with 0.
        counted = kind in COUNTED and kind not in ALONE
        places = {"position_ids": (real.cumsum(-1) - 1).clamp(min=0) + ours.spec.position.offset} if counted else {}
        want = published(theirs, some, real, pad, max_new_tokens=NEW, **places)
        found = af.generate(ours, some, attention_mask=real, max_new_tokens=NEW, stop=(), details=True)
        assert torch.equal(found.ids, want.sequences)
        # Small models like to repeat themselves, so what they chose by is compared too.
        logits = torch.stack(want.logits, 1).log_softmax(-1)
        assert_close("oracle", found.logprobs, logits.gather(-1, want.sequences[:, -NEW:, None])[..., 0])
        said += want.sequences[:, -NEW:].tolist()
    assert min(len(set(row)) for row in said) >= 4, "a row that says one word only shows little"
    assert said[0] != said[1] != said[2], "rows must depend on their prompts"


def test_families_of_these_tests_are_all_that_generate():
    assert len(KINDS) >= 37
    assert set(ALONE) | set(CHANGES) | set(SEEDS) <= set(KINDS)
