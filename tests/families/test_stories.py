"""A real checkpoint: the 260K-parameter storyteller continues its first token as recorded."""

import json
from pathlib import Path

import pytest
import torch
import transformers

import anyformer as af
from anyformer.families.io import load

FOLDER = Path(__file__).parents[2].parent / "shared" / "data" / "stories260K"

pytestmark = pytest.mark.skipif(not FOLDER.is_dir(), reason="the checkpoint stories260K is not beside this repository")


@torch.no_grad()
@pytest.mark.parametrize("chunk", [1, 7], ids=["token by token", "after a longer prompt"])
def test_greedy_continuation_of_a_real_checkpoint_equals_the_recorded_one(chunk):
    recorded = json.loads((FOLDER / "greedy.json").read_text())
    model = load(FOLDER)
    wanted = recorded["prompt_ids"] + recorded["new_ids"]
    ids = wanted[: len(recorded["prompt_ids"]) + chunk - 1]
    cache = model.new_cache(1, len(wanted))
    fed = torch.tensor([ids])
    while len(ids) < len(wanted):
        ids.append(int(model(fed, cache=cache).logits[0, -1].argmax()))
        fed = torch.tensor([ids[-1:]])
    assert ids == wanted


def test_spec_of_a_real_checkpoint_counts_its_parameters():
    spec = af.spec(FOLDER)
    assert spec.count().params == sum(p.numel() for p in load(FOLDER).parameters())
    assert (spec.head.tied, spec.ids.bos, spec.ids.eos) == (True, 1, (2,))


@torch.no_grad()
def test_real_checkpoint_written_by_us_speaks_the_same_in_the_public_class(tmp_path):
    recorded = json.loads((FOLDER / "greedy.json").read_text())
    af.save(load(FOLDER), tmp_path, format="hf")
    theirs = transformers.AutoModelForCausalLM.from_pretrained(tmp_path)
    given = torch.tensor([recorded["prompt_ids"]])
    found = theirs.generate(
        given,
        attention_mask=torch.ones_like(given),
        max_new_tokens=200,
        do_sample=False,
        eos_token_id=None,
        pad_token_id=0,
    )
    assert found[0].tolist() == recorded["prompt_ids"] + recorded["new_ids"]


def test_real_checkpoint_gives_the_recorded_text():
    recorded = json.loads((FOLDER / "greedy.json").read_text())
    ids = af.generate(load(FOLDER), torch.tensor([recorded["prompt_ids"]]), max_new_tokens=200, stop=())[0].tolist()
    assert af.tokenizer(FOLDER).decode(ids).strip() == recorded["text"].strip()
