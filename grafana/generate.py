"""Rewrite the dashboards of this folder: ``make docs``.

``dashboards/`` holds what Grafana loads, and nothing else. ``panels.json`` tells which panel of
which dashboard has which id, for links from elsewhere.
"""

import json
import sys
from collections.abc import Mapping
from pathlib import Path

from grafana_foundation_sdk.cog.encoder import JSONEncoder

from grafana import fleet, overview, server

HERE = Path(__file__).parent
DASHBOARDS = {"overview": overview, "server": server, "fleet": fleet}


def files() -> Mapping[Path, str]:
    """Every generated file and its text."""
    found = {}
    panels = {}
    for name, module in DASHBOARDS.items():
        dashboard = module.built()
        text = json.dumps(dashboard.model, cls=JSONEncoder, indent=2, ensure_ascii=False)
        found[HERE / "dashboards" / f"{name}.json"] = f"{text}\n"
        panels[module.UID] = dashboard.ids
    found[HERE / "panels.json"] = f"{json.dumps(panels, indent=2)}\n"
    return found


def main() -> int:
    """Rewrite what differs."""
    for path, text in files().items():
        path.parent.mkdir(exist_ok=True)
        path.write_text(text, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
