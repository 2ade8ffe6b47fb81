"""DeBERTa beyond what every family is tested for: buckets of distances as published, and the other layout of its head."""

import pytest
import torch
from torch import Tensor
from transformers import DebertaV2Config, DebertaV2ForMaskedLM
from transformers.models.deberta_v2.modeling_deberta_v2 import make_log_bucket_position

import anyformer as af
from anyformer.errors import CheckpointError
from anyformer.families.deberta_v2 import DebertaV2
from anyformer.parts.positions.disentangled import Disentangled
from anyformer.specs.axes import QKPositions

IDS = torch.randint(0, 61, (2, 23), generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize(("buckets", "farthest"), [(256, 512), (256, 1024), (32, 128), (8, 14), (4, 100), (64, 40)])
def test_buckets_of_distances_are_those_of_the_published_code(buckets, farthest):
    gap = torch.arange(-3 * farthest, 3 * farthest + 1)
    wanted = make_log_bucket_position(-gap, buckets, farthest).long().add(buckets).clamp(0, 2 * buckets - 1)
    leaf = Disentangled(buckets=buckets, max_distance=farthest, on_keys=False)
    spec = af.spec({"vocab": 5, "width": 8, "depth": 1, "context": 8, "attention": {"heads": 1}})
    dims = spec.dims(spec.stacks[0].layers[0], spec.stacks[0])
    own = {"start": torch.tensor(leaf.constants(dims)["start"]), "k_NGK": torch.zeros(2 * buckets, 1, 8)}
    zeros = torch.zeros(1, 1, 1, 8)
    found = leaf.scores(own, zeros, zeros, QKPositions(None, None), 1.0)
    assert found.pick is not None
    assert torch.equal(found.pick(gap), wanted)


def other_layout() -> DebertaV2ForMaskedLM:
    torch.manual_seed(0)
    return DebertaV2ForMaskedLM(DebertaV2Config(**DebertaV2.small | {"legacy": False})).double().eval()


def logits(model, ids: Tensor) -> Tensor:
    with torch.no_grad():
        return model(ids).logits


def test_model_with_the_later_layout_of_the_head_comes_over():
    theirs = other_layout()
    ours = af.from_hf(theirs).eval()
    assert (logits(ours, IDS) - logits(theirs, IDS)).abs().max() < 1e-12
    # What goes back has the older layout, which computes the same.
    assert (logits(af.to_hf(ours).eval(), IDS) - logits(theirs, IDS)).abs().max() < 1e-12


def test_folder_with_the_later_layout_is_read_whatever_its_config_says(tmp_path):
    theirs = other_layout()
    theirs.save_pretrained(tmp_path)
    text = (tmp_path / "config.json").read_text()
    (tmp_path / "config.json").write_text(text.replace('"legacy": false', '"legacy": true'))
    ours = af.load(tmp_path, dtype=torch.float64)
    assert (logits(ours.eval(), IDS) - logits(theirs, IDS)).abs().max() < 1e-12


def test_folder_with_two_heads_that_differ_is_refused_by_their_names(tmp_path):
    from safetensors.torch import load_file, save_file

    other_layout().save_pretrained(tmp_path)
    tensors = load_file(tmp_path / "model.safetensors")
    tensors["cls.predictions.transform.dense.weight"] = tensors["lm_predictions.lm_head.dense.weight"] + 1
    save_file(tensors, tmp_path / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(CheckpointError, match=r"lm_predictions\.lm_head\.dense\.weight"):
        af.load(tmp_path)
