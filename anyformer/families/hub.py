"""Models by the name that they have on the Hugging Face hub: from the local cache, or fetched where there is a network.

Only what is read is fetched: the config, safetensors with their index, and the tokenizer with its chat template. Never code, never pickles.
"""

import re
from pathlib import Path

from anyformer.errors import CheckpointError, InputError
from anyformer.files import settle

NAME = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*")
WANTED = (
    "config.json", "*.safetensors", "model.safetensors.index.json", "tokenizer.json", "tokenizer_config.json",
    "special_tokens_map.json", "added_tokens.json", "vocab.json", "merges.txt", "vocab.txt", "generation_config.json", "chat_template.jinja",
)  # fmt: skip


def find_folder(source: str | Path, revision: str | None = None) -> Path:
    """The directory of a model: the path itself, or the place in the local cache of a name such as org/name."""
    place = settle(source)
    if place.is_dir():
        return place
    name = str(source)
    if place.exists():
        raise InputError(f"{name}: is a file; give the directory of a model")
    check_weights(name)
    if isinstance(source, Path) or not NAME.fullmatch(name):
        raise InputError(f"{name}: there is no such directory; give one, or a name on the hub such as org/name")
    return fetched(name, revision)


def check_weights(name: str) -> None:
    """Refuse the name of a preset where weights are needed. One with an owner may be a repository, and is not refused."""
    from anyformer.families.zoo import known

    if "/" not in name and known(name) is not None:
        raise InputError(
            f"{name} is a preset: an architecture without weights; `anyformer explain {name}` shows it, "
            "`anyformer quickstart` trains one; give the folder of a trained model, or a name on the hub such as org/name"
        )


def fetched(name: str, revision: str | None = None) -> Path:
    """The snapshot of a repository of the hub, fetched if it is not there yet."""
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HfHubHTTPError, HFValidationError, LocalEntryNotFoundError

    try:
        found = Path(snapshot_download(name, revision=revision, allow_patterns=list(WANTED)))
    except HFValidationError as error:
        raise InputError(f"{name}: there is no such directory, and it is no name on the hub: {error}") from error
    except LocalEntryNotFoundError as error:
        raise CheckpointError(
            f"{name}: there is no such directory, it is not in the local cache of the hub, and the hub can't be reached; "
            "fetch it where there is a network (hf download), or give a directory"
        ) from error
    except (HfHubHTTPError, OSError) as error:
        first = (str(error).strip().splitlines() or [type(error).__name__])[0]
        raise CheckpointError(f"{name}: there is no such directory, and the hub gives none: {first}") from error
    if not (found / "config.json").is_file():
        raise CheckpointError(f"{name}: its copy in the local cache ({found}) has no config.json")
    return found
