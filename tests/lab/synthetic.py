"""Results that no run made: plausible loss curves, seeds that share their luck, a run that diverged, speeds in rounds."""

import math
import random
from dataclasses import replace

from anyformer.lab.results import Claim, Results, RunResult, VariantResult

GAINS = {"base": 0.0, "alibi": 0.030, "nope": 0.085, "swiglu": -0.055, "qk-norm": -0.004, "post-norm": 0.16}
"""How far each variant's final loss is from the base's."""
SPEED = {"base": 1.0, "alibi": 0.97, "nope": 1.03, "swiglu": 0.98, "qk-norm": 0.93, "post-norm": 1.0}
STEPS, TOKENS = 1000, 16_384


def loss(step, end, luck, noise):
    """A power law that ends where it should, from about the log of the vocabulary."""
    return end + luck + 5.6 * ((1 + step / 12) ** -0.55 - (1 + STEPS / 12) ** -0.55) + noise


def run(seed, end, *, points=50, seconds=62.0, diverges=False, lengths=()):
    chance = random.Random(f"{seed} {end} {seconds}")
    luck = random.Random(seed).gauss(0, 0.02)
    steps = [round(STEPS * i / points) for i in range(1, points + 1)]
    curve = [(step, step * TOKENS, loss(step, end, luck, chance.gauss(0, 0.006))) for step in steps]
    if diverges:
        reached = [
            (step, tokens, value + max(0, 50 * i / points - 14) ** 1.6 / 20)
            for i, (step, tokens, value) in enumerate(curve)
        ]
        reached = reached[: points // 2]
        done = reached[-1][0]
        return RunResult(
            seed=seed, status="diverged", reason="the loss was not finite at step 512", curve=reached,
            metrics={"loss": None}, seconds=seconds * done / STEPS, steps=done, tokens=done * TOKENS,
        )  # fmt: skip
    final = curve[-1][2]
    metrics = {"loss": final, "bits_per_byte": final / math.log(2) / 3.9}
    # Beyond the length of training, 512, a loss rises unless the positions carry on.
    metrics |= {f"loss@{n}": final - 0.05 * math.log2(n / 512) + max(0, math.log2(n / 512)) * 6 * abs(end - 3.47)
                for n in lengths}  # fmt: skip
    return RunResult(
        seed=seed, status="finished", metrics=metrics, curve=curve, seconds=seconds,
        steps=STEPS, tokens=STEPS * TOKENS,
    )  # fmt: skip


def variant(name, gain, *, changes=None, seeds=5, speed=1.0, lost=(), kv=768.0, points=50, lengths=()):
    chance = random.Random(name)
    rounds = [speed * (1 + chance.gauss(0, 0.01)) for _ in range(7)]
    runs = [
        run(seed, 3.5 + gain, points=points, seconds=62 / speed + seed / 10, diverges=seed in lost, lengths=lengths)
        for seed in range(seeds)
    ]
    return VariantResult(
        name=name, changes=changes or {}, solved={"ffn.width": 344} if "swiglu" in name else {},
        off_by=0.0012 if "swiglu" in name else 0.0, params=10_234_880 + 1024 * len(name),
        train_flops=1.02e15 * (1 + len(name) / 1000), kv_bytes_per_token=kv, steps=STEPS, tokens_per_step=TOKENS,
        speeds={"train_tokens_per_second": [264e3 * r for r in rounds],
                "decode_tokens_per_second": [5100.0 * r for r in rounds]},
        peak_memory=1_482_000_000, runs=runs,
    )  # fmt: skip


CHANGES = {
    "base": {}, "alibi": {"position.kind": "alibi"}, "nope": {"position.kind": "none"}, "swiglu": {"ffn.kind": "swiglu"},
    "qk-norm": {"attention.qk_norm": "per-head"}, "post-norm": {"norm.placement": "post"},
}  # fmt: skip


def study(*, points=50, lengths=(), seeds=5):
    """Six variants, five seeds; a run of post-norm diverged."""
    variants = [
        variant(
            name, gain, changes=CHANGES[name], speed=SPEED[name], lost={3} if name == "post-norm" else (),
            kv=768.0 if name != "qk-norm" else 384.0, points=points, lengths=lengths, seeds=seeds,
        )
        for name, gain in GAINS.items()
    ]  # fmt: skip
    return Results(
        title="Positions, gates and norms at equal parameters", command="anyformer ablate studies/axes.toml",
        study={"title": "Positions", "base": "recipes/wikitext-2.toml", "seeds": seeds, "match": {"to": "params"},
               "vary": {"position.kind": ["alibi", "none"], "ffn.kind": ["swiglu"]}, "budget": "1000 steps"},
        budget="1000 steps of 16,384 tokens", match="parameters within 0.5%, by ffn.width",
        machine="NVIDIA H200, torch 2.13, bfloat16", date="2026-03-05 14:02", seconds=1902.0,
        notes=["post-norm, seed 3: diverged at step 512."], variants=variants,
        claims=[
            Claim(claim="SwiGLU beats GELU at equal parameters", paper="Shazeer 2020", better="swiglu"),
            Claim(claim="ALiBi is as good as RoPE", paper="Press et al. 2021", better="alibi", margin=0.05),
            Claim(claim="Post-norm is better than pre-norm", paper="nobody", better="post-norm"),
        ],
    )  # fmt: skip


def many(count=20, seeds=5):
    """A study with more variants than colours."""
    chance = random.Random(7)
    base = study().variants[0]
    others = [
        variant(
            f"ffn.kind={kind}, norm.placement={placement}", chance.gauss(0, 0.04), speed=chance.uniform(0.8, 1.2),
            changes={"ffn.kind": kind, "norm.placement": placement}, kv=chance.choice([384.0, 768.0, 1536.0]), seeds=seeds,
        )
        for kind in ("relu", "gelu", "silu", "relu2", "swiglu")
        for placement in ("pre", "post", "sandwich", "output")
    ]  # fmt: skip
    base = replace(base, runs=base.runs[:seeds])
    return replace(
        study(), title="Feed-forwards and norms, all combinations", claims=[], variants=[base, *others][:count]
    )


def sweep(seeds=3):
    """Learning rates over two decades, for two widths."""
    variants = [study(seeds=seeds).variants[0]]
    for width, floor in ((256, 0.05), (512, -0.08)):
        for factor in (0.1, 0.3, 1.0, 3.0, 10.0):
            gain = floor + 0.06 * math.log10(factor * 512 / width / 1.5) ** 2
            variants.append(
                variant(f"lr={factor:g}, width={width}", gain, changes={"lr": factor, "width": width}, seeds=seeds)
            )
    return replace(study(seeds=seeds), title="Learning rates by width", variants=variants, claims=[])
