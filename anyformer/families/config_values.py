"""The values of a published config.json: which keys a family reads, what is passed over, and what is refused.

Reading goes by an allow-list. A key is read by its family, or stands in HARMLESS because no logit depends on it, or is
passed over with a notice because the public class never reads it (`public_keys.json`), or is refused by its name: a
value that nobody looked at might change the maths.
"""

from __future__ import annotations

import difflib
import functools
import json
from collections.abc import Callable, Collection, Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from anyformer.errors import nearest
from anyformer.specs.codec import Problems

if TYPE_CHECKING:
    from anyformer.families.config_keys import Key

DERIVED: dict[str, Callable[[int, Mapping[str, Any]], bool]] = {
    "attention.kv_heads": lambda value, changes: value == changes["attention.heads"],
    "attention.head_dim": lambda value, changes: value * changes["attention.heads"] == changes["width"],
    "ffn.width": lambda value, changes: value == 4 * changes["width"],
}
"""Whether a size is the one that a spec derives."""

HARMLESS = frozenset((
    "architectures", "model_type", "transformers_version", "dtype", "torch_dtype", "torchscript",
    "use_bfloat16", "tf_legacy_loss", "use_cache", "cache_implementation", "attn_implementation",
    "chunk_size_feed_forward", "pretraining_tp", "gradient_checkpointing", "output_attentions",
    "output_hidden_states", "output_scores", "output_logits", "return_dict", "return_dict_in_generate", "id2label",
    "label2id", "num_labels", "problem_type", "finetuning_task", "task_specific_params", "tokenizer_class", "prefix",
    "classifier_dropout", "classif_dropout", "summary_type", "summary_use_proj", "summary_activation",
    "summary_proj_to_labels", "summary_first_dropout", "sep_token_id", "mask_token_id", "unk_token_id",
    "forced_bos_token_id", "forced_eos_token_id", "max_length", "max_new_tokens", "min_length", "do_sample",
    "early_stopping", "num_beams", "num_beam_groups", "diversity_penalty", "temperature", "top_k", "top_p",
    "typical_p", "repetition_penalty", "length_penalty", "no_repeat_ngram_size", "encoder_no_repeat_ngram_size",
    "bad_words_ids", "num_return_sequences", "remove_invalid_values", "exponential_decay_length_penalty",
    "suppress_tokens", "begin_suppress_tokens",
    "transformers.js_config", "max_sequence_length", "is_llama_config", "predict_special_tokens",
    "output_past", "eos_token_ids", "xla_device", "model_max_length", "summary_last_dropout",
    "keys_to_ignore_at_inference", "name_or_path", "begin_forced_tokens", "renormalize_logits", "force_words_ids",
    "penalty_alpha", "use_return_dict",
))  # fmt: skip
"""Keys on which no logit depends: bookkeeping, heads that we don't build, and how to generate."""

REMOTE = "auto_map"
"""The key that names code beside the weights. Nothing passes it over: what that code computes is not known here."""
ALIKE = 0.85
"""From here on two names are one and its misspelling (`n_embed`, `n_embd`; `layer_norm_eps`, `layer_norm_epsilon`)."""


@functools.cache
def public_keys() -> dict[str, Any]:
    """What the public classes read (`docs/make.py`)."""
    return json.loads(Path(__file__).with_name("public_keys.json").read_text(encoding="utf-8"))


@functools.cache
def read_by(architecture: str) -> frozenset[str] | None:
    """Every name that a public class, its config and what they are made of read; None: there is no such class."""
    found = public_keys()
    own = found["classes"].get(architecture)
    return None if own is None else frozenset(found["every class"]) | frozenset(own)


def without(config: Mapping[str, Any], keys: Iterable[str]) -> dict[str, Any]:
    """A config less some keys; that of a nested table is a dotted name."""
    made = dict(config)
    for key in keys:
        outer, _, inner = key.partition(".")
        if inner and outer in made and isinstance(made[outer], Mapping) and key not in made:
            made[outer] = without(made[outer], [inner])
        else:
            made.pop(key, None)
    return made


def has(config: Mapping[str, Any], key: str) -> bool:
    """Whether a config has a key, which may be a dotted name."""
    outer, _, inner = key.partition(".")
    table = config.get(outer)
    return key in config or bool(inner and isinstance(table, Mapping) and has(table, inner))


class Values(dict[str, Any]):
    """The values of a config, absent keys filled in. What can't be expressed is noted, not raised.

    `reads` is what the public class reads (see `read_by`); a key outside of it changes nothing there. Without such a
    class every key that is not known is refused.
    """

    def __init__(
        self,
        config: Mapping[str, Any],
        keys: Mapping[str, Key],
        problems: Problems,
        reads: frozenset[str] | None = None,
    ) -> None:
        self.problems, self.reads, self._keys = problems, reads, keys
        self.given = frozenset(config)
        self.passed: list[str] = []
        """Keys that the public class never reads."""
        self.bare = False
        """Whether the class has no head."""
        super().__init__({name: key.default for name, key in keys.items()})
        for name, value in config.items():
            if name not in keys:
                self._outside(name, keys)
                continue
            key = keys[name]
            if key.only and value not in key.only:
                self.refuse(name, f"{value!r} changes what the model computes in a way that a spec can't say", key.what)
            elif not key.null if value is None else not key.fits(value):
                problems.add(name, f"{value!r} is not {key.what}")
            elif value is not None and (why := key.refuses(value)):
                problems.add(name, why)
            else:
                self[name] = value

    def _outside(self, name: str, keys: Mapping[str, Key]) -> None:
        """Pass a key over that the family does not have, or refuse it."""
        # A name that begins with an underscore is a note of the library that wrote the file.
        if name in HARMLESS or name.startswith("_"):
            return
        # A right name that is missing, and one like it that nobody reads: the file means something that would be lost.
        absent = [key for key in keys if key not in self.given and not key.endswith("_token_id")]
        meant = difflib.get_close_matches(name, absent, n=1, cutoff=ALIKE)
        if self.reads is not None and name not in self.reads and not meant:
            self.passed.append(name)
        else:
            self.refuse(name, f"is not a key that we know here{nearest(name, keys)}", "ignored")

    def changes(self) -> dict[str, Any]:
        """The keys that are read into a field each, as changes of a spec."""
        found: dict[str, Any] = {}
        for name, key in self._keys.items():
            read = key.read(self, name)
            found |= {path: value for path, value in read.items() if value is not None or path not in found}
        for path in (path for key in self._keys.values() if key.derived for path in key.sets):
            if found[path] is not None and DERIVED[path](found[path], found):
                found[path] = None
        return found

    def take(self, where: str, inner: Values, beside: Collection[str] = ()) -> None:
        """Note what was found in a nested table, which goes by the same rules; keys of `beside` stand outside of it."""

        def placed(path: str) -> str:
            return f"{where}.{path}" if where and path.partition(".")[0] not in beside else path

        self.passed += map(placed, inner.passed)
        for path, message in inner.problems.found:
            self.problems.add(placed(path), message)

    def refuse(self, name: str, why: str, wanted: str = "") -> None:
        """Note a value that can't be expressed."""
        advice = {"": "", "ignored": "; if it changes nothing, go on without it: ignore_keys, --ignore-keys"}.get(
            wanted, f"; it must be {wanted}"
        )
        self.problems.add(name, f"{why}{advice}")
