"""Configuration objects: frozen, closed, and errors that name the path and the nearest valid name."""

from __future__ import annotations

from typing import Literal

import pytest
from pydantic import Field, ValidationError, model_validator

from tokenmill.core.config import FrozenConfig
from tokenmill.core.errors import ConfigError


class Inner(FrozenConfig):
    max_num_seqs: int = Field(default=4, ge=1)
    dtype: Literal["auto", "float32"] = "auto"


class Outer(FrozenConfig):
    engine: Inner = Inner()
    spare: Inner | None = None
    workers: tuple[Inner, ...] = ()
    port: int = 8000


def message(data: dict[str, object], path: str = "") -> str:
    with pytest.raises(ConfigError) as caught:
        Outer.parse(data, path=path)
    return caught.value.message


def test_valid_data() -> None:
    config = Outer.parse({"engine": {"max_num_seqs": 2}, "workers": [{}, {"dtype": "float32"}]})
    assert config.engine.max_num_seqs == 2
    assert [w.dtype for w in config.workers] == ["auto", "float32"]


@pytest.mark.parametrize(
    ("data", "where", "near"),
    [
        ({"prot": 1}, "prot", "port"),
        ({"engine": {"max_num_seq": 1}}, "engine.max_num_seq", "max_num_seqs"),
        ({"spare": {"dtyp": "auto"}}, "spare.dtyp", "dtype"),
        ({"workers": [{}, {"max_seqs": 1}]}, "workers.1.max_seqs", "max_num_seqs"),
    ],
)
def test_unknown_key_names_path_and_nearest(data: dict[str, object], where: str, near: str) -> None:
    assert message(data) == f"setting {where} is unknown: did you mean {near!r}?"


def test_unknown_key_without_a_near_name_lists_what_is_possible() -> None:
    assert message({"zzz": 1}).endswith("possible: engine, port, spare, workers")
    assert message({"engine": {"zzz": 1}}).endswith("possible: dtype, max_num_seqs")


def test_a_rule_between_fields_is_told_without_the_whole_object() -> None:
    class Ports(FrozenConfig):
        first: int = 1
        second: int = 2

        @model_validator(mode="after")
        def _differ(self) -> Ports:
            if self.first == self.second:
                raise ValueError("first and second are both the same port: change one")
            return self

    class Pair(FrozenConfig):
        ports: Ports = Ports()

    for config, data, path, where in (
        (Ports, {"second": 1}, "", "settings"),
        (Ports, {"second": 1}, "api", "setting api"),
        (Pair, {"ports": {"second": 1}}, "", "setting ports"),
    ):
        with pytest.raises(ConfigError) as caught:
            config.parse(data, path=path)
        assert caught.value.message == f"{where}: first and second are both the same port: change one"


def test_path_prefix() -> None:
    assert message({"prot": 1}, path="operations").startswith("setting operations.prot ")


@pytest.mark.parametrize(
    ("data", "start"),
    [
        ({"engine": {"max_num_seqs": 0}}, "setting engine.max_num_seqs=0: "),
        ({"engine": {"dtype": "int3"}}, "setting engine.dtype='int3': "),
        ({"port": "http"}, "setting port='http': "),
        ({"workers": [{"max_num_seqs": -1}]}, "setting workers.0.max_num_seqs=-1: "),
    ],
)
def test_bad_value_names_path_and_value(data: dict[str, object], start: str) -> None:
    assert message(data).startswith(start)


def test_frozen() -> None:
    with pytest.raises(ValidationError):
        Outer().port = 1  # type: ignore[misc]


def test_unknown_key_below_a_plain_mapping() -> None:
    class Holder(FrozenConfig):
        names: dict[str, Inner] = Field(default_factory=dict)

    with pytest.raises(ConfigError, match="did you mean 'dtype'"):
        Holder.parse({"names": {"a": {"dtipe": "auto"}}})
