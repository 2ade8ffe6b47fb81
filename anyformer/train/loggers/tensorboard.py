"""TensorBoard: event files in the run's folder, for `tensorboard --logdir`."""

from collections.abc import Mapping
from typing import Any

from anyformer.train.loggers import Service


class TensorBoard(Service, kind="tensorboard"):
    """Writes to `tensorboard/` of the run."""

    package = "tensorboard"

    def begin(self, name: str, config: Mapping[str, Any], step: int) -> None:
        import json

        from torch.utils.tensorboard import SummaryWriter

        # What was written after the checkpoint that a run goes on from is hidden: it is about to happen once more.
        self.writer: Any = SummaryWriter(str(self.folder / "tensorboard"), purge_step=step + 1 if step else None)
        if not step:
            self.writer.add_text("config", f"```\n{json.dumps(config, indent=2)}\n```", 0)

    def numbers(self, found: Mapping[str, float], step: int) -> None:
        for name, value in found.items():
            self.writer.add_scalar(name, value, step)

    def text(self, text: str, step: int) -> None:
        # An indented block is shown as it is: what a model writes is no markup.
        self.writer.add_text("sample", "\n".join(f"    {line}" for line in text.splitlines()), step)

    def end(self) -> None:
        self.writer.close()
