"""How honest the lab's statistics are on real runs: python bench/calibration.py [studies/null]

Draws studies from a pool of runs of one and the same spec: 8 names with disjoint seeds, 200 redraws. A null study should claim a
difference in about 5% of them; a planted difference of 5 standard deviations should be found.
"""

import statistics
import sys
from pathlib import Path

from anyformer.lab.results import Results
from anyformer.lab.statistics.calibration import null_study, planted_study

ROOT = Path(__file__).resolve().parents[1]


def main() -> None:
    folder = Path(sys.argv[1]) if len(sys.argv) > 1 else ROOT / "studies" / "null"
    results = Results.read(folder)
    values = list(results.variant(results.base).values("loss").values())
    print(f"{len(values)} runs, loss {statistics.mean(values):.4f}, sd between seeds {statistics.stdev(values):.4f}")
    own = {"pool_below": 2}
    rows = {
        "null, 5 seeds": null_study(values),
        "planted 5 sd, 5 seeds": planted_study(values),
        "planted 5 sd, 3 seeds, own variance": planted_study(values, seeds=3, **own),
        "null, 3 seeds, pooled": null_study(values, seeds=3),
        "planted 5 sd, 3 seeds, pooled": planted_study(values, seeds=3),
    }
    for name, rate in rows.items():
        print(f"{name:40} {rate:.1%}")


if __name__ == "__main__":
    main()
