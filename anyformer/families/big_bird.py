"""BigBird (Zaheer et al. 2020): BERT whose tokens see the first and last block, the blocks around them and a few more.

The public class draws its random blocks in training only; in eval mode it takes the first block in the place of each,
so that its tokens count several times in the softmax. A model that is read here does the same in each mode; with
`bigbird_random(..., "always")` it would see in both the blocks that it was trained with. That class cuts rows into
blocks, padding included; here it is documents, so that padding changes nothing. And once it has read one row of no more
than 2 `num_random_blocks` + 5 blocks, it stays with full attention for all rows after it; here every row is read alike.
"""

import re
from typing import Any

from anyformer.families import bert_like as like
from anyformer.families import tasks
from anyformer.families.config_keys import flag, must, text, whole
from anyformer.families.config_values import Values
from anyformer.families.family import Preset, sizes
from anyformer.specs.model import ModelSpec
from anyformer.specs.stacks import Stack, pattern_of

SPARSE, FULL = "block_sparse", "original_full"


def blocks(size: int, drawn: int, heads: int, context: int) -> str:
    """The pattern of its layers: blocks at both ends, three around a token, and some that are drawn in training.

    Short documents are seen whole, as in the public class, by what the drawn ones say.
    """
    known = f"edge_blocks({size}) | chunked({size}, 1, 1)"
    if drawn == 0:
        return f"{known} | bigbird_eval({size}, 0)"
    return f"{known} | bigbird_random({size}, {drawn}, {heads}, {context}, 'training')"


BLOCK_KEYS = {"attention_type": text(SPARSE), "block_size": whole(64), "num_random_blocks": whole(3)}


def read_blocks(c: Values, heads: int) -> str | None:
    """The pattern that a config's keys say; None: all tokens see each other."""
    kind, drawn = c["attention_type"], c["num_random_blocks"]
    if kind not in (SPARSE, FULL):
        c.refuse("attention_type", f"{kind!r} is an attention that the class does not have", f"{SPARSE!r} or {FULL!r}")
    for name, least in (("block_size", 1), ("num_random_blocks", 0)):
        if c[name] < least:
            c.problems.add(name, f"{c[name]} is not at least {least}")
    return blocks(c["block_size"], drawn, heads, c["max_position_embeddings"]) if kind == SPARSE else None


def write_blocks(stack: Stack) -> dict[str, Any]:
    """The keys of a stack's pattern."""
    pattern = str(pattern_of(stack, stack.layers[0]))
    size, drawn = re.match(r"edge_blocks\((\d+)", pattern), re.search(r"bigbird_random\(\d+, (\d+)", pattern)
    return {
        "attention_type": SPARSE if size else FULL,
        "block_size": int(size[1]) if size else 64,
        "num_random_blocks": int(drawn[1]) if drawn else 0,
    }


class BigBird(like.BertLike, kind="big_bird"):
    """BigBird with its masked-LM head. Its pooler and its next-sentence head are left out."""

    base = like.BASE | {
        "vocab": 50358,
        "context": 4096,
        "ffn": {"kind": "gelu_tanh", "bias": True},
        "head": {"kind": "lm", "tied": True, "bias": True, "transform": True, "activation": "gelu_tanh"},
        "ids": {"pad": 0, "bos": 1, "eos": [2]},
    }
    presets = (
        Preset("bigbird-base", "BigBird base (2020)",
               sizes(768, 12, 12) | {"attention.pattern": blocks(64, 3, 12, 4096)}, 127_520_694,
               also=("bigbird-roberta-base",),
               published="about 128M, as is generally known; 128,111,286 in the public class",
               evidence="the defaults of the public class, and the flags of the publisher's code",
               note="with the masked-LM head and without the pooler, which the public class holds (590,592) and no "
               "logit reads. The publisher's flags begin with blocks of 16; the released configuration has 64"),
    )  # fmt: skip
    architectures = ("BigBirdForMaskedLM", "BigBirdForPreTraining")
    tasks = {
        tasks.TOKEN: tasks.token(),
        tasks.SEQUENCE: tasks.sequence("classifier.out_proj", "classifier.dense", kept=("activation",)),
        tasks.CHOICE: tasks.choice("classifier", "{body}.pooler"),
    }
    exempt = "padded rows with sparse blocks: the class cuts rows into blocks, padding included"
    keys = like.keys(vocab=50358, context=4096, act="gelu_new", bos_token_id=1, eos_token_id=2) | {
        **BLOCK_KEYS,
        "use_bias": flag(True, "attention.bias", off="o"),
        "rescale_embeddings": flag(False, "embed.scale", on="sqrt(width)", off=1.0),
        "norm_type": must("postnorm"),
    }
    # No dropout: the class is compared in training too.
    small = {
        "block_size": 10, "num_random_blocks": 1, "hidden_act": "gelu_new", "hidden_dropout_prob": 0.0,
        "attention_probs_dropout_prob": 0.0,
    }  # fmt: skip
    unread = (*like.NEXT_SENTENCE, r"(bert\.)?pooler\.(weight|bias)")

    @classmethod
    def read(cls, c: Values) -> dict[str, Any]:
        return super().read(c) | {"attention.pattern": read_blocks(c, c["num_attention_heads"])}

    @classmethod
    def write(cls, spec: ModelSpec) -> dict[str, Any]:
        return super().write(spec) | write_blocks(spec.stacks[-1])
