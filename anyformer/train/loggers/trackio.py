"""trackio: curves on this machine, or in a Space of the user's."""

from collections.abc import Mapping
from typing import Any

from anyformer.registry import installed
from anyformer.train.loggers import Service, name_there

PROJECT = "anyformer"


class Trackio(Service, kind="trackio"):
    """Uses the user's own settings of trackio."""

    package = "trackio"

    def begin(self, name: str, config: Mapping[str, Any], step: int) -> None:
        self.trackio = installed(self.package)
        # It tells runs apart by their names.
        called = f"{name}-{name_there(self.folder, fresh=not step)}"
        self.trackio.init(project=PROJECT, name=called, config=dict(config), resume="allow")

    def numbers(self, found: Mapping[str, float], step: int) -> None:
        self.trackio.log(dict(found), step=step)

    def text(self, text: str, step: int) -> None:
        self.trackio.log({"sample": text}, step=step)

    def end(self) -> None:
        self.trackio.finish()
