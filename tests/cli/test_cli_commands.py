"""Every command that needs no model: what it prints, how it fails, and that help is instant and torch-free."""

import json
import resource
import subprocess
import sys

import pytest
import yaml

import tokenmill
from tokenmill.recipes.flags import FLAGS
from tokenmill.recipes.load import load_deployment


def _children_cpu_s() -> float:
    """CPU time, not wall time: neighbours on the machine must not fail this test."""
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


def test_help_is_quick_and_needs_no_torch() -> None:
    code = (
        "import sys; sys.modules['torch'] = None\n"
        "from tokenmill.cli.main import main; code = main(['--help'])\n"
        "heavy = ('torch', 'numpy', 'pydantic', 'aiohttp', 'zmq')\n"
        "print([name for name, module in sys.modules.items() if module and name.split('.')[0] in heavy])\n"
        "sys.exit(code)"
    )
    cpu_s = []
    for _ in range(5):
        before_s = _children_cpu_s()
        result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=50, check=True)
        cpu_s.append(_children_cpu_s() - before_s)
    assert result.stdout.strip().endswith("[]"), "help imports something heavy"
    for name in ("serve", "chat", "generate", "pull", "models", "bench", "recipe", "doctor"):
        assert name in result.stdout
    assert min(cpu_s) < 0.5


@pytest.mark.parametrize("command", ["serve", "chat", "generate", "pull", "models", "doctor"])
def test_every_command_has_help_and_json(run, command: str) -> None:
    result = run(command, "--help")
    assert result.code == 0 and "--json" in result.out
    assert "Usage: tokenmill" in result.out


@pytest.mark.parametrize(
    "command", [("bench", "throughput"), ("bench", "serve"), ("recipe", "list"), ("recipe", "show")]
)
def test_sub_commands_have_help_and_json(run, command: tuple[str, str]) -> None:
    result = run(*command, "--help")
    assert result.code == 0 and "--json" in result.out


def test_hidden_processes_are_not_listed(run) -> None:
    names = {line.split()[1] for line in run("--help").out.splitlines() if len(line.split()) > 1}
    assert "serve" in names and not {"frontend", "worker"} & names


def test_every_serve_flag_is_in_the_help(run) -> None:
    out = run("serve", "--help").out
    assert [flag.name for flag in FLAGS if f"--{flag.name}" not in out] == []


def test_version(run) -> None:
    assert run("--version").out == f"tokenmill {tokenmill.__version__}\n"


def test_models_lists_what_is_to_fetch_and_what_is_here(run, empty_cache) -> None:
    assert "smollm2" in run("models").out
    models = run("models", "--json").json["models"]
    assert {model["spec"]: model["is_local"] for model in models} == {"smollm2": False, "v4-nano": True}


def test_recipe_list_and_show(run) -> None:
    assert "smollm2" in run("recipe", "list").out
    assert {"name": "smollm2", "models": ["smollm2"]} in run("recipe", "list", "--json").json["recipes"]
    shown = run("recipe", "show", "smollm2", "--set", "api.port=1234").out
    assert yaml.safe_load(shown)["api"]["port"] == 1234


def test_a_shown_recipe_can_be_served_again(run, tmp_path) -> None:
    path = tmp_path / "again.yaml"
    path.write_text(run("recipe", "show", "hf:org/m", "--set", "engine.max_num_seqs=3", "--resolved").out)
    config = load_deployment([str(path)])
    assert config.models[0].engine.max_num_seqs == 3
    assert config.models[0].engine.num_threads is not None


