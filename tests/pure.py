"""The pure files: no network, no clock, no configuration, and every branch tested.

``python -m tests.pure`` prints them for the coverage gate.
"""

from pathlib import Path

PACKAGE = Path(__file__).parent.parent / "mtpmon"
PURE = (
    "model",
    "wire",
    "derive",
    "suite",
    "steps",
    "compare",
    "kld",
    "capture",
    "evaluate",
    "forced",
    "rolling",
    "trust",
    "rest",
    "student",
    "window",
    "validate",
    "tally",
    "spread",
    "grade",
    "depth",
    "verdict",
    "payoff",
    "cost",
    "request",
    "budget",
    "worth",
    "sweep",
    "eras",
    "duration",
    "record",
    "historyrows",
    "snapshot",
    "boardprobes",
    "export",
    "exportrow",
    "exportserver",
    "exportprobes",
    "exportworth",
    "exportshifts",
    "report",
    "viability",
    "facts",
    "doctor",
    "doctorcaptures",
    "doctorpaying",
    "doctorcounters",
    "doctorserver",
    "page",
    "pagetrend",
    "trend",
    "pagelive",
    "pageprobes",
    "pagetext",
    "probespage",
    "markup",
    "shift/__init__",
    "shift/settings",
    "shift/evidence",
    "shift/batch",
    "shift/learned",
    "shift/tilts",
    "shift/yardstick",
    "shift/levels",
    "shift/counts",
    "shift/ranks",
    "shift/found",
    "shift/acceptance",
    "shift/values",
    "shift/server",
    "shift/words",
)


def pure_files() -> list[Path]:
    """The files, pages and the doctor with their parts."""
    return [PACKAGE / f"{name}.py" for name in PURE]


if __name__ == "__main__":
    print(",".join(str(path.relative_to(PACKAGE.parent)) for path in pure_files()))
