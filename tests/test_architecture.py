"""The shape of the package, read from its source: one direction of imports, small files, few escapes.

Each check is a function of a directory, so that it can be shown to catch a violation in a made-up package.
"""

import ast
import functools
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

import anyformer

pytestmark = pytest.mark.quick

ROOT = Path(anyformer.__file__).parent
LAYERS = [
    "errors", "registry", "files", "specs", "kernels", "optim", "parts", "model", "nn", "families", "data", "train",
    "generation", "explain", "verify", "evals", "convert", "lab", "serve", "cli",
]  # fmt: skip
"""A file imports from its own layer or one to its left. The one upward step is by name at run time: `registry` imports
the leaves of an axis when a kind is first looked up. The package's own __init__ gathers the public names and is exempt.
"""

LINES = 450
SUPPRESSIONS = 3
"""Type suppressions in the package. It may only fall: lower it when you remove one."""

ASSERTS = {
    ("parts/attention.py", "the model gives either a memory or a cache that holds one"): "the model itself calls it",
}
"""Assertions in the package, by file and message, with the reason why a user can't trigger them."""


def sources(root: Path) -> Iterator[tuple[str, str, ast.Module]]:
    """Name, text and tree of every file below a package."""
    for path in sorted(root.rglob("*.py")):
        text = path.read_text(encoding="utf-8")
        yield path.relative_to(root).as_posix(), text, parsed(text)


@functools.cache
def parsed(text: str) -> ast.Module:
    """A file's tree, which several checks read."""
    return ast.parse(text)


def imported(root: Path, name: str, tree: ast.Module) -> Iterator[tuple[int, str]]:
    """Line and dotted name, without the package's own, of all that a file imports from the package, at any depth."""
    package = root.name
    inside = [package, *Path(name).parent.parts]
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            above = inside[: len(inside) - node.level + 1] if node.level else []
            base = ".".join([*above, *([node.module] if node.module else [])])
            # `from package import layer` names the layer last.
            found = [f"{base}.{alias.name}" for alias in node.names] if base == package else [base]
        else:
            continue
        yield from ((node.lineno, m.removeprefix(f"{package}.")) for m in found if m.split(".")[0] == package)


def wrong_imports(root: Path) -> list[str]:
    """Imports that point to the right, come from no layer, or go by name outside of the registry."""
    wrong: list[str] = []
    for name, _, tree in sources(root):
        if name == "__init__.py":
            continue
        layer = "cli" if name == "__main__.py" else name.split("/")[0].removesuffix(".py")
        if layer not in LAYERS:
            wrong.append(f"{name}: is in no layer; known are {', '.join(LAYERS)}")
            continue
        for line, module in imported(root, name, tree):
            target = module.split(".")[0]
            if module == root.name and layer == "cli":
                # The command line is a user of the public names.
                continue
            if target not in LAYERS:
                wrong.append(f"{name}:{line}: imports {module}, which is no layer; import from where it is defined")
            elif LAYERS.index(target) > LAYERS.index(layer):
                wrong.append(f"{name}:{line}: {layer} imports {module}, which is to its right")
        for node in ast.walk(tree):
            by_name = isinstance(node, ast.Call) and ast.unparse(node.func).split(".")[-1] in (
                "import_module",
                "__import__",
            )
            if by_name and name != "registry.py":
                wrong.append(f"{name}:{node.lineno}: imports by name, which only the registry may")
    return wrong


def long_files(root: Path) -> list[str]:
    return [f"{name}: {text.count(chr(10))} lines" for name, text, _ in sources(root) if text.count("\n") > LINES]


def suppressions(root: Path) -> list[str]:
    """Every comment that silences the type checker."""
    found: list[str] = []
    for name, text, _ in sources(root):
        for number, line in enumerate(text.splitlines(), 1):
            found += [
                f"{name}:{number}: {m}" for m in re.findall(r"#\s*(?:type|pyright):\s*ignore(?:\[[\w, -]+\])?", line)
            ]
    return found


def banned_calls(root: Path) -> list[str]:
    """`hasattr`, which hides a missing attribute, and reads of the environment, which no signature shows."""
    found: list[str] = []
    for name, _, tree in sources(root):
        for node in ast.walk(tree):
            text = ast.unparse(node) if isinstance(node, ast.Name | ast.Attribute | ast.ImportFrom) else ""
            if text in ("hasattr", "os.environ", "os.getenv") or re.match(
                r"from os import .*\b(environ|getenv)\b", text
            ):
                found.append(f"{name}:{node.lineno}: {text}")
    return found


