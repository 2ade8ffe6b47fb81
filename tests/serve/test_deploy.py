"""The files of deploy/: the container's commands in an environment of their own, the unit, the compose file, dashboards."""

import configparser
import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import tomllib
import venv
from collections.abc import Iterator
from dataclasses import dataclass, field
from importlib import metadata
from pathlib import Path

import pytest

import anyformer
from anyformer.cli.main import parser
from anyformer.cli.serve import read_config
from anyformer.serve.config import Limits
from anyformer.serve.http.listen import LAST_SECONDS
from tests.serve.running import Client

requirements = pytest.importorskip("packaging.requirements")

ROOT = Path(anyformer.__file__).parents[1]
DEPLOY = ROOT / "deploy"
INSTRUCTIONS = {"ARG", "CMD", "COPY", "ENTRYPOINT", "ENV", "EXPOSE", "FROM", "HEALTHCHECK", "RUN", "USER", "VOLUME", "WORKDIR"}  # fmt: skip
LEAVING = Limits().grace_seconds + 2 * LAST_SECONDS + 15
"""Seconds that a server may need to end: what its requests are given, what telling clients takes, and its engine."""


def instructions() -> list[tuple[str, str]]:
    """The lines of the Containerfile, joined where they go on."""
    text = (DEPLOY / "Containerfile").read_text(encoding="utf-8")
    text = "\n".join(line for line in text.splitlines() if not line.startswith("#")).replace("\\\n", " ")
    return [
        (word, " ".join(rest.split())) for word, _, rest in (line.partition(" ") for line in text.splitlines()) if word
    ]


def values(word: str) -> list[str]:
    return [rest for name, rest in instructions() if name == word]


def variables(*words: str) -> dict[str, str]:
    """What ENV or ARG set."""
    return dict(pair.split("=", 1) for word in words for rest in values(word) for pair in shlex.split(rest))


def entrypoint() -> list[str]:
    (found,) = values("ENTRYPOINT")
    return json.loads(found)


def health_check(port: int) -> list[str]:
    (found,) = values("HEALTHCHECK")
    words = json.loads(found.partition("CMD ")[2])
    return [word.replace(":8000/", f":{port}/") for word in words]


def needed(name: str, extras: set[str], seen: dict[str, metadata.Distribution]) -> None:
    """A package that is installed here, and all that it needs."""
    found = metadata.distribution(name)
    seen[name.lower()] = found
    for each in map(requirements.Requirement, found.requires or ()):
        wanted = each.marker is None or any(each.marker.evaluate({"extra": extra}) for extra in {"", *extras})
        if wanted and each.name.lower() not in seen:
            needed(each.name, set(each.extras), seen)


