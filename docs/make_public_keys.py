"""Write anyformer/families/public_keys.json, the config names that public classes read.

It reads the source of the pinned release of transformers and runs none of it: what a class's config declares, takes from
its keyword arguments or maps to another name, and what its modules read off anything that is called a config. Modules
that a class imports from the library count for it, those that every class goes through count for all. Names of methods
and properties count too, since a key of that name would replace them.
"""

from __future__ import annotations

import ast
import json
from collections.abc import Iterable, Iterator
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path

from anyformer.families.family import families
from anyformer.families.towers import TOWERS

PLACE = Path(__file__).parents[1] / "anyformer" / "families" / "public_keys.json"
CONFIGS = ("configuration_utils.py", "modeling_rope_utils.py", "integrations/heterogeneity/configuration_utils.py")
"""What every config is made of: the base class and its mixins."""
SHARED = (
    "modeling_utils.py", "masking_utils.py", "cache_utils.py", "modeling_layers.py", "modeling_attn_mask_utils.py",
    "modeling_flash_attention_utils.py", "pytorch_utils.py", "activations.py", "loss/loss_utils.py",
    "core_model_loading.py", "conversion_mapping.py", "integrations/sdpa_attention.py",
    "integrations/flash_attention.py", "integrations/flex_attention.py", "integrations/moe.py", "utils/generic.py",
)  # fmt: skip
"""What every model goes through."""
TAKES = ("get", "pop", "setdefault")
ASKS = ("getattr", "hasattr", "setattr")


def library() -> Path:
    """Where transformers is; it is not imported."""
    found = find_spec("transformers")
    if found is None or found.origin is None:
        raise SystemExit("this needs transformers: pip install -e '.[dev]'")
    return Path(found.origin).parent


def text_of(node: ast.expr) -> str | None:
    """A text that is written out."""
    return node.value if isinstance(node, ast.Constant) and isinstance(node.value, str) else None


def called(node: ast.expr) -> str:
    """The last name of an expression: `config` of `self.config`, `get_text_config` of its call."""
    if isinstance(node, ast.Call):
        return called(node.func)
    if isinstance(node, ast.Attribute):
        return node.attr
    return node.id if isinstance(node, ast.Name) else ""


def is_config(node: ast.expr) -> bool:
    """Whether an expression is called a config."""
    name = called(node).lower()
    return "config" in name or "cfg" in name


def reads(tree: ast.AST, *, own: bool) -> Iterator[str]:
    """Names that a module reads off a config; `own`: it is a module of configs, where `self` and kwargs are ones."""

    def counts(node: ast.expr) -> bool:
        return is_config(node) or (own and called(node) in ("self", "cls", "kwargs"))

    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and counts(node.value):
            yield node.attr
        elif isinstance(node, ast.Subscript) and counts(node.value):
            yield from filter(None, [text_of(node.slice)])
        elif isinstance(node, ast.Compare) and any(map(counts, node.comparators)):
            yield from filter(None, [text_of(node.left)])
        elif isinstance(node, ast.Call):
            name = called(node.func)
            asked = name in ASKS and len(node.args) > 1 and counts(node.args[0])
            taken = name in TAKES and isinstance(node.func, ast.Attribute) and counts(node.func.value)
            if asked or (taken and node.args):
                yield from filter(None, [text_of(node.args[1 if asked else 0])])
        elif own and isinstance(node, ast.ClassDef):
            yield from declared(node)
        elif own and isinstance(node, ast.Tuple):
            # Names that a loop asks for one after the other.
            yield from filter(None, map(text_of, node.elts))


def declared(node: ast.ClassDef) -> Iterator[str]:
    """What a class of configs has: fields, methods, arguments, and other names of fields."""
    for part in node.body:
        if isinstance(part, ast.AnnAssign) and isinstance(part.target, ast.Name):
            yield part.target.id
        elif isinstance(part, ast.Assign):
            names = [target.id for target in part.targets if isinstance(target, ast.Name)]
            yield from names
            if "attribute_map" in names and isinstance(part.value, ast.Dict):
                yield from filter(None, (text_of(key) for key in (*part.value.keys, *part.value.values) if key))
        elif isinstance(part, ast.FunctionDef):
            yield part.name
            if part.name in ("__init__", "__post_init__"):
                yield from (argument.arg for argument in (*part.args.args, *part.args.kwonlyargs))


def imported(tree: ast.AST, file: Path, root: Path) -> Iterator[Path]:
    """Modules of other models that a module imports from."""
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.level and node.module:
            place = file.parents[node.level - 1].joinpath(*node.module.split(".")).with_suffix(".py")
            if place.is_file() and place.is_relative_to(root / "models") and "auto" not in place.parts:
                yield place


def names_of(files: Iterable[Path], root: Path) -> set[str]:
    """What modules, and those of models that they import, read."""
    found: set[str] = set()
    seen: set[Path] = set()
    rest = list(files)
    while rest:
        file = rest.pop()
        if file in seen:
            continue
        seen.add(file)
        tree = ast.parse(file.read_text(encoding="utf-8"))
        own = file.name.startswith("configuration_") or str(file.relative_to(root)) in CONFIGS
        found |= set(reads(tree, own=own))
        rest += imported(tree, file, root)
    # Of a config in two halves, one half may be asked for, in which `decoder_layers` are `layers`.
    halves = {name.removeprefix(half) for name in found for half in ("encoder_", "decoder_") if name.startswith(half)}
    return {name for name in found | halves if name.isidentifier() and not name.startswith("__")}


def folders(root: Path, wanted: Iterable[str]) -> dict[str, Path]:
    """Public class -> the module that defines it."""
    found: dict[str, Path] = {}
    for file in sorted((root / "models").glob("*/modeling_*.py")):
        text = file.read_text(encoding="utf-8")
        found |= {name: file for name in wanted if f"\nclass {name}(" in text}
    return found


def table() -> dict[str, object]:
    """The whole file. A family without a public class has no line."""
    root = library()
    shared = names_of((root / name for name in (*CONFIGS, *SHARED)), root)
    classes: dict[str, list[str]] = {}
    for name, file in sorted(folders(root, {each.architectures[0] for each in (*families(), *TOWERS)}).items()):
        config = file.with_name(file.name.replace("modeling_", "configuration_"))
        classes[name] = sorted(names_of((file, config), root) - shared)
    # Those with other heads read the same names; that they exist is all that is noted.
    tasks = sorted(folders(root, {f"{family.stem}For{end}" for family in families() for end in family.tasks}))
    return {"transformers": version("transformers"), "every class": sorted(shared), "classes": classes, "tasks": tasks}


def written() -> str:
    """The file's text."""
    return json.dumps(table(), indent=1) + "\n"


def main() -> None:
    """Write the file."""
    PLACE.write_text(written(), encoding="utf-8")
