"""`tokenmill recipe`: shipped deployment recipes, as written and as resolved for this machine."""

from __future__ import annotations

from typing import Any

import typer

from tokenmill.cli.output import JSON_OPTION, print_json, print_table


def build_app() -> typer.Typer:
    app = typer.Typer(help="Deployment recipes: list, show.", no_args_is_help=True)
    app.command("list")(list_recipes)
    app.command("show")(show)
    return app


def list_recipes(as_json: bool = JSON_OPTION) -> None:
    """List the recipes that come with tokenmill."""
    from tokenmill.recipes.load import read_source, shipped_recipes

    rows = [(name, [model["model"] for model in read_source(name)["models"]]) for name in shipped_recipes()]
    if as_json:
        print_json({"recipes": [{"name": name, "models": models} for name, models in rows]})
    else:
        print_table(("recipe", "models"), [(name, ", ".join(models)) for name, models in rows])


def show(
    sources: list[str] = typer.Argument(metavar="RECIPE|MODEL...", help="Shipped recipe, .yaml file, or model."),
    sets: list[str] = typer.Option([], "--set", metavar="PATH=VALUE", help="Change any setting, e.g. api.port=80."),
    resolved: bool = typer.Option(False, "--resolved", help="Turn every auto into a value for this machine."),
    as_json: bool = JSON_OPTION,
) -> None:
    """Show a recipe with all its settings."""
    import os

    from tokenmill.recipes.load import load_deployment

    config = load_deployment(sources, sets=sets, environ=os.environ)
    _check_models(sources, config)
    print_config(config, resolved=resolved, as_json=as_json)


def _check_models(sources: list[str], config: Any) -> None:
    """A model named here has to exist: a slip of the pen must not look like a recipe. CheckpointError when it does not.

    What a recipe file names is not looked at: it may be for another machine.
    """
    from tokenmill.models.store import find_local
    from tokenmill.recipes.load import shipped_recipes

    computed = {model.model for model in config.models if model.worker == "native"}
    for source in sources:
        is_recipe = source.endswith((".yaml", ".yml")) or source in shipped_recipes()
        if not is_recipe and source in computed:
            find_local(source)


def print_config(config: Any, *, resolved: bool, as_json: bool) -> None:
    """A DeploymentConfig as YAML (which can be served again, secrets masked), decisions as comments behind it."""
    from tokenmill.recipes.resolve import resolve

    decisions: tuple[Any, ...] = ()
    if resolved:
        config, decisions = resolve(config)
    data = config.model_dump(mode="json")
    if as_json:
        print_json({"config": data, "decisions": [decision.to_dict() for decision in decisions]})
        return
    import yaml

    print(yaml.safe_dump(data, sort_keys=False, allow_unicode=True, width=120), end="")
    if decisions:
        print("# decided for this machine:")
    for decision in decisions:
        print(f"#   {decision.field} = {decision.value}: {decision.why} [{decision.source}]")
