"""Walks by hand: `python -m tests.walks --walks 2000 --jobs 2`; one again: `python -m tests.walks --only SEED`."""

import argparse
import collections
import concurrent.futures
import multiprocessing
import sys
import time

from tests.walks.actions import ACTIONS
from tests.walks.walk import STEPS, Outcome, Taken, settle, shrunk, some, walk
from tests.walks.world import Settings


def parser() -> argparse.ArgumentParser:
    told = argparse.ArgumentParser("python -m tests.walks", description="Random walks over the public surface.")
    told.add_argument("--walks", type=int, default=200)
    told.add_argument("--steps", type=int, default=STEPS, help="actions of each walk")
    told.add_argument("--specs", type=int, default=60, help="how many specs the walks take turns on")
    told.add_argument("--seed", type=int, default=0, help="of the first walk; the others follow")
    told.add_argument("--jobs", type=int, default=1, help="processes that walk at once")
    told.add_argument("--device", default="cpu")
    told.add_argument("--backend", default="aot_eager", help="what some walks compile with; none: no walk does")
    told.add_argument("--compiles", type=int, default=40, help="every so many-th walk compiles; 1: all")
    told.add_argument("--captured", action="store_true", help="steps by replay of CUDA graphs too")
    told.add_argument("--ignore", action="append", default=[], metavar="KIND", help="a kind of violation to pass over")
    told.add_argument("--stop", action="store_true", help="end at the first walk that fails")
    told.add_argument("--only", type=int, metavar="SEED", help="this walk alone")
    told.add_argument("--actions", metavar="NAME:STEP,...", help="with --only: these actions instead of drawn ones")
    return told


def main() -> int:
    asked = parser().parse_args()
    settings = Settings(
        device=asked.device, backend=None if asked.backend == "none" else asked.backend, compiles=asked.compiles,
        captured=asked.captured, specs=asked.specs, ignored=tuple(asked.ignore),
    )  # fmt: skip
    settle()
    if asked.only is not None:
        taken: list[Taken] | None = None
        if asked.actions:
            taken = [(name, int(step)) for name, _, step in (each.partition(":") for each in asked.actions.split(","))]
        found = walk(asked.only, settings, steps=asked.steps, taken=taken)
        print("\n".join(f"{place:3} {name}" for name, place in found.taken))
        print(found.told() if found.failed else "nothing is wrong")
        return int(found.failed)
    seeds = range(asked.seed, asked.seed + asked.walks)
    size = max(1, min(10, asked.walks // (4 * asked.jobs)))
    chunks = [list(seeds[i : i + size]) for i in range(0, len(seeds), size)]
    counts: collections.Counter[str] = collections.Counter()
    failed: list[Outcome] = []
    begun, shown, done, numbers = time.monotonic(), 0.0, 0, set()
    context = multiprocessing.get_context("spawn")
    with concurrent.futures.ProcessPoolExecutor(asked.jobs, mp_context=context) as pool:
        made = (some(chunk, settings, asked.steps) for chunk in chunks)
        if asked.jobs > 1:
            waiting = [pool.submit(some, chunk, settings, asked.steps) for chunk in chunks]
            made = (each.result() for each in concurrent.futures.as_completed(waiting))
        for outcomes in made:
            for outcome in outcomes:
                done += 1
                numbers.add(outcome.number)
                counts.update(name for name, _ in outcome.taken)
                if outcome.failed:
                    failed.append(outcome)
                    print(outcome.told(), flush=True)
            if time.monotonic() - shown > 20 or done == asked.walks:
                shown = time.monotonic()
                print(f"{done} of {asked.walks} walks, {sum(counts.values())} actions, {len(failed)} failed, {shown - begun:.0f} s", flush=True)  # fmt: skip
            if failed and asked.stop:
                pool.shutdown(wait=True, cancel_futures=True)
                break
    print(
        f"\n{done} walks on {len(numbers)} specs, {sum(counts.values())} actions, {len(failed)} walks with violations"
    )
    for name, count in sorted(counts.items(), key=lambda each: -each[1]):
        print(f"  {count:6} {name}")
    unused = sorted(ACTIONS.keys() - counts.keys())
    if unused:
        print(f"  never taken here: {', '.join(unused)}")
    if failed:
        first = min(failed, key=lambda each: (len(each.taken), each.seed))
        print(f"\nThe first to fail is walk {min(each.seed for each in failed)}. The shortest, made shorter:")
        print(shrunk(first, settings).told())
    return int(bool(failed))


if __name__ == "__main__":
    sys.exit(main())
