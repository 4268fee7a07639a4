"""`python tests/bench/speed measure|table|check`: the benchmark, its table, and what got slower.

measure [--only decode,grpo,…] [--subjects tiny,smollm2] [--out FILE]   minutes; prints each figure as it comes
table [FILE]                                                           writes figures.md beside the baseline
check NEW [BASE]                                                       exit code 1 if a figure is 15 % worse
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE.parents[2]))  # the code of this checkout, not of an installed one

import decode  # noqa: E402
import floor  # noqa: E402
import growth  # noqa: E402
import grpo  # noqa: E402
import memory  # noqa: E402
import report  # noqa: E402
import subjects  # noqa: E402
import torch  # noqa: E402
from timing import Figure  # noqa: E402

PARTS = {"decode": decode.measure, "grpo": grpo.measure, "floor": floor.measure, "growth": growth.measure}
BASELINE = HERE / "baseline.json"


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="speed", description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    measure = commands.add_parser("measure")
    measure.add_argument("--only", default=",".join([*PARTS, "memory"]))
    measure.add_argument("--subjects", default="tiny,smollm2")
    measure.add_argument("--repeats", type=int, default=5)
    measure.add_argument("--home", type=Path, default=HERE.parents[2] / "artifacts" / "bench")
    measure.add_argument("--out", type=Path, default=BASELINE)
    table = commands.add_parser("table")
    table.add_argument("file", type=Path, nargs="?", default=BASELINE)
    check = commands.add_parser("check")
    check.add_argument("new", type=Path)
    check.add_argument("base", type=Path, nargs="?", default=BASELINE)
    given = parser.parse_args(arguments)
    if given.command == "measure":
        torch.set_num_threads(1)
        parts, names = given.only.split(","), given.subjects.split(",")
        if unknown := set(parts) - {*PARTS, "memory"}:
            parser.error(f"no such part: {', '.join(sorted(unknown))}; there are {', '.join([*PARTS, 'memory'])}")
        for figure in _measured(parts, names, given.repeats, given.home):
            must = "" if figure.must is None else f"  (promised {figure.must:g})"
            print(f"{figure.name}: {figure.value:.2f}{figure.unit}{must}  {figure.detail}", flush=True)
            report.write(given.out, [figure], given.repeats)
        return 0
    if given.command == "table":
        (HERE / "figures.md").write_text(report.table(given.file))
        print(report.table(given.file), end="")
        return 0
    lines = report.slower(report.read(given.new), report.read(given.base))
    print("\n".join(lines) or "nothing got slower by more than 15 %")
    return 1 if lines else 0


def _measured(parts: Sequence[str], names: Sequence[str], repeats: int, home: Path) -> Iterator[Figure]:
    def say(line: str) -> None:
        print(line, file=sys.stderr, flush=True)

    if set(parts) & set(PARTS):
        for name in names:
            subject = subjects.tiny(home, say) if name == "tiny" else subjects.smollm2(home, say)
            # A larger model's minute is another model's hour: fewer repetitions, and no growth.
            for part in parts if subject is not None else ():
                if part in PARTS and (subject.small or part != "growth"):
                    yield from PARTS[part](subject, repeats if subject.small else min(repeats, 2))
    if "memory" in parts:
        yield from memory.measure()


if __name__ == "__main__":
    sys.exit(main())
