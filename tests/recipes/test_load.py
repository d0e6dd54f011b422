"""Recipes, environment, flags and --set become one configuration, in that order; what is unknown is named."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tokenmill.core.errors import ConfigError
from tokenmill.models.aliases import ALIASES
from tokenmill.recipes.flags import FLAGS
from tokenmill.recipes.load import load_deployment, merge, shipped_recipes
from tokenmill.recipes.settings import parse_count, parse_text


def _recipe(tmp_path: Path, text: str, name: str = "recipe.yaml") -> str:
    path = tmp_path / name
    path.write_text(text)
    return str(path)


@pytest.mark.parametrize("name", shipped_recipes())
def test_shipped_recipes_load(name: str) -> None:
    config = load_deployment([name])
    assert config.models[0].model in ALIASES


def test_there_is_a_recipe_for_every_alias() -> None:
    assert set(ALIASES) <= set(shipped_recipes())


def test_order_is_set_flag_environment_yaml_default(tmp_path: Path) -> None:
    recipe = _recipe(tmp_path, "models: [{model: m}]\napi: {port: 1}\n")
    environ = {"TOKENMILL_PORT": "2"}

    def port(**given: object) -> int:
        return load_deployment([recipe], **given).api.port  # type: ignore[arg-type]

    assert load_deployment(["m"]).api.port == 8000
    assert port() == 1
    assert port(environ=environ) == 2
    assert port(environ=environ, flags={"port": "3"}) == 3
    assert port(environ=environ, flags={"port": "3"}, sets=["api.port=4"]) == 4
    assert port(environ=environ, flags={"port": None}) == 2


def test_flags_reach_every_model_and_keep_the_rest_of_a_recipe(tmp_path: Path) -> None:
    recipe = _recipe(tmp_path, "models:\n- {model: a, engine: {max_num_seqs: 3}}\n- {model: b}\n")
    config = load_deployment([recipe], flags={"max_model_len": "4K", "deterministic": True})
    assert [m.engine.max_model_len for m in config.models] == [4096, 4096]
    assert [m.engine.max_num_seqs for m in config.models] == [3, 64]
    assert all(m.engine.deterministic for m in config.models)


def test_set_reaches_one_model_or_all(tmp_path: Path) -> None:
    recipe = _recipe(tmp_path, "models: [{model: a}, {model: b}]\n")
    config = load_deployment([recipe], sets=["models.1.engine.block_size=32", "engine.max_num_seqs=8"])
    assert [m.engine.block_size for m in config.models] == [None, 32]
    assert [m.engine.max_num_seqs for m in config.models] == [8, 8]


def test_units_follow_the_field() -> None:
    sets = ["operations.drain_timeout_s=2m", "api.limits.max_body_bytes=1MiB", "engine.max_model_len=1.5k"]
    config = load_deployment(["m"], sets=sets, flags={"kv_cache_memory_bytes": "2GiB", "price_per_hour": "0.5"})
    assert config.operations.drain_timeout_s == 120.0
    assert config.api.limits.max_body_bytes == 2**20
    assert config.models[0].engine.max_model_len == 1500
    assert config.models[0].engine.kv_cache_memory_bytes == 2**31
    assert config.cost.price_per_hour == 0.5


def test_auto_gives_a_default_back(tmp_path: Path) -> None:
    recipe = _recipe(tmp_path, "models: [{model: a, engine: {max_model_len: 100, dtype: float32}}]\n")
    engine = load_deployment([recipe], sets=["engine.max_model_len=auto", "engine.dtype=auto"]).models[0].engine
    assert engine.max_model_len is None and engine.dtype == "auto"


def test_booleans_in_the_environment() -> None:
    config = load_deployment(["m"], environ={"TOKENMILL_ENABLE_PREFIX_CACHING": "no", "TOKENMILL_DETERMINISTIC": "1"})
    assert config.models[0].engine.enable_prefix_caching is False
    assert config.models[0].engine.deterministic is True
    with pytest.raises(ConfigError, match=r"TOKENMILL_DETERMINISTIC='maybe' is neither"):
        load_deployment(["m"], environ={"TOKENMILL_DETERMINISTIC": "maybe"})


def test_served_model_names() -> None:
    config = load_deployment(["m"], flags={"served_model_name": ["first", "second"]})
    assert config.models[0].name == "first"
    assert config.api.model_aliases == {"second": "first"}
    config = load_deployment(["m"], environ={"TOKENMILL_SERVED_MODEL_NAME": "first,second,third"})
    assert config.api.model_aliases == {"second": "first", "third": "first"}
    with pytest.raises(ConfigError, match=r"2 models does not say whose"):
        load_deployment(["m", "n"], flags={"served_model_name": ["x"]})


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"sets": ["engine.max_num_sqs=8"]}, r"models.0.engine.max_num_sqs is unknown: did you mean 'max_num_seqs'"),
        ({"sets": ["operatons.workers=2"]}, r"operatons is unknown: did you mean 'operations'"),
        ({"sets": ["api.limits.nothing=2"]}, r"api.limits.nothing is unknown: possible: .*max_body_bytes"),
        ({"sets": ["models.1.workers=2"]}, r"models.1 does not exist: give 0 to 0, or \*"),
        ({"sets": ["api.port.x=1"]}, r"api.port"),
        ({"sets": ["novalue"]}, r"'novalue' is not path=value"),
        ({"flags": {"port": "abc"}}, r"api.port='abc': .*valid integer"),
        ({"flags": {"port": "70000"}}, r"api.port=.*less than or equal to 65535"),
        ({"flags": {"dtype": "float8"}}, r"engine.dtype='float8': .*'bfloat16'"),
        ({"flags": {"slo": "ttft"}}, r"cost.slo='ttft': .*has no bound"),
        ({"flags": {"max_model_len": "1.5K"}}, r"binary suffix takes whole numbers"),
        ({"flags": {"drain_timeout": "soon"}}, r"'soon' is not a duration"),
    ],
)
def test_bad_settings_are_named(given: dict, message: str) -> None:
    with pytest.raises(ConfigError, match=message) as error:
        load_deployment(["m"], **given)
    assert "\n" not in error.value.message


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("models: {", r"is not YAML"),
        ("model: m", r"has no list `models`: write models"),
        ("models: []", r"setting models=\[\]: .*at least 1"),
        ("models: [{model: m}, {model: m}]", r"two models are called 'm'"),
        ("models: [{model: m, engin: {}}]", r"models.0.engin is unknown: did you mean 'engine'"),
        ("models: [{model: m}]\napi: {model_aliases: {x: y}}", r"api.model_aliases.x names 'y': possible: m"),
    ],
)
def test_bad_recipes_are_named(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message) as error:
        load_deployment([_recipe(tmp_path, text)])
    assert "\n" not in error.value.message


def test_missing_recipe_file_lists_the_shipped_ones() -> None:
    with pytest.raises(ConfigError, match=r"recipe 'absent.yaml' cannot be read .*shipped recipes: .*smollm2"):
        load_deployment(["absent.yaml"])


def test_several_sources_are_served_together(tmp_path: Path) -> None:
    one = _recipe(tmp_path, "models: [{model: a}]\napi: {port: 1, limits: {max_choices: 2}}\n", "one.yaml")
    two = _recipe(tmp_path, "models: [{model: b}]\napi: {limits: {max_choices: 2}}\ncost: {watts: 3}\n", "two.yaml")
    config = load_deployment([one, two, "hf:org/c"])
    assert [m.name for m in config.models] == ["a", "b", "org/c"]
    assert (config.api.port, config.api.limits.max_choices, config.cost.watts) == (1, 2, 3)


def test_recipes_that_disagree_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"disagree on api.port: 1 and 2"):
        merge([{"models": [], "api": {"port": 1}}, {"models": [], "api": {"port": 2}}])


@pytest.mark.parametrize("flag", FLAGS, ids=lambda flag: flag.name)
def test_every_flag_leads_to_a_setting_that_exists(flag) -> None:
    """Elsewhere a flag that was silently dropped made wrong results pass."""
    default = load_deployment(["m"])
    node: object = default.models[0] if flag.path.startswith("models.*") else default
    for part in flag.path.removeprefix("models.*.").split("."):
        assert part in type(node).model_fields, flag.path  # type: ignore[attr-defined]
        node = getattr(node, part)


@given(st.integers(1, 10**6), st.sampled_from("kmgKMG"))
def test_counts_with_suffix(number: int, suffix: str) -> None:
    scale = {"k": 10**3, "m": 10**6, "g": 10**9, "K": 2**10, "M": 2**20, "G": 2**30}[suffix]
    assert parse_count(f"{number}{suffix}") == number * scale


@given(st.text())
def test_any_text_is_a_value_or_a_typed_error(text: str) -> None:
    for path in ("engine.max_model_len", "api.host", "operations.drain_timeout_s", "no.such.path"):
        try:
            parse_text(path, text)
        except ConfigError as error:
            assert error.message


def test_flag_names_are_unique() -> None:
    names = [name for flag in FLAGS for name in (f"--{flag.name}", *flag.aliases)]
    assert len(set(names)) == len(names)
