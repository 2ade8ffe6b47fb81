"""What a family of published models is: its specs by name, how its config.json reads, and where its weights go.

A family is a leaf: one file, found by its name, with no forward pass of its own; what a model needs that a spec can't
say yet becomes a leaf of another axis first. CONTRIBUTING.md tells how to add one. Tests find it through the registry:
they compare logits with the public class on `small`, take the weights there and back, and count every preset. `write`
need not check anything. What it could not say shows when the keys are read back, and is refused by its name.
"""

import re
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import KW_ONLY, dataclass
from typing import Any, ClassVar

from anyformer.errors import InputError, SpecError
from anyformer.families.config_keys import COMMON, Key, SpecView, read_ids, write_ids
from anyformer.families.config_values import HARMLESS, REMOTE, Values, has, public_keys, read_by, without
from anyformer.families.facts import differences
from anyformer.families.key_groups import LAYERS, Arrangement, KeyGroup, crossed
from anyformer.families.statemap import StateMap
from anyformer.families.tasks import DECODER, Task
from anyformer.families.towers import Tower
from anyformer.registry import OpenAxis
from anyformer.specs.codec import Problems
from anyformer.specs.embed_head import NoHead
from anyformer.specs.model import ModelSpec
from anyformer.specs.overrides import vary


@dataclass(frozen=True)
class Preset:
    """One published model, as data."""

    name: str
    title: str
    """What it is called in print, with its year."""
    changes: Mapping[str, Any]
    """What it has otherwise than the family's base, by dotted names."""
    params: int
    """Unique parameters, counted on the public class or as published."""
    _: KW_ONLY
    also: tuple[str, ...] = ()
    """Other names under which people look for it."""
    hub: tuple[str, ...] = ()
    """Repositories of the Hugging Face hub that hold it; the part after the slash is a name of it too."""
    published: str = ""
    """What the publisher says about that number; unless given, that released files have so many."""
    evidence: str
    """Where the values were read."""
    note: str = ""
    released: bool = True
    """Whether its weights were published; otherwise no exact count can be known."""

    def __post_init__(self) -> None:
        if not self.published:
            object.__setattr__(self, "published", f"{self.params:,} in released files")


def series(
    name: str,
    title: str,
    *rows: tuple[str, Mapping[str, Any], int, *tuple[str, ...]],
    changes: Mapping[str, Any] | None = None,
    also: tuple[str, ...] = (),
    hub: tuple[str, ...] = (),
    published: str = "",
    note: str = "",
    evidence: str = "",
) -> tuple[Preset, ...]:
    """Presets of one series. In names and in `published`, `{}` stands for the size and `{SIZE}` for it in capitals.

    A row is a size, its changes beyond those of all, its parameters, and what it has of its own of `published`, `note`
    and `evidence`, in this order.
    """

    def preset(
        size: str, own: Mapping[str, Any], params: int, said: str = "", noted: str = "", seen: str = ""
    ) -> Preset:
        def named(text: str) -> str:
            return text.format(size, SIZE=size.upper(), params=params)

        return Preset(
            named(name), named(title), dict(changes or {}) | dict(own), params,
            also=tuple(map(named, also)), hub=tuple(map(named, hub)), published=said or named(published),
            evidence=seen or evidence, note=noted or note,
        )  # fmt: skip

    return tuple(preset(*row) for row in rows)


def sizes(width: int, depth: int, heads: int, *more: int) -> dict[str, int]:
    """Sizes as changes of a spec; after these three, if given: key heads, feed-forward, vocabulary and context."""
    names = ("attention.kv_heads", "ffn.width", "vocab", "context")
    return {"width": width, "depth": depth, "attention.heads": heads, **dict(zip(names, more, strict=False))}


TINY: dict[str, float] = {
    "vocab": 61, "width": 32, "depth": 3, "context": 64, "attention.heads": 4, "attention.kv_heads": 2, "ffn.width": 40,
    "norm.eps": 1e-3, "embed.token_types": 3, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2,
}  # fmt: skip
"""What a small config has, by the field that a key is read into; special ids by their keys."""


BASE: dict[str, Any] = {
    "attention": {"heads": 1},
    "embed": {"kind": "tokens"},
    "head": {"kind": "lm"},
    "init": {"kind": "normal", "std": 0.02},
}
"""What a family's base has unless it says otherwise."""


OWN = ("presets", "model_type", "also_types", "before_types", "coded", "exempt")
"""What a family does not take over from a relative that it is derived from."""


