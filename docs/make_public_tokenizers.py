"""Write anyformer/data/public_tokenizers.json: which tokenizer class reads a folder, and which have steps of their own.

It reads the source of the pinned release of transformers and runs none of it, so that it is the same whatever optional
libraries are there.
"""

from __future__ import annotations

import ast
import json
from collections.abc import Iterator
from importlib.metadata import version
from pathlib import Path

from make_public_keys import library, text_of

PLACE = Path(__file__).parents[1] / "anyformer" / "data" / "public_tokenizers.json"
AUTO = "models/auto/tokenization_auto.py"
BACKENDS = ("TokenizersBackend", "PreTrainedTokenizerFast")
"""The classes that take a tokenizer.json as it is."""


def chosen(node: ast.expr) -> str | None:
    """The class that an entry names where its libraries are there, but for Mistral's own, which reads other files."""
    while isinstance(node, ast.IfExp):
        node = node.orelse if "mistral_common" in ast.dump(node.test) else node.body
    return text_of(node)


def registered(tree: ast.Module) -> dict[str, str]:
    """Type of model -> class, and those types whose folders name a wrong class."""
    found: dict[str, str] = {}
    for name, value in assigned(tree):
        if name == "TOKENIZER_MAPPING_NAMES":
            for pair in ast.walk(value):
                if isinstance(pair, ast.Tuple) and len(pair.elts) == 2 and (kind := text_of(pair.elts[0])) is not None:
                    found[kind] = (chosen(pair.elts[1]) or BACKENDS[0]).removesuffix("Fast")
    return found


def misnamed(tree: ast.Module) -> list[str]:
    """Types of model whose folders are known to name a wrong class."""
    values = [value for name, value in assigned(tree) if name == "MODELS_WITH_INCORRECT_HUB_TOKENIZER_CLASS"]
    return sorted(text for node in ast.walk(values[0]) if isinstance(node, ast.expr) and (text := text_of(node)))


def assigned(tree: ast.Module) -> Iterator[tuple[str, ast.expr]]:
    """What stands at the top of a module: name and value."""
    for node in tree.body:
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name) and node.value is not None:
            yield node.target.id, node.value
        elif isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
            yield node.targets[0].id, node.value


def own_steps(root: Path) -> list[str]:
    """Classes that build a tokenizer themselves, or whose base does: all that do not take a tokenizer.json as it is."""
    bases: dict[str, list[str]] = {}
    builds: set[str] = set()
    public: set[str] = set()
    for file in sorted((*root.glob("models/*/tokenization_*.py"), *root.glob("tokenization_*.py"))):
        tree = ast.parse(file.read_text(encoding="utf-8"))
        for node in tree.body:
            if isinstance(node, ast.ClassDef):
                bases[node.name] = [each.id for each in node.bases if isinstance(each, ast.Name)]
                if any(isinstance(each, ast.FunctionDef) and each.name == "__init__" for each in node.body):
                    builds.add(node.name)
            elif isinstance(node, ast.ImportFrom):
                bases |= {each.asname: [each.name] for each in node.names if each.asname is not None}
        for name, value in assigned(tree):
            if name == "__all__":
                public |= {text for each in ast.walk(value) if isinstance(each, ast.expr) and (text := text_of(each))}
            elif isinstance(value, ast.Name):
                # Another name of a class.
                bases[name] = [value.id]

    def builds_itself(name: str) -> bool:
        return name not in BACKENDS and (name in builds or any(builds_itself(base) for base in bases.get(name, ())))

    return sorted({name.removesuffix("Fast") for name in public if name in bases and builds_itself(name)})


def table() -> dict[str, object]:
    """The whole file."""
    root = library()
    tree = ast.parse((root / AUTO).read_text(encoding="utf-8"))
    types, wrong = registered(tree), misnamed(tree)
    return {
        "transformers": version("transformers"),
        "registered": dict.fromkeys(wrong, BACKENDS[0]) | types,
        "misnamed": wrong,
        "own steps": own_steps(root),
    }


def written() -> str:
    """The file's text."""
    return json.dumps(table(), indent=1, sort_keys=True) + "\n"


def main() -> None:
    """Write the file."""
    PLACE.write_text(written(), encoding="utf-8")
