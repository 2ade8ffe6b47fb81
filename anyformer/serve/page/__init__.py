"""The page of the server: its files, and the policy under which a browser runs them."""

from dataclasses import dataclass
from importlib.resources import files
from importlib.resources.abc import Traversable

from anyformer.explain.prompt import MODULES

TYPES = {
    "html": "text/html; charset=utf-8",
    "js": "text/javascript; charset=utf-8",
    "css": "text/css; charset=utf-8",
}


@dataclass(frozen=True, kw_only=True)
class PageFile:
    """What a browser gets for one path."""

    content_type: str
    body: bytes


def page_files() -> dict[str, PageFile]:
    """All files by their path; those that the page of `explain` shares are its own."""
    own, shared = files("anyformer.serve") / "page", files("anyformer.explain") / "web"
    found = {"/": _read(own / "index.html")}
    names = [*(f"{name}.js" for name in MODULES[:-1]), "look.css"]
    places = [shared / name for name in names]
    places += [place for place in own.iterdir() if place.name.endswith((".js", ".css"))]
    return found | {f"/page/{place.name}": _read(place) for place in places}


def policy(connect: tuple[str, ...] = ()) -> str:
    """The Content-Security-Policy of all of them. `connect` are origins of other servers that the page may ask too."""
    allowed = " ".join(("'self'", *connect))
    return (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; "
        f"connect-src {allowed}; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    )


def _read(place: Traversable) -> PageFile:
    return PageFile(content_type=TYPES[place.name.rpartition(".")[2]], body=place.read_bytes())