def assertions(root: Path) -> list[tuple[str, str]]:
    """File and message of every assert."""
    return [
        (name, node.msg.value if isinstance(node.msg, ast.Constant) else ast.unparse(node))
        for name, _, tree in sources(root)
        for node in ast.walk(tree)
        if isinstance(node, ast.Assert)
    ]


def test_package_imports_point_left_only():
    assert wrong_imports(ROOT) == []


def test_package_has_no_file_beyond_the_limit():
    assert long_files(ROOT) == []


def test_package_has_no_more_type_suppressions_than_before():
    found = suppressions(ROOT)
    assert len(found) == SUPPRESSIONS, "\n".join([f"{len(found)} suppressions; the number may only fall", *found])


def test_package_suppressions_name_their_rule():
    assert [line for line in suppressions(ROOT) if not line.endswith("]")] == []


def test_package_has_no_hasattr_and_no_environment():
    found = banned_calls(ROOT)
    # A secret is given in the environment, as everybody on a machine can read its command lines.
    assert [line.split(":")[0] for line in found if "getenv" in line] == ["cli/serve.py"]
    assert [line for line in found if not line.startswith("cli/serve.py")] == []


def test_package_asserts_only_its_own_invariants():
    assert sorted(assertions(ROOT)) == sorted(ASSERTS)


@pytest.fixture
def package(tmp_path) -> Path:
    """A package of two layers that breaks no rule."""
    root = tmp_path / "made_up"
    for name, text in {
        "__init__.py": "from made_up.model.build import build\n",
        "errors.py": "",
        "registry.py": "import importlib\nimportlib.import_module('made_up.parts')\n",
        "specs/axes.py": "from made_up.registry import OpenAxis\nfrom made_up import errors\nimport torch\n",
        "parts/norm.py": "from made_up.specs import axes\nfrom ..specs.axes import Norm\nfrom . import ffn\n",
        "model/build.py": "import made_up.parts.norm\n",
    }.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return root


def test_checks_pass_a_package_that_breaks_no_rule(package: Path):
    assert wrong_imports(package) == long_files(package) == suppressions(package) == banned_calls(package) == []
    assert assertions(package) == []


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("from made_up.parts.norm import Norm\n", "specs/bad.py:1: specs imports parts.norm, which is to its right"),
        ("import made_up.model.build\n", "specs/bad.py:1: specs imports model.build, which is to its right"),
        ("from made_up import parts\n", "specs/bad.py:1: specs imports parts, which is to its right"),
        ("from ..parts import norm\n", "specs/bad.py:1: specs imports parts, which is to its right"),
        ("from .. import parts\n", "specs/bad.py:1: specs imports parts, which is to its right"),
        ("def f():\n    from made_up.cli import main\n", "specs/bad.py:2: specs imports cli, which is to its right"),
        ("if TYPE_CHECKING:\n    import made_up.parts\n", "specs/bad.py:2: specs imports parts, which is to its right"),
        ("from made_up import build\n",
         "specs/bad.py:1: imports build, which is no layer; import from where it is defined"),
        ("import importlib\nimportlib.import_module('made_up.parts')\n",
         "specs/bad.py:2: imports by name, which only the registry may"),
    ],
)  # fmt: skip
def test_import_check_catches_a_step_to_the_right(package: Path, text: str, line: str):
    (package / "specs" / "bad.py").write_text(text)
    assert wrong_imports(package) == [line]


def test_import_check_catches_a_file_in_no_layer(package: Path):
    (package / "utils.py").write_text("")
    assert wrong_imports(package) == [f"utils.py: is in no layer; known are {', '.join(LAYERS)}"]


def test_other_checks_catch_what_they_are_for(package: Path):
    (package / "parts" / "bad.py").write_text(
        "import os\n"
        "from os import getenv\n"
        "x = hasattr(os, 'path')\n"
        "y = os.environ['HOME']\n"
        "z: int = ''  # type: ignore\n"
        "z = ''  # pyright: ignore[reportAny]\n"
        "assert x, 'x is true'\n"
        "assert y\n" + "\n" * LINES
    )
    assert long_files(package) == [f"parts/bad.py: {LINES + 8} lines"]
    assert suppressions(package) == ["parts/bad.py:5: # type: ignore", "parts/bad.py:6: # pyright: ignore[reportAny]"]
    assert banned_calls(package) == [
        "parts/bad.py:2: from os import getenv",
        "parts/bad.py:3: hasattr",
        "parts/bad.py:4: os.environ",
    ]
    assert assertions(package) == [("parts/bad.py", "x is true"), ("parts/bad.py", "assert y")]
