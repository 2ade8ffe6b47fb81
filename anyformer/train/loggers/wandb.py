"""Weights & Biases: a run of the same name there, which goes on when ours does."""

from collections.abc import Mapping
from typing import Any

from anyformer.registry import installed
from anyformer.train.loggers import Service, name_there

PROJECT = "anyformer"


class WandB(Service, kind="wandb"):
    """Uses the user's own settings of wandb; its files are kept in the run's folder."""

    package = "wandb"

    def begin(self, name: str, config: Mapping[str, Any], step: int) -> None:
        self.wandb = installed(self.package)
        self.run: Any = self.wandb.init(
            project=PROJECT, name=name, id=name_there(self.folder, fresh=not step), resume="allow", dir=str(self.folder),
            config=dict(config),
        )  # fmt: skip
        # Steps are an axis of our own: its own count never goes back, and a run that is resumed does.
        self.run.define_metric("step")
        self.run.define_metric("*", step_metric="step")

    def numbers(self, found: Mapping[str, float], step: int) -> None:
        self.run.log({"step": step, **found})

    def text(self, text: str, step: int) -> None:
        from html import escape

        self.run.log({"step": step, "sample": self.wandb.Html(f"<pre>{escape(text)}</pre>")})

    def end(self) -> None:
        self.run.finish()