def test_print_config_shows_decisions_and_no_secret(run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TOKENMILL_MAX_NUM_SEQS", "5")
    result = run("serve", "hf:org/m", "--print-config", "--json", "--api-key", "sk-secret", "--max-model-len", "4K")
    config, decisions = result.json["config"], result.json["decisions"]
    engine = config["models"][0]["engine"]
    assert (engine["max_model_len"], engine["max_num_seqs"]) == (4096, 5)
    assert "sk-secret" not in result.out
    assert {"field": "models.0.workers", "value": 1, "why": "operations.workers", "source": "rule"} in decisions


def test_no_boolean_flag_given_means_not_given(run) -> None:
    engine = run("serve", "hf:org/m", "--print-config", "--json").json["config"]["models"][0]["engine"]
    assert engine["enable_prefix_caching"] is True and engine["deterministic"] is False
    result = run("serve", "hf:org/m", "--print-config", "--json", "--no-enable-prefix-caching", "--deterministic")
    engine = result.json["config"]["models"][0]["engine"]
    assert engine["enable_prefix_caching"] is False and engine["deterministic"] is True


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (("serve", "smolm2"), "there is no model 'smolm2': did you mean 'smollm2'"),
        (("serve", "smollm2", "--port", "x"), "setting api.port='x'"),
        (("serve", "smollm2", "--set", "api.prot=1"), "setting api.prot is unknown: did you mean 'port'"),
        (("serve", "absent.yaml"), "recipe 'absent.yaml' cannot be read"),
        (("pull", "nothing"), "'nothing' cannot be pulled"),
        (("recipe", "show", "x.yaml"), "recipe 'x.yaml' cannot be read"),
        (("generate", "nothing", "-p", "hi"), "there is no model 'nothing'"),
        (("bench", "throughput", "--num-prompts", "0"), "num_prompts=0 is not possible"),
        (("bench", "throughput", "--against", "x"), "--against 'x' is unknown: possible: transformers"),
        (("bench", "throughput", "--set", "dtype"), "--set 'dtype' is not name=value"),
        (("bench", "serve", "--endpoint", "x"), "--endpoint 'x' is not possible: choose completions or chat"),
        (("bench", "serve", "--slo", "ttft"), "has no bound"),
        (("bench", "serve", "--url", "http://127.0.0.1:9"), "http://127.0.0.1:9/v1/models cannot be reached"),
        (("chat", "--url", "http://127.0.0.1:9"), "http://127.0.0.1:9/v1/models does not list a model"),
    ],
)
def test_what_cannot_be_done_is_one_line_and_code_2(run, args: tuple[str, ...], message: str) -> None:
    result = run(*args)
    assert result.code == 2
    lines = [line for line in result.err.splitlines() if line.startswith("tokenmill: ")]
    assert len(lines) == 1 and message in lines[0]
    assert "Traceback" not in result.err


def test_wrong_usage_is_code_2(run) -> None:
    result = run("serve", "smollm2", "--prot", "1")
    assert result.code == 2 and "No such option" in result.err
    assert run("nonsense").code == 2


def test_doctor_reports_every_part(run) -> None:
    report = run("doctor", "--json").json
    assert report["tokenmill"] == tokenmill.__version__
    assert report["machine"]["cores"] > 0
    assert report["price"]["usd_per_hour"] > 0 and report["price"]["energy"]
    assert report["cache"]["folder"].endswith("models")
    assert any("attention" in op for op in report["kernels"]) and any("linear" in op for op in report["kernels"])
    assert not [part for part in ("machine", "price", "kernels", "cache") if "error" in report[part]]


def test_doctor_for_people(run) -> None:
    result = run("doctor")
    assert result.code == 0 and "nothing needed is missing" in result.out


def test_doctor_without_torch_says_what_is_missing() -> None:
    code = (
        "import importlib.util, sys; sys.modules['torch'] = None\n"
        "find = importlib.util.find_spec\n"
        "importlib.util.find_spec = lambda name, *rest: None if name == 'torch' else find(name, *rest)\n"
        "from tokenmill.cli.main import main; sys.exit(main(['doctor', '--json']))"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=50)
    report = json.loads(result.stdout)
    assert result.returncode == 1
    assert report["missing"] == ["torch: models run on it; pip install 'tokenmill[engine]'"]
    assert "error" in report["kernels"] and report["machine"]["cores"] > 0


def test_reader_that_leaves_early_is_no_error() -> None:
    command = f"{sys.executable} -m tokenmill.cli.main recipe show smollm2 | head -c 10"
    result = subprocess.run(["bash", "-c", command], capture_output=True, text=True, timeout=50)
    assert "Traceback" not in result.stderr and "BrokenPipe" not in result.stderr
