"""LED (Beltagy et al. 2020): BART whose encoder is a Longformer, with many more positions than its decoder."""

from typing import Any

from anyformer.families.config_keys import activation, must, usual, whole
from anyformer.families.config_values import Values
from anyformer.families.family import series, sizes
from anyformer.families.longformer import GLOBAL, WINDOWS, local, read_windows, write_windows
from anyformer.families.statemap import Rule, StateMap, block_rules
from anyformer.families.tensor_ops import Shaped
from anyformer.families.transformer import BASE, STACK_KEYS, TWO_DEPTHS, TwoStacks, check_depth, layer_rules
from anyformer.specs.embed_head import TokenHead
from anyformer.specs.model import ModelSpec

ENCODER = "led.encoder.layers.{i}.self_attn"
"""Where the encoder's attention is in files; its names are Longformer's."""


class LED(TwoStacks, kind="led"):
    """LED. Global tokens are those of the source; the decoder sees all of both."""

    base = BASE | {
        "vocab": 50265,
        "context": 16384,
        "encoder": {"attention": {"global_projections": True}},
        "norm": {"kind": "layernorm", "eps": 1e-5, "placement": "post", "embedding": True},
        "position": {"kind": "learned"},
        "ffn": {"kind": "gelu", "bias": True},
        "head": {"kind": "lm", "tied": True},
        "ids": {"pad": 1, "bos": 0, "eos": [2], "start": 2},
    }
    presets = series("led-{}", "LED {} (2020)",
        ("base", sizes(768, 6, 12), 161_844_480, "about 162M, as is generally known"),
        ("large", sizes(1024, 12, 16), 459_801_600, "about 460M, as is generally known"),
        changes={"encoder.attention.pattern": local(1024), "decoder.position.length": 1024},
        also=("led-{}-16384",), hub=("allenai/led-{}-16384",),
        evidence="sizes from the public class and from BART, whose weights it began with; the window of 1024 is what the "
        "released config is generally known to say (the public class's default is 512)",
        note="the class adds a bias to the logits that it does not train and that files may leave out; it is no part of "
        "the count, and a checkpoint that is loaded has it. Source tokens are global where global_mask says so",
    )  # fmt: skip
    architectures = ("LEDForConditionalGeneration",)
    biased = True
    keys = {
        **STACK_KEYS,
        **usual(vocab_size=50265, bos_token_id=0, pad_token_id=1, eos_token_id=2),
        "activation_function": activation("gelu", more={"ffn.bias": True}),
        "attention_window": WINDOWS,
        "max_encoder_position_embeddings": whole(16384),
        "max_decoder_position_embeddings": whole(1024),
        # The class has one name for three tables, or three tables of which one is never read.
        "tie_word_embeddings": must(True),
        "decoder_start_token_id": whole(2, null=True),
        # What Marian's class can choose and this one can't.
        "max_position_embeddings": must(None),
        "scale_embedding": must(False),
    }
    small = TWO_DEPTHS | {
        "max_encoder_position_embeddings": 64, "max_decoder_position_embeddings": 40, "encoder_layers": 3,
        "decoder_layers": 2, "attention_window": [4, 8, 4], "pad_token_id": 1, "bos_token_id": 0,
        "decoder_start_token_id": 2,
    }  # fmt: skip

    @classmethod
    def read(cls, c: Values) -> dict[str, Any]:
        check_depth(c)
        positions = {stack: c[f"max_{stack}_position_embeddings"] for stack in ("encoder", "decoder")}
        context = max(positions.values())
        windows = read_windows(c, c["encoder_layers"])
        return (
            super().read(c)
            | {"context": context, "head.tied": True, "head.bias": True}
            | {f"{stack}.position.length": n for stack, n in positions.items() if n != context}
            | {f"encoder.{name}": value for name, value in windows.items()}
        )

    @classmethod
    def write(cls, spec: ModelSpec) -> dict[str, Any]:
        limits = {stack.name: stack.layers[0].position.limit(spec.context) for stack in spec.stacks}
        rows = {name: spec.context if rows is None else rows for name, rows in limits.items()}
        return super().write(spec) | {
            **{f"max_{name}_position_embeddings": count for name, count in rows.items()},
            "tie_word_embeddings": isinstance(spec.head, TokenHead) and spec.head.tied,
            "attention_window": write_windows(spec.stack("encoder")),
        }

    @classmethod
    def weights(cls, spec: ModelSpec) -> StateMap:
        ends = [
            Rule("led.shared.weight", "embed.tokens.weight"),
            Rule("lm_head.weight", "head.weight"),
            Rule("final_logits_bias", "head.bias", Shaped((1, spec.vocab))),
        ]
        for stack in ("encoder", "decoder"):
            ends.append(Rule(f"led.{stack}.embed_positions.weight", f"{stack}.positions.0.table"))
            ends.append(Rule(f"led.{stack}.layernorm_embedding.{{p}}", f"{stack}.embedding_norm.{{p}}"))
        projections = {"q": "query", "k": "key", "v": "value"} | GLOBAL
        names = {part: f"longformer_self_attn.{name}" for part, name in projections.items()} | {"o": "output"}
        local_rules = block_rules(ENCODER, names, "encoder.blocks.{i}")
        rest = [rule for rule in layer_rules("led") if not rule.theirs.startswith(f"{ENCODER}.")]
        tables = ("led.encoder.embed_tokens.weight", "led.decoder.embed_tokens.weight", "lm_head.weight")
        return StateMap(
            rules=(*ends, *local_rules, *rest),
            copies=dict.fromkeys(tables, "led.shared.weight"),
            zeros=("final_logits_bias",),
            prefix="led.",
        )