def declared(extra: str) -> Iterator[str]:
    """What pyproject.toml says that we need, with an extra."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    todo = [*project["dependencies"], *project["optional-dependencies"][extra]]
    while todo:
        each = requirements.Requirement(todo.pop())
        if each.name == "anyformer":
            todo += [line for inner in each.extras for line in project["optional-dependencies"][inner]]
        elif each.marker is None or each.marker.evaluate():
            yield str(each)


def link_packages(place: Path) -> None:
    """Put what the extra `serve` needs, pip, and nothing else of this environment into a folder."""
    found: dict[str, metadata.Distribution] = {}
    for line in [*declared("serve"), "pip"]:
        each = requirements.Requirement(line)
        needed(each.name, set(each.extras), found)
    place.mkdir()
    for each in found.values():
        for name in {file.parts[0] for file in each.files or ()} - {"..", "__pycache__"}:
            link, target = place / name, Path(str(each.locate_file(name)))
            if not link.exists() and target.exists():
                link.symlink_to(target)


@dataclass
class Image:
    """What building the Containerfile would leave, as far as it goes without a container."""

    root: Path
    environment: dict[str, str] = field(default_factory=dict)

    def run(self, command: list[str], **how) -> subprocess.CompletedProcess[str]:
        # A name is looked up in our own PATH, which is not that of the image.
        program = shutil.which(command[0], path=self.environment["PATH"])
        return subprocess.run(
            [program, *command[1:]], env=self.environment, capture_output=True, text=True, timeout=900, cwd=self.root, **how
        )  # fmt: skip


@pytest.fixture(scope="module")
def image(tmp_path_factory) -> Image:
    """COPY and RUN of the Containerfile, done in a fresh environment.

    It sees the packages that ours needs by its own account and no others; they are those of this environment, so that
    pip need not fetch them again. All that pip installs is ours, built from the files that are copied.
    """
    if not any(metadata.distributions(name="pip")):
        pytest.skip("there is no pip in this environment")
    root = tmp_path_factory.mktemp("image")
    venv.create(root / "venv", symlinks=True)
    link_packages(root / "packages")
    (site,) = (root / "venv" / "lib").glob("python*/site-packages")
    (site / "packages.pth").write_text(f"{root / 'packages'}\n")
    (root / "index").mkdir()
    ours = {
        name: text for name, text in os.environ.items() if not name.startswith(("PYTHON", "VIRTUAL_ENV", "ANYFORMER"))
    }
    own = variables("ENV", "ARG") | {
        "HOME": str(root), "HF_HOME": str(root / "hub"), "TORCH_INDEX": (root / "index").as_uri(),
        "PATH": os.pathsep.join([str(root / "venv" / "bin"), os.defpath]),
    }  # fmt: skip
    found = Image(root, ours | own)
    source = root / "src"
    source.mkdir()
    for word, rest in instructions():
        if word == "COPY":
            *names, target = rest.split()
            for name in names:
                if (ROOT / name).is_dir():
                    shutil.copytree(ROOT / name, source / target, ignore=shutil.ignore_patterns("__pycache__"))
                else:
                    shutil.copy(ROOT / name, source / target)
        elif word == "RUN":
            done = subprocess.run(
                ["/bin/sh", "-c", rest], env=found.environment, cwd=source, capture_output=True, text=True, timeout=900
            )
            if "No matching distribution found for hatchling" in done.stdout + done.stderr:
                pytest.skip("pip reaches no index to fetch the build backend from")
            assert done.returncode == 0, done.stdout + done.stderr
            if "pip install" in rest:
                assert done.stdout.splitlines()[-1] == f"Successfully installed anyformer-{anyformer.__version__}"
    return found


def test_containerfile_has_an_exec_form_and_no_root_and_no_secret():
    words = [word for word, _ in instructions()]
    assert set(words) <= INSTRUCTIONS
    assert values("FROM") == ["docker.io/library/python:3.12-slim"]
    assert values("USER") == ["10001:10001"]
    assert words.index("USER") > max(i for i, word in enumerate(words) if word == "RUN")
    assert entrypoint()[:2] == ["anyformer", "serve"]
    assert not any("KEY" in name for name in variables("ENV", "ARG"))
    assert json.loads(values("CMD")[0]) == ["--help"]
    given = parser().parse_args([*entrypoint()[1:], "/models/quickstart"])
    assert (given.host, given.port, values("EXPOSE")) == ("0.0.0.0", 8000, ["8000"])


def test_container_is_the_package_without_what_it_does_not_need(image):
    found = image.run(["python", "-c", "import anyformer, sys; print(anyformer.__file__)\nimport transformers"])
    assert Path(found.stdout.strip()).is_relative_to(image.root / "venv")
    assert "No module named 'transformers'" in found.stderr
    assert (image.root / "hub").stat().st_mode & 0o1777 == 0o1777


def test_container_without_arguments_shows_the_help(image):
    shown = image.run([*entrypoint(), *json.loads(values("CMD")[0])])
    assert (shown.returncode, shown.stderr) == (0, "")
    assert "usage: anyformer serve" in shown.stdout


def test_container_without_a_key_is_refused(image, model_folder):
    refused = image.run([*entrypoint(), str(model_folder)])
    assert (refused.returncode, refused.stdout) == (2, "")
    assert "everybody who reaches this machine could use the server" in refused.stderr


def test_container_serves_is_healthy_and_ends_on_sigterm(image, model_folder, launch):
    anyformer_script = shutil.which(entrypoint()[0], path=image.environment["PATH"])
    process = launch(
        [anyformer_script, *entrypoint()[1:], str(model_folder), "--port", "0", "--threads", "1", "--log", "none"],
        env=image.environment | {"ANYFORMER_API_KEY": "secret"}, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        cwd=image.root,
    )  # fmt: skip
    line = process.stderr.readline()
    port = int(re.search(r"http://127\.0\.0\.1:(\d+) ", line)[1])
    checked = image.run(health_check(port))
    assert (checked.returncode, checked.stderr) == (0, "")
    client = Client(port)
    assert client.post("/v1/completions", {"prompt": "the"}).status == 401
    body = {
        "messages": [{"role": "user", "content": "the cat"}],
        "max_tokens": 3,
        "response_format": {"type": "json_object"},
    }
    answer = client.post("/v1/chat/completions", body, Authorization="Bearer secret")
    # An empty object is one too.
    assert (answer.status, answer.data["usage"]["completion_tokens"] in (1, 2, 3)) == (200, True)
    process.send_signal(signal.SIGTERM)
    out, err = process.communicate(timeout=600)
    assert (process.returncode, out, err) == (0, "", "")
    assert image.run(health_check(port)).returncode == 1


UNIT_KEYS = {
    "Unit": {"Description", "Wants", "After"},
    "Service": {
        "Type", "ExecStart", "LoadCredential", "DynamicUser", "CacheDirectory", "Environment", "Restart", "RestartSec",
        "RestartPreventExitStatus", "KillMode", "TimeoutStopSec", "NoNewPrivileges", "ProtectSystem", "ProtectHome", "PrivateTmp",
        "ProtectClock", "ProtectControlGroups", "ProtectHostname", "ProtectKernelLogs", "ProtectKernelModules",
        "ProtectKernelTunables", "RestrictAddressFamilies", "RestrictNamespaces", "RestrictSUIDSGID", "LockPersonality",
        "CapabilityBoundingSet", "UMask", "LimitNOFILE",
    },
    "Install": {"WantedBy"},
}  # fmt: skip


def unit() -> configparser.ConfigParser:
    made = configparser.ConfigParser(interpolation=None, strict=True)
    made.optionxform = str
    made.read(DEPLOY / "anyformer.service", encoding="utf-8")
    return made


def test_unit_has_known_keys_and_a_command_that_we_take(tmp_path):
    found = unit()
    assert set(found.sections()) == set(UNIT_KEYS)
    for section, keys in UNIT_KEYS.items():
        assert set(found[section]) <= keys
    service = found["Service"]
    keys = tmp_path / "api-keys"
    keys.write_text("one\n")
    program, *words = shlex.split(service["ExecStart"].replace("%d", str(tmp_path)))
    assert Path(program).name == "anyformer"
    config = read_config(parser().parse_args(words))
    assert (config.host, config.keys) == ("127.0.0.1", ("one",))
    assert service["LoadCredential"].partition(":")[0] == keys.name
    # A child of ours, such as the engine's process, must not get the signal: its requests are to finish.
    assert (service["KillMode"], service["RestartPreventExitStatus"]) == ("mixed", "2")
    assert int(service["TimeoutStopSec"]) > config.limits.grace_seconds - Limits().grace_seconds + LEAVING
    assert int(service["LimitNOFILE"]) > 2 * config.limits.connections


def test_unit_passes_what_systemd_checks(tmp_path):
    if shutil.which("systemd-analyze") is None:
        pytest.skip("there is no systemd here")
    text = (DEPLOY / "anyformer.service").read_text(encoding="utf-8")
    place = tmp_path / "anyformer.service"
    place.write_text(text.replace("/opt/anyformer/bin/anyformer", sys.executable))
    done = subprocess.run(
        ["systemd-analyze", "verify", str(place)], capture_output=True, text=True, timeout=600, check=False
    )
    if "anyformer.service" not in done.stdout + done.stderr and done.returncode:
        pytest.skip(f"systemd-analyze can't work here: {done.stderr[:200]}")
    assert "anyformer.service" not in done.stdout + done.stderr


COMPOSE_KEYS = {
    "build", "command", "ports", "volumes", "secrets", "init", "read_only", "tmpfs", "cap_drop", "security_opt",
    "stop_grace_period", "restart",
}  # fmt: skip


def test_compose_file_has_known_keys_and_a_command_that_we_take():
    yaml = pytest.importorskip("yaml")
    found = yaml.safe_load((DEPLOY / "compose.yaml").read_text(encoding="utf-8"))
    assert set(found) == {"services", "secrets", "volumes"}
    (service,) = found["services"].values()
    assert set(service) <= COMPOSE_KEYS
    build = service["build"]
    assert (DEPLOY / build["context"] / build["dockerfile"]).resolve() == DEPLOY / "Containerfile"
    assert set(build["args"]) <= {name for rest in values("ARG") for name in [rest.partition("=")[0]]}
    given = parser().parse_args([*entrypoint()[1:], *service["command"]])
    assert given.allowed_hosts == list(found["services"])
    (secret,) = service["secrets"]
    assert given.api_key_file == f"/run/secrets/{secret}"
    assert set(found["secrets"]) == {secret}
    places = dict(line.split(":")[:2] for line in service["volumes"])
    assert set(found["volumes"]) <= set(places)
    assert any(Path(given.model).is_relative_to(place) for place in places.values())
    assert variables("ENV")["HF_HOME"] in places.values()
    assert service["ports"] == [f"127.0.0.1:{given.port}:{given.port}"]
    assert int(service["stop_grace_period"].removesuffix("s")) > LEAVING


GRAFANA = {
    "histogram": (
        "time_to_first_token_seconds", "inter_token_latency_seconds", "e2e_request_latency_seconds", "request_prompt_tokens",
        "request_generation_tokens", "request_queue_time_seconds", "request_prefill_time_seconds",
        "request_decode_time_seconds", "request_max_num_generation_tokens", "iteration_tokens_total",
    ),
    "counter": (
        "prompt_tokens_total", "generation_tokens_total", "request_success_total", "prefix_cache_queries_total",
        "prefix_cache_hits_total", "num_preemptions_total", "prompt_tokens_cached_total",
    ),
    "gauge": ("num_requests_running", "num_requests_waiting", "kv_cache_usage_perc"),
}  # fmt: skip
"""What the dashboards of vLLM ask Prometheus for, by type."""


def test_metrics_of_a_server_are_those_of_the_dashboards(serving):
    with serving(served_model_name=("served",)) as server:
        for prompt in ("the cat", ["the dog", "the mat"]):
            assert server.post("/v1/completions", {"prompt": prompt, "max_tokens": 4, "ignore_eos": True}).status == 200
        server.engine_idle()
        lines = server.get("/metrics").body.decode().splitlines()
    for kind, names in GRAFANA.items():
        for name in names:
            assert f"# TYPE vllm:{name} {kind}" in lines
            rows = [line for line in lines if re.match(rf"vllm:{name}(_bucket|_sum|_count)?\{{", line)]
            assert rows
            assert all('engine="0"' in row and 'model_name="served"' in row for row in rows)
            if kind == "histogram":
                buckets = [
                    (row.split('le="')[1].split('"')[0], float(row.split()[-1])) for row in rows if "_bucket{" in row
                ]
                counts = [count for _, count in buckets]
                bounds = [float(bound) for bound, _ in buckets]
                assert bounds == sorted(bounds)
                assert counts == sorted(counts)
                (total,) = [float(row.split()[-1]) for row in rows if "_count{" in row]
                assert (buckets[-1], total > 0) == (("+Inf", total), True), name
    ended = {row.split('finished_reason="')[1].split('"')[0]: float(row.split()[-1]) for row in lines if row.startswith("vllm:request_success_total{")}  # fmt: skip
    assert ended["length"] == 3
    assert {"stop", "abort"} <= ended.keys()