class Family(OpenAxis, axis="family", leaves="anyformer.families"):
    """Base of the families.

    One that differs from another in names and defaults is derived from it, and says what it has otherwise.
    """

    base: ClassVar[dict[str, Any]]
    """What all models of the family share, as a spec's data; sizes come from the presets or from a config."""
    presets: ClassVar[tuple[Preset, ...]] = ()
    architectures: ClassVar[tuple[str, ...]] = ()
    """Names of the public classes whose checkpoints it reads; it writes the first."""
    tower: ClassVar[Tower | None] = None
    """The multimodal class around it (see `inside`)."""
    bodies: ClassVar[tuple[str, ...]] = ()
    """Names of the public classes without a head, whose answer is the states; it writes the first. Unless given, the
    public library's name for it; an encoder-decoder has none."""
    model_type: ClassVar[str] = ""
    """Its kind, unless given."""
    coded: ClassVar[bool] = False
    """Its classes were code beside the weights before the public library had them; files that name that code are read."""
    also_types: ClassVar[tuple[str, ...]] = ()
    """Other types whose class it is too, or what the type was called in older files."""
    before_types: ClassVar[bool] = False
    """It was released when configs had no `model_type` yet: one without any name is rather its than a younger family's."""
    exempt: ClassVar[str] = ""
    """What its public class computes otherwise, and is not followed or can't be compared, in one clause."""
    encodes: ClassVar[bool] = False
    """Some of its specs are encoders, though its base is none: a class that may be told to let tokens see later ones, or
    one that is the encoder alone."""
    second: ClassVar[bool] = False
    """Its class computes what an older one does; a spec that looks for a class to be saved as is offered it last. So is
    a family that is derived from another.
    """
    keys: ClassVar[dict[str, Key]] = {}
    """Those of `groups` are added to it."""
    groups: ClassVar[tuple[KeyGroup, ...]] = ()
    written_from: ClassVar[tuple[int, int]] = (-1, 0)
    """The stack and the layer in it that speak for all where keys are written."""
    tensors: ClassVar[StateMap]
    """Where the tensors of a checkpoint go, if that is the same for every spec (otherwise: `weights`)."""
    tasks: ClassVar[Mapping[str, Task]] = DECODER
    """What its classes with other heads are like, by the end of their names; those that the public library has count."""
    stem: ClassVar[str] = ""
    """What the names of those classes begin with; that of the first of `architectures`, unless given."""
    body: ClassVar[str] = ""
    """What they call all but the head, where a tensor of the head is found in it."""
    small: ClassVar[dict[str, Any]] = {}
    """A config of the smallest size at which everything of the family is in use. Sizes of `TINY` are added to it."""

    def __init_subclass__(cls, **rest: Any) -> None:
        super().__init_subclass__(**rest)
        if "kind" not in vars(cls):
            # What several families share is filled in with each of them.
            return
        if any(vars(relative).get("kind") for relative in cls.__mro__[1:]):
            for name in OWN:
                setattr(cls, name, vars(cls).get(name, getattr(Family, name)))
            cls.second = vars(cls).get("second", True)
        cls.model_type = cls.model_type or cls.kind
        if "architectures" in vars(cls) and "stem" not in vars(cls):
            cls.stem = stem_of(cls.architectures[0]) if cls.architectures else ""
        if "architectures" in vars(cls) and "bodies" not in vars(cls):
            two = cls.base.get("topology") == "encoder-decoder"
            cls.bodies = () if two else (f"{cls.stem}Model",)
        cls.keys = {name: key for group in cls.groups for name, key in group.keys.items()} | cls.keys
        firsts: dict[str, str] = {}
        for name, key in cls.keys.items():
            if key.default is not None or key.sets[:1] != ("context",):
                firsts.setdefault(key.sets[0] if key.sets else name, name)
        # A relative's has sizes too, perhaps by other names.
        own = "small" in vars(cls)
        given = {name: value for name, value in cls.small.items() if own or name in COMMON or name in cls.keys}
        cls.small = {name: TINY[field] for field, name in firsts.items() if field in TINY} | given

    @classmethod
    def varied(cls, changes: Mapping[str, Any], source: str = "") -> ModelSpec:
        """The family's base with changes by dotted names."""
        return ModelSpec.from_data(vary(ModelSpec, BASE | cls.base, changes), source)

    @classmethod
    def spec_from(cls, config: Mapping[str, Any], source: str = "", ignore_keys: Sequence[str] = ()) -> ModelSpec:
        """The spec that a config.json describes. Every key that can't be expressed is named in one error.

        Keys that the public class never reads are passed over, with one warning that names them. `ignore_keys` are
        taken as absent, though they would be refused; that of a nested table is a dotted name.
        """
        kept = without(config, ignore_keys)
        changes, values = cls.parse(kept)
        if wrong := cls._not_ignorable(config, ignore_keys):
            raise InputError(f"ignore_keys: {'; '.join(wrong)}")
        if values.problems.found:
            raise SpecError(values.problems.lines, source)
        spec = cls.varied(changes, source)
        if values.passed:
            warnings.warn(
                f"{f'{source}: ' if source else ''}passed over, as {cls.architectures[0]} never reads them: "
                f"{', '.join(values.passed)}",
                stacklevel=2,
            )
        return spec

    @classmethod
    def parse(cls, config: Mapping[str, Any], reader: str = "") -> tuple[dict[str, Any], Values]:
        """What a config has otherwise than the family's base, and its values with all problems.

        `reader` is the public class that reads it, unless that is the family's own.
        """
        problems = Problems()
        if wrong := cls._remote(config):
            problems.add(REMOTE, wrong)
        task = cls.task_in(config)
        keys = COMMON | cls.keys | ({} if task is None else task.all_keys())
        values = Values(without(config, [REMOTE]), keys, problems, read_by(reader or cls.architectures[0]))
        values.bare = cls.is_body(config) if task is None else task.encoder
        own = {} if problems.found else cls.read(values)
        if own and task is not None:
            own = cls.with_task(task, values, own)
            own |= {f"loss.{name}": 0.0 for name in cls.base.get("loss", {})}
        elif own and values.bare:
            own = {name: value for name, value in own.items() if name.partition(".")[0] not in ("head", "loss")}
            own |= {"head": {"kind": NoHead.kind}} | {f"loss.{name}": 0.0 for name in cls.base.get("loss", {})}
        return (read_ids(values, own["vocab"]) | own if own else own), values

    @classmethod
    def task_classes(cls) -> dict[str, Task]:
        """Its classes with other heads, by name."""
        named = {f"{cls.stem}For{end}": task for end, task in cls.tasks.items()}
        return {name: task for name, task in named.items() if name in public_keys()["tasks"]}

    @classmethod
    def task_in(cls, config: Mapping[str, Any]) -> Task | None:
        """The task of the class that a config names; None if it predicts tokens, or is the body alone."""
        named, known = config.get("architectures"), cls.task_classes()
        names = [name for name in named if isinstance(name, str)] if isinstance(named, list) else []
        others = (*cls.architectures, *cls.bodies)
        return None if set(names).intersection(others) else next((known[n] for n in names if n in known), None)

    @classmethod
    def class_of(cls, spec: ModelSpec) -> tuple[str, Task | None]:
        """The class that a spec is written as, and its task if it has one."""
        if isinstance(spec.head, NoHead) and cls.bodies:
            return cls.bodies[0], None
        if spec.head.kind != (BASE | cls.base)["head"]["kind"]:
            for name, task in cls.task_classes().items():
                if task.kind == spec.head.kind:
                    return name, task
        return cls.architectures[0], None

    @classmethod
    def with_task(cls, task: Task, c: Values, changes: dict[str, Any]) -> dict[str, Any]:
        """Changes of a model that predicts tokens as those of one with a task."""
        return task.read(c, changes)

    @classmethod
    def without_task(cls, task: Task, spec: ModelSpec) -> ModelSpec:
        """The model of a spec with a task as one that predicts tokens, of which keys and tensors tell."""
        base = BASE | cls.base
        kept = {name: getattr(spec.head, name) for name in task.kept}
        topology = {"topology": base.get("topology", "decoder")} if task.encoder else {}
        return spec.vary({"head": base["head"] | kept} | topology)

    @classmethod
    def is_body(cls, config: Mapping[str, Any]) -> bool:
        """Whether a config names a class without a head."""
        named = config.get("architectures")
        return isinstance(named, list) and named[:1] != [] and named[0] in cls.bodies

    @classmethod
    def _remote(cls, config: Mapping[str, Any]) -> str:
        """Why a file that names code of its own is refused; empty: it names none, or a class that this family reads.

        Some classes were published as code beside the weights only. A family that lists one reads it instead.
        """
        remote = config.get(REMOTE)
        if remote is None or remote == {}:
            return ""
        named = [str(value) for value in (remote.values() if isinstance(remote, Mapping) else [remote])]
        model = str(remote.get("AutoModelForCausalLM")) if isinstance(remote, Mapping) else ""
        own = [name for name in cls.architectures if read_by(name) is None and model.endswith(f".{name}")]
        if own and config.get("architectures") == own:
            return ""
        stem = stem_of(cls.architectures[0])
        if cls.coded and all(name.rpartition(".")[2].startswith(stem) for name in named):
            return ""
        return (
            f"names code beside the weights ({', '.join(named)}), which is never run, so what it computes is not known; no "
            f"option passes it over. If this is the plain {cls.architectures[0]}, remove {REMOTE} from the file"
        )

    @classmethod
    def _not_ignorable(cls, config: Mapping[str, Any], ignore_keys: Sequence[str]) -> list[str]:
        """Keys that can't be ignored: they are not there, or are read without any problem, or name code."""
        wrong: list[str] = []
        for key in ignore_keys:
            remote = key.partition(".")[0] == REMOTE
            # What is read once all the others are gone.
            alone = without(config, [other for other in ignore_keys if other != key])
            spare = key in cls.parse(alone)[1].passed or key in HARMLESS or key.startswith("_")
            if not has(config, key):
                wrong.append(f"the file has no key {key!r}")
            elif remote and cls._remote(config):
                wrong.append(f"{REMOTE} names code, and is always refused; remove it from the file")
            # A remote one names nothing then, or a class that this family reads instead of its code.
            elif remote or (not spare and cls.readable(alone) is not None):
                wrong.append(f"{key!r} is read and understood, so that it can't be left out")
        return wrong

    @classmethod
    def readable(cls, config: Mapping[str, Any]) -> ModelSpec | None:
        """The spec that a config describes; None where it is refused."""
        changes, values = cls.parse(config)
        try:
            return None if values.problems.found else cls.varied(changes)
        except SpecError:
            return None

    @classmethod
    def hf_from(cls, spec: ModelSpec) -> dict[str, Any]:
        """The config.json of a spec. What the family's files can't say is named in one error.

        Only what reaches the logits is held against them: dropout is written where there is a key for it, and the
        spec's `init` and `loss` have no place in such a file.
        """
        name, task = cls.class_of(spec)
        title = f"as a checkpoint of {name}"
        base = BASE | cls.base
        topology = "encoder" if cls.encodes and spec.topology == "encoder" else base.get("topology", "decoder")
        head = base["head"]["kind"]
        if task is not None:
            topology, head = "encoder" if task.encoder else topology, task.kind
        elif name in cls.bodies:
            head = NoHead.kind
        ends = {
            "topology": (spec.topology, topology),
            "embed.kind": (spec.embed.kind, base["embed"]["kind"]),
            "head.kind": (spec.head.kind, head),
        }
        obstacles = [(name, mine, theirs) for name, (mine, theirs) in ends.items() if mine != theirs]
        config: dict[str, Any] = {"architectures": [name], "model_type": cls.model_type}
        if not obstacles:
            config |= cls.write(spec if task is None else cls.without_task(task, spec)) | write_ids(spec.ids)
            config |= {} if task is None else task.write(spec, cls.view(spec))
            try:
                obstacles = differences(spec, cls.spec_from(config))
            except SpecError as error:
                raise SpecError(error.problems, title) from error
        if obstacles:
            shown = [
                (name, *("unset" if value is None else repr(value) for value in pair)) for name, *pair in obstacles
            ]
            raise SpecError([f"{name}: is {mine}, but such files mean {theirs}" for name, mine, theirs in shown], title)
        return config

    @classmethod
    def read(cls, c: Values) -> dict[str, Any]:
        """What a config has otherwise than `base`, by dotted names: what its keys say, each by itself and in groups."""
        changes, arrangements = c.changes(), list[Arrangement]()
        for group in cls.groups:
            found = dict(group.read(c))
            if LAYERS in found:
                arrangements.append(found.pop(LAYERS))
            changes |= found
        return crossed(changes, arrangements)

    @classmethod
    def write(cls, spec: ModelSpec) -> dict[str, Any]:
        """The keys of a spec with the topology and the ends of `base`; as near as they can say it."""
        view, written, seen = cls.view(spec), dict[str, Any](), set[str]()
        for name, key in cls.keys.items():
            if key.write is not None and seen.isdisjoint(key.sets[:1]):
                written[name] = key.write(view)
                seen.update(key.sets[:1])
        for group in cls.groups:
            written |= group.write(spec)
        return written

    @classmethod
    def view(cls, spec: ModelSpec) -> SpecView:
        """A spec with the layer that speaks for all where keys are written."""
        return SpecView.of(spec, *cls.written_from)

    @classmethod
    def weights(cls, spec: ModelSpec) -> StateMap:
        """Where the tensors of a checkpoint of this spec go, all named as in the class with the head."""
        return cls.tensors.as_encoder() if spec.topology == "encoder" else cls.tensors

    @classmethod
    def table(cls, spec: ModelSpec) -> StateMap:
        """Where they go in the files of this spec's class, which may be the body alone, or have another head."""
        task = cls.class_of(spec)[1]
        if task is not None:
            return task.table(cls.weights(cls.without_task(task, spec)), cls.body)
        return cls.weights(spec).bare() if isinstance(spec.head, NoHead) else cls.weights(spec)


def families() -> list[type[Family]]:
    """Every family that reads and writes checkpoints, by its kind."""
    found = [Family.named(kind) for kind in Family.kinds()]
    return [family for family in found if family is not None and family.architectures]


def stem_of(name: str) -> str:
    """The name of a class without its head."""
    return re.sub(r"(For[A-Z]\w*|LMHeadModel|ModelWithLMHead|Model|_for_\w+)$", "", name)
