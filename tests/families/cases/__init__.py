"""What the tests know about each family: one file for each, found by its kind, none of which another has to edit.

A file may hold
- SIZES: preset -> width, depth, heads, kv heads, head dim, feed-forward, vocabulary, context, eps, tied, as published;
- FACTS: preset -> facts by which it differs from others (see `anyformer.families.family`);
- ALSO: other name -> preset;
- VARIANTS: name -> changes of the family's small config, for every switch that a published config may turn;
- RELEASED: kind -> keys that released files have beyond those of the small config, as changes of it;
- REFUSED: kind -> pairs of changes that a spec can't say, and part of what is answered;
- TOLD: kind -> keys without which the default config of its public class describes no model, and why in a comment;
- SEEDS: kind -> a seed of random weights with which its small model says more than one word when it generates;
- NEAREST: preset without a public class -> the kind whose class is nearest, and what to change for it.
"""

import importlib
import pkgutil
from typing import Any

from anyformer.families.family import Family, families

MODULES = [importlib.import_module(f"{__name__}.{found.name}") for found in pkgutil.iter_modules(__path__)]

LENGTHS = ("dynamic", "longrope")
"""Variants whose angles depend on the length: the public classes read the longest of the batch, we each document's."""

ROBERTAS = ("roberta", "camembert", "data2vec_text", "roberta_prelayernorm", "xlm_roberta", "xlm_roberta_xl")
COUNTED = ("longformer", "mpnet", "reformer", *ROBERTAS, *(f"{kind}_decoder" for kind in ROBERTAS))
"""Kinds whose public class takes positions from where the padding's id is, and so must be left to count them."""
RIGHT = ("turned-values", "reformer", "llama4_text")
"""Variants and kinds that know absolute positions while their public class takes none: padding must stand on the right."""
WITHIN = ("one-chunk",)
"""Variants of an approximate mixer that stay within one chunk, where it is exact with a cache and without."""
BLOCKS = ("sparse-blocks", "few-blocks", "five-blocks")
"""Variants whose public class cuts rows into blocks, padding included, where we cut documents."""
OWN = ("phi3small",)
"""Kinds whose class the public library does not have; one of our own stands in for it (`references.py`)."""


def gathered(name: str) -> dict[str, Any]:
    """One of the tables above, of all families."""
    return {key: value for module in MODULES for key, value in getattr(module, name, {}).items()}


def variants(kind: str) -> dict[str, dict[str, Any]]:
    """The variants of a family."""
    found = [module for module in MODULES if module.__name__ == f"{__name__}.{kind.replace('-', '_')}"]
    return getattr(found[0], "VARIANTS", {}) if found else {}


def cases() -> list[tuple[str, str]]:
    """Kind and variant of every case; each family's own small config comes first."""
    return [(family.kind, name) for family in families() for name in ("tiny", *variants(family.kind))]


def config_of(kind: str, variant: str) -> dict[str, Any]:
    """The config of a case. A key of RoPE that is None is taken out; elsewhere null is a value."""
    family = Family.named(kind)
    assert family is not None
    changes = {} if variant == "tiny" else variants(kind)[variant]
    config = family.small | changes
    return {name: value for name, value in config.items() if not (value is None and name.startswith("ro"))}
