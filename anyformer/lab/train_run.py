"""A run with all that goes with it: samples of its text, the architecture in words and the device's peak in its report."""

from collections.abc import Sequence
from typing import Any

import torch

from anyformer.data.tokenizer import Tokenizer
from anyformer.explain.costs import peak_of
from anyformer.explain.report import summary
from anyformer.generation.generate import generate
from anyformer.generation.text.prompt import read_prompt
from anyformer.train.components import Components
from anyformer.train.config import Config
from anyformer.train.loggers import Logger
from anyformer.train.report import About, about_of
from anyformer.train.run_state import machine
from anyformer.train.trainer import Trainer

BEGUN = 8
"""Tokens of a held-out text that a sample begins with, where a model can't begin by itself."""


def training(config: Config, loggers: Sequence[Logger] = ()) -> Trainer:
    """The run of a config, to be used in a `with`. `loggers` are told beside those that the config names."""
    return Trainer(config, sample=sample_text, about=about, loggers=loggers)


def about(components: Components) -> About:
    """What a run's report says about it."""
    return about_of(components, summary=summary(components.spec), peak=peak(components), picture=True)


def peak(components: Components) -> float | None:
    """FLOP/s that all devices of a run could do at best in the dtype of its products; None where that is unknown."""
    compute = components.config.compute
    dtype = "bfloat16" if compute.autocast == "bfloat16" else compute.dtype
    found = peak_of(str(machine(components.device)["device"]), dtype)
    return None if found is None else found * components.ranks.world


def sample_text(components: Components, step: int) -> str:
    """A sample after a step, the prompt first; nothing from a model that answers no text. Equal weights say the same."""
    spec = components.spec
    if components.tokenizer is None or not spec.head.predicts_tokens or spec.topology == "encoder":
        return ""
    if spec.topology == "encoder-decoder":
        return _answered(components, components.tokenizer)
    return _continued(components, components.tokenizer)


def _continued(components: Components, tokenizer: Tokenizer) -> str:
    run, spec = components.config.run, components.spec
    if run.prompt or spec.ids.bos is not None:
        read = read_prompt(spec, tokenizer, run.prompt or None)
        ids, first, repeated = list(read.ids), read.first, read.repeated
    else:
        examples = components.examples if components.valid is None else components.held_out
        column = examples.columns[0]
        # An empty text begins nothing.
        some = int((examples.lengths(column) > 0).argmax())
        ids, first, repeated = [int(i) for i in examples.read(column, some, 0, BEGUN)], None, 0
    room = min(run.sample_tokens, spec.context - len(ids))
    if room < 1:
        return ""
    said = _generated(components, torch.tensor([ids]), room, first)[len(ids) :]
    begun = run.prompt if run.prompt or ids == [spec.ids.bos] else tokenizer.decode(ids)
    return begun + tokenizer.decode(said)[repeated:]


def _answered(components: Components, tokenizer: Tokenizer) -> str:
    """A source and what the model makes of it: the prompt, or the first held-out example."""
    reads = components.input_tokenizer or tokenizer
    if components.config.run.prompt:
        source_S = torch.tensor([list(read_prompt(components.spec, reads, components.config.run.prompt).ids)])
    else:
        inputs = (components.valid or components.loader(0)).batch(0).inputs
        row = torch.from_numpy(inputs["input_ids"][:1])
        mask, segments = inputs.get("attention_mask"), inputs.get("segments")
        if segments is not None:
            # The first of several sources in a packed row.
            row = row[:, torch.from_numpy(segments[0]) == int(segments[0, 0])]
        elif mask is not None:
            row = row[:, torch.from_numpy(mask[0]).bool()]
        source_S = row
    room = min(components.config.run.sample_tokens, components.spec.context - 1)
    said = _generated(components, source_S, room, None)[1:]
    # Marks of spans that were taken out are part of what is asked and answered.
    shown = bool(components.index.sentinels)
    return f"{reads.decode(source_S[0].tolist(), specials=shown)}\n-> {tokenizer.decode(said, specials=shown)}"


def _generated(components: Components, ids_BT: torch.Tensor, room: int, first: tuple[int, ...] | None) -> list[int]:
    draws: dict[str, Any] = {} if components.spec.topology == "encoder-decoder" else {"temperature": 0.9, "top_p": 0.95}
    stop = components.spec.ids.eos if components.spec.topology == "encoder-decoder" else ()
    draws |= {"first": first, "max_new_tokens": room, "seed": components.config.run.seed, "stop": stop}
    return generate(components.model, ids_BT.to(components.device), **draws)[0].tolist()
