"""The shipped dashboard asks only for metrics and labels that exist."""

from __future__ import annotations

import json
import re
from pathlib import Path

import yaml

from tokenmill.core import metric_names as names
from tokenmill.core.metric_names import MetricType

ROOT = Path(__file__).parents[2] / "grafana"
SERIES = {m.name + ("_bucket" if m.type is MetricType.HISTOGRAM else ""): m for m in names.ALL.values()}


def test_every_series_of_the_dashboard_exists() -> None:
    board = json.loads((ROOT / "tokenmill.json").read_text())
    expressions = [target["expr"] for panel in board["panels"] for target in panel["targets"]]
    asked = {name for expression in expressions for name in re.findall(r"tokenmill_\w+", expression)}
    assert len(asked) > 12 and asked <= SERIES.keys(), asked - SERIES.keys()
    for expression in expressions:
        for name, label in re.findall(r"(tokenmill_\w+)\{(\w+)=", expression):
            assert label in SERIES[name].labels


def test_panels_do_not_overlap_and_have_ids() -> None:
    panels = json.loads((ROOT / "tokenmill.json").read_text())["panels"]
    assert len({panel["id"] for panel in panels}) == len(panels)
    places = {(panel["gridPos"]["x"], panel["gridPos"]["y"]) for panel in panels}
    assert len(places) == len(panels)


def test_prometheus_scrapes_the_default_port() -> None:
    config = yaml.safe_load((ROOT / "prometheus.yml").read_text())
    assert config["scrape_configs"][0]["static_configs"][0]["targets"] == ["127.0.0.1:8000"]
