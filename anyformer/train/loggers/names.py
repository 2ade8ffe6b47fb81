"""The name under which a service knows a run: drawn once, and kept in the run's folder."""

from __future__ import annotations

import uuid
from pathlib import Path

from anyformer.files import replace_file

FILE = ".logged-as"


def name_there(folder: Path, *, fresh: bool) -> str:
    """The name of this run elsewhere; a run that begins from its first step has a new one."""
    place = folder / FILE
    if not fresh and place.is_file():
        return place.read_text(encoding="ascii").strip()
    name = uuid.uuid4().hex[:12]
    replace_file(place, lambda beside: beside.write_text(f"{name}\n", encoding="ascii"))
    return name
