"""Grafana dashboards of mtpmon, as a program: `python -m grafana.generate`."""
