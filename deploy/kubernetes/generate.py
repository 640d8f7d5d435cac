"""Rewrite ``prometheusrule.yaml`` from Prometheus' own rule files: ``make docs``."""

import sys
from pathlib import Path
from typing import Any

import yaml

HERE = Path(__file__).parent
RULES = HERE.parent / "prometheus" / "rules"
TARGET = HERE / "prometheusrule.yaml"
HEADER = """\
# Generated from deploy/prometheus/rules by `make docs`. For the Prometheus operator; a Prometheus
# that selects rules by label needs that label in metadata.
"""


def rendered() -> str:
    """The PrometheusRule that holds the groups of all rule files."""
    groups: list[dict[str, Any]] = []
    for path in sorted(RULES.glob("*.yml")):
        groups += yaml.safe_load(path.read_text(encoding="utf-8"))["groups"]
    rule = {
        "apiVersion": "monitoring.coreos.com/v1",
        "kind": "PrometheusRule",
        "metadata": {"name": "mtpmon", "labels": {"app.kubernetes.io/name": "mtpmon"}},
        "spec": {"groups": groups},
    }
    return HEADER + yaml.safe_dump(rule, sort_keys=False, allow_unicode=True, width=100)


def main() -> int:
    """Rewrite the file."""
    TARGET.write_text(rendered(), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
