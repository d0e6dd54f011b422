"""Registries of seams: built-ins by path, plug-ins of other distributions by entry point."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from tokenmill.core.errors import ConfigError
from tokenmill.core.registry import Registry

GROUP = "tokenmill.test_things"


@pytest.fixture
def registry() -> Registry:
    return Registry("thing", GROUP, {"ordered": "collections:OrderedDict", "broken": "tokenmill.no_such:thing"})


@pytest.fixture
def plugin(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A separate distribution on sys.path that registers two things, one under a built-in's name."""
    (tmp_path / "fake_plugin_for_tokenmill.py").write_text("class Thing:\n    pass\n\n\nOTHER = 'not a built-in'\n")
    info = tmp_path / "fake_plugin_for_tokenmill-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: fake-plugin-for-tokenmill\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(
        f"[{GROUP}]\nplugged = fake_plugin_for_tokenmill:Thing\nordered = fake_plugin_for_tokenmill:OTHER\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "fake_plugin_for_tokenmill", raising=False)


def test_builtin(registry: Registry) -> None:
    assert registry.load("ordered").__name__ == "OrderedDict"
    assert registry.names() == ["broken", "ordered"]


def test_builtins_load_lazily(registry: Registry) -> None:
    """A registry may name modules that cannot be imported here, as long as nobody asks for them."""
    with pytest.raises(ModuleNotFoundError):
        registry.load("broken")


@pytest.mark.usefixtures("plugin")
def test_entry_point_of_another_distribution(registry: Registry) -> None:
    assert registry.names() == ["broken", "ordered", "plugged"]
    assert registry.load("plugged").__name__ == "Thing"


@pytest.mark.usefixtures("plugin")
def test_a_builtin_wins_over_a_plugin_of_its_name(registry: Registry) -> None:
    assert registry.load("ordered") is not sys.modules.get("fake_plugin_for_tokenmill")
    assert registry.load("ordered").__name__ == "OrderedDict"


def test_unknown_name(registry: Registry) -> None:
    with pytest.raises(ConfigError, match="thing 'orderd' is unknown: did you mean 'ordered'"):
        registry.load("orderd")
    with pytest.raises(ConfigError, match="thing 'zzz' is unknown: possible: broken, ordered"):
        registry.load("zzz")


@pytest.mark.usefixtures("plugin")
def test_unknown_name_suggests_plugins_too(registry: Registry) -> None:
    with pytest.raises(ConfigError, match="did you mean 'plugged'"):
        registry.load("pluged")
