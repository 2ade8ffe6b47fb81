"""Open axes: a kind is a name, a class and nothing else.

A leaf file declares `class Alibi(Position, kind="alibi")`. That registers it. The files of the axis's own
package are imported when a kind is first looked up, and so are the modules that installed packages name under
the entry point group `anyformer.leaves`. Kinds are names in this table, never paths to code, so a spec file
can't make us import anything.
"""

import importlib
import importlib.metadata
import pkgutil
from typing import Any, ClassVar, Self

ENTRY_POINTS = "anyformer.leaves"
_loaded: set[str] = set()


class OpenAxis:
    """Base of every axis to which a paper can add a member."""

    axis: ClassVar[str] = ""
    kind: ClassVar[str] = ""
    _leaves: ClassVar[str] = ""
    _registered: ClassVar[dict[str, type[Any]]] = {}

    def __init_subclass__(cls, *, axis: str = "", leaves: str = "", kind: str = "", **rest: Any) -> None:
        super().__init_subclass__(**rest)
        if axis:
            cls.axis, cls._leaves, cls._registered = axis, leaves, {}
        if kind:
            known = cls._registered.get(kind)
            if known is not None and (known.__module__, known.__qualname__) != (cls.__module__, cls.__qualname__):
                raise TypeError(f"{cls.axis} kind {kind!r} is taken by {known.__module__}.{known.__qualname__}")
            cls.kind = kind
            cls._registered[kind] = cls

    @classmethod
    def kinds(cls) -> tuple[str, ...]:
        """Every registered kind of this axis, sorted."""
        _load(cls._leaves)
        _load(ENTRY_POINTS)
        return tuple(sorted(kind for kind, leaf in cls._registered.items() if issubclass(leaf, cls)))

    @classmethod
    def named(cls, kind: str) -> type[Self] | None:
        """The class of a kind, or None. Installed extensions are read only if we don't have the kind ourselves."""
        _load(cls._leaves)
        if kind not in cls._registered:
            _load(ENTRY_POINTS)
        return cls._registered.get(kind)

    @classmethod
    def of_kind(cls, kind: str) -> Self:
        """A leaf of a kind that must be there, with its defaults."""
        leaf = cls.named(kind)
        if leaf is None:
            raise TypeError(f"{cls.axis} has no kind {kind!r}")
        return leaf()


def _load(name: str) -> None:
    """Import the leaves of a package, or (ENTRY_POINTS) what installed packages name; each once."""
    if name in _loaded:
        return
    # Noted before it is done, as a leaf may look up a kind of its own axis while it is imported.
    _loaded.add(name)
    try:
        if name == ENTRY_POINTS:
            for point in importlib.metadata.entry_points(group=ENTRY_POINTS):
                point.load()
        else:
            module = importlib.import_module(name)
            for leaf in pkgutil.iter_modules(getattr(module, "__path__", ())):
                importlib.import_module(f"{name}.{leaf.name}")
    except BaseException:
        # The next look-up must fail in the same way, not answer from what was loaded before the failure.
        _loaded.discard(name)
        raise


def installed(package: str) -> Any:
    """A package that we don't depend on but that a user may have; ImportError if not. The name is written in our source."""
    return importlib.import_module(package)


def own_version() -> str:
    """The version of this package; a tree that is only on the path has none."""
    try:
        return importlib.metadata.version("anyformer")
    except importlib.metadata.PackageNotFoundError:
        return "not installed"
