"""The systems of a comparison: recipes started here, or servers that run already. Not responsible for: the load."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace

from tokenmill.bench.local_server import local_server
from tokenmill.core.errors import ConfigError


@dataclass(frozen=True, slots=True)
class System:
    """
    url        of a server that runs; None: it is started with `arguments` of `tokenmill serve`
    """

    label: str
    url: str | None = None
    arguments: tuple[str, ...] = ()

    @contextmanager
    def running(self) -> Iterator[str]:
        """Its address."""
        if self.url is not None:
            yield self.url
            return
        with local_server(self.arguments, is_quiet=True) as url:
            yield url


def parse_system(text: str) -> System:
    """`[label=]http://…`, or `[label=]SOURCE[@path=value…]`: what serve takes, each @ a --set of its own."""
    label, equals, rest = text.partition("=")
    if not equals or "@" in label or "/" in label or label.startswith("http"):
        label, rest = "", text
    if not rest:
        raise ConfigError(
            f"{text!r} names no system: write a model, a recipe or http://…, e.g. small=smollm2@engine.dtype=bfloat16"
        )
    if rest.startswith(("http://", "https://")):
        return System(label or rest.split("//", 1)[1].rstrip("/"), url=rest)
    source, *sets = rest.split("@")
    arguments = [source, *(part for value in sets for part in ("--set", value))]
    return System(label or rest, arguments=tuple(arguments))


def parse_systems(texts: Sequence[str]) -> list[System]:
    systems = [parse_system(text) for text in texts]
    labels = [system.label for system in systems]
    if len(set(labels)) < len(labels):
        raise ConfigError(f"systems need different labels, got {', '.join(labels)}: write label=SOURCE")
    return systems


def forcing_acceptance(systems: Sequence[System], acceptance_length: float) -> list[System]:
    """The same recipes, told to accept drafts at this mean length (bonus token included) whatever they say."""
    running = [system.label for system in systems if system.url is not None]
    if running:
        raise ConfigError(
            f"the acceptance length of a server that runs cannot be set from here ({', '.join(running)}): "
            "start it with the setting, or give a recipe"
        )
    setting = f"engine.speculative_config.forced_acceptance_length={acceptance_length:g}"
    return [replace(system, arguments=(*system.arguments, "--set", setting)) for system in systems]
