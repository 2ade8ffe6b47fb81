"""Models by their name on the hub: found in the local cache without a network, and clear words where it is not there."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

import anyformer as af
from anyformer.errors import CheckpointError, InputError
from anyformer.families import io as hub
from anyformer.families.family import Family

ROOT = Path(__file__).parents[2]
COMMIT = "0123456789abcdef0123456789abcdef01234567"


@pytest.fixture
def cache(tmp_path):
    """A cache as the hub's library lays it out: files are links into the blobs of their repository."""
    family = Family.named("llama")
    af.save(af.build(family.spec_from(family.small), seed=5), tmp_path / "made", format="hf")
    repository = tmp_path / "home" / "hub" / "models--org--tiny.llama"
    snapshot = repository / "snapshots" / COMMIT
    for place in (snapshot, repository / "refs", repository / "blobs"):
        place.mkdir(parents=True)
    (repository / "refs" / "main").write_text(COMMIT)
    for file in (tmp_path / "made").iterdir():
        file.rename(repository / "blobs" / file.name)
        (snapshot / file.name).symlink_to(f"../../blobs/{file.name}")
    return tmp_path / "home"


def offline(home, code):
    """Run code where there is no network and the hub's cache is ours."""
    environment = os.environ | {"HF_HOME": str(home), "HF_HUB_OFFLINE": "1", "HF_HUB_CACHE": str(home / "hub")}
    return subprocess.run(
        [sys.executable, "-c", f"import anyformer as af\n{code}"],
        cwd=ROOT, env=environment, capture_output=True, text=True, check=False,
    )  # fmt: skip


def test_load_by_name_reads_the_local_cache(cache):
    done = offline(
        cache, "m = af.load('org/tiny.llama'); print(m.spec.position.kind, sum(p.numel() for p in m.parameters()))"
    )
    assert done.returncode == 0, done.stderr
    family = Family.named("llama")
    assert done.stdout.split() == ["rope", str(family.spec_from(family.small).count().params)]


def test_load_by_a_name_that_is_not_cached_says_what_to_do(cache):
    done = offline(cache, "af.load('org/other')")
    last = done.stderr.strip().splitlines()[-1]
    assert "CheckpointError: org/other: there is no such directory, it is not in the local cache of the hub" in last
    assert "or give a directory" in last


def test_command_by_name_converts_from_the_cache(cache, tmp_path):
    code = f"from anyformer.cli.main import main; raise SystemExit(main(['convert', 'org/tiny.llama', '{tmp_path / 'new'}']))"
    done = offline(cache, code)
    assert done.returncode == 0, done.stderr
    assert sorted(os.listdir(tmp_path / "new")) == ["model.safetensors", "spec.toml"]


@pytest.mark.parametrize(
    "name", ["nowhere", "a/b/c", "./a/b", "../a", "/org/name", "org/", "/name", "a b/c", "-x/y", "", "~/m"]
)
def test_path_that_is_not_there_is_never_asked_of_the_hub(name, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(hub, "fetched", lambda *_: pytest.fail("asked the hub"))
    if name == "":
        assert hub.find_folder(name) == Path(), "which is the folder that one is in"
        return
    with pytest.raises(InputError, match="there is no such directory"):
        hub.find_folder(name)
    with pytest.raises(InputError, match="there is no such directory"):
        hub.find_folder(Path("org/name"))


def test_directory_wins_over_a_name_on_the_hub(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(hub, "fetched", lambda *_: pytest.fail("asked the hub"))
    (tmp_path / "org" / "name").mkdir(parents=True)
    assert hub.find_folder("org/name") == Path("org/name")
    (tmp_path / "org" / "file").write_text("")
    with pytest.raises(InputError, match="is a file"):
        hub.find_folder("org/file")


def test_fetching_asks_for_nothing_but_what_is_read(monkeypatch, tmp_path):
    import huggingface_hub

    asked = {}

    def download(name, **given):
        asked.update(given, name=name)
        return str(tmp_path)

    monkeypatch.setattr(huggingface_hub, "snapshot_download", download)
    with pytest.raises(CheckpointError, match=r"has no config\.json"):
        hub.fetched("org/name")
    assert asked["allow_patterns"] == [
        "config.json", "*.safetensors", "model.safetensors.index.json", "tokenizer.json", "tokenizer_config.json",
        "special_tokens_map.json", "added_tokens.json", "vocab.json", "merges.txt", "vocab.txt", "generation_config.json",
        "chat_template.jinja", "modules.json", "sentence_bert_config.json", "config_sentence_transformers.json",
        "[0-9]_*/*.json",
    ]  # fmt: skip
    (tmp_path / "config.json").write_text("{}")
    assert hub.fetched("org/name", "v1") == tmp_path
    assert asked["revision"] == "v1"
