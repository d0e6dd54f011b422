"""Published claims about cost, recomputed from the model: a number, a verdict and the assumptions for each.

A verdict is made by rule from the two numbers, never written by hand. Not responsible for: the model (cost/steptime).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from functools import cache
from typing import Any

from tokenmill.core.errors import ConfigError
from tokenmill.cost.steptime.anchor import OTHER_SOFTWARE
from tokenmill.cost.steptime.efficiency import default_efficiency
from tokenmill.cost.steptime.frontier import Frontier, Space
from tokenmill.cost.steptime.serving import Traffic
from tokenmill.infra.catalogue import load_catalogue
from tokenmill.infra.device_spec import PriceKind
from tokenmill.models.deepseek_v3 import work as deepseek_v3
from tokenmill.models.priced import describe_model

_M1 = 2**20
_MEAN_LENGTH = 0.9
_MTP, _NO_DRAFTS = (1, 2, 3), (0,)
_INTERACTIVITIES = (20, 30, 40, 50, 60, 75, 90, 110, 130, 150, 175, 200)
#: Prices the claims were made at.
_PRICED_ON = "2026-06"
_CLOSE = 0.1


@dataclass(frozen=True, slots=True)
class Claim:
    claim: str
    published: str
    computed: str
    verdict: str
    assumptions: str
    values: dict[str, float | None]


@dataclass(frozen=True, slots=True)
class _Case:
    """One frontier: who serves what, how."""

    model: str
    hardware: str
    precision: str
    isl: int = 8192
    osl: int = 1024
    drafts: tuple[int, ...] = _NO_DRAFTS
    is_disagg: bool | None = None
    layouts: tuple[str, ...] = ()

    def tput(self, tok_s_user: float, slowdown: float = 1.0) -> float:
        """Tokens per second and device, input and output; 0 when out of reach."""
        choice = _frontier(self).at_interactivity(tok_s_user * slowdown)
        return 0.0 if choice is None else choice.steady.tput_per_device / slowdown


@cache
def _frontier(case: _Case) -> Frontier:
    spec = load_catalogue().get(case.hardware)
    traffic = Traffic(_MEAN_LENGTH * case.isl, _MEAN_LENGTH * case.osl)
    space = Space(case.layouts, (), case.is_disagg, case.drafts)
    return Frontier(describe_model(case.model, case.precision), spec, traffic, space, default_efficiency(spec))


def run_claims() -> dict[str, Any]:
    """JSON-able: every claim with computed value, verdict, assumptions."""
    made: Sequence[Callable[[], Claim]] = (
        _five_times, _frontier_point, _record, _combined, _disaggregation, _hopper_ten, _hopper_fifteen, _flops, _cache,
        _checkpoint, _two_cents,
    )  # fmt: skip
    return {"bench": "claims", "claims": [asdict(claim()) for claim in made]}


def usd_per_mtok(hardware: str, tput: float, on: str = _PRICED_ON) -> float:
    """Owning at hyperscaler volume, as the claims count."""
    price = load_catalogue().get(hardware).price(PriceKind.OWN, on=on)
    if price is None:
        raise ConfigError(f"{hardware} has no owning price by {on}: give one in a catalogue of your own")
    return price.usd_per_hour * 1e6 / (3600 * tput)


def verdict(published: float, computed: float, range_factor: float = 1.0) -> str:
    """reproduced: within 10 %; consistent: within the model's range; else by how much it is off."""
    ratio = computed / published
    if abs(ratio - 1.0) <= _CLOSE:
        return "reproduced"
    if 1 / range_factor <= ratio <= range_factor:
        return f"consistent ({ratio:.2f} of it, within the model's range)"
    return f"not reproduced ({ratio:.2f} of it)"


def _reached(published: float, ratios: dict[float, float]) -> str:
    """For `up to` claims: at which interactivities the ratio is as large as that."""
    at = [x for x, ratio in ratios.items() if ratio >= published]
    if at:
        return (
            f"reached from {min(at):g} tok/s/user on"
            if max(at) == max(ratios)
            else f"reached at {min(at):g} tok/s/user"
        )
    return f"not reached (most: {max(ratios.values()):.1f}x)"


def _ratios(better: _Case, base: _Case) -> dict[float, float]:
    """By interactivity, where the base reaches it at all."""
    pairs = {x: (better.tput(x), base.tput(x)) for x in _INTERACTIVITIES}
    return {float(x): ours / theirs for x, (ours, theirs) in pairs.items() if theirs > 0}


def _told(ratios: dict[float, float]) -> str:
    return ", ".join(f"{ratio:.1f}x at {x:g}" for x, ratio in list(ratios.items())[::2])


_V4 = _Case("deepseek-v4-pro", "gb300_nvl72", "fp4", is_disagg=True)
_V4_MTP = _Case("deepseek-v4-pro", "gb300_nvl72", "fp4", drafts=_MTP, is_disagg=True)


def _five_times() -> Claim:
    before, after = (usd_per_mtok("gb300_nvl72", tput) for tput in (2200, 11200))
    ratio = before / after
    with_drafts, without = _V4_MTP.tput(50), _V4.tput(50)
    drafts = with_drafts / without if without else None
    part = "out of reach without drafts" if drafts is None else f"MTP alone gives {drafts:.1f}x there in the model"
    return Claim(
        "5x lower cost per token in a month (V4-Pro, GB300)",
        "5x",
        f"${before:.3f} -> ${after:.4f}/M: {ratio:.2f}x; {part}",
        verdict(5.0, ratio),
        "published throughputs at 50 tok/s/user and one price ($2.652/h); compares no drafts in April with MTP in June",
        {"published": 5.0, "computed": ratio, "drafts_alone": drafts},
    )


def _frontier_point() -> Claim:
    computed = _V4_MTP.tput(50)
    return Claim(
        "2,200 -> 11,200 tok/s/GPU at 50 tok/s/user (V4-Pro, GB300 NVL72)",
        "11200",
        f"{computed:.0f} with MTP, {_V4.tput(50):.0f} without",
        verdict(11200, computed, OTHER_SOFTWARE),
        "8192/1024, total tokens, disaggregated within one rack, MTP acceptance with thinking; software as fitted",
        {"published": 11200.0, "computed": computed, "without_drafts": _V4.tput(50)},
    )


def _record() -> Claim:
    tputs = {x: _V4_MTP.tput(x) for x in (20, 25, 30, 35, 40)}
    computed = max(tputs.values())
    return Claim(
        "over 12K tok/s/GPU with MTP (V4-Pro, GB300)",
        "12000",
        f"{computed:.0f} at {max(tputs, key=lambda x: tputs[x])} tok/s/user, {tputs[40]:.0f} at 40",
        verdict(12000, computed, OTHER_SOFTWARE),
        "total tokens; as output tokens it would need nine times the prompt tokens",
        {"published": 12000.0, "computed": computed},
    )


def _combined() -> Claim:
    base = _Case("deepseek-r1", "gb200_nvl72", "fp8", is_disagg=False, layouts=("tp8", "tep8", "dep8"))
    best = _Case("deepseek-r1", "gb200_nvl72", "fp4", drafts=_MTP, is_disagg=True)
    ratios = _ratios(best, base)
    return Claim(
        "up to 20x throughput per GPU combined: disaggregation, wide EP, NVFP4, MTP (R1, GB200)",
        "20x",
        _told(ratios),
        _reached(20, ratios),
        "8192/1024; base: aggregated, 8 GPUs, FP8, no drafts; all at the same interactivity and equal software",
        {"published": 20.0, "largest": max(ratios.values())},
    )


def _disaggregation() -> Claim:
    base = _Case(
        "deepseek-r1",
        "gb200_nvl72",
        "fp4",
        drafts=_MTP,
        is_disagg=False,
        layouts=("tp4", "tep4", "dep4", "tp8", "tep8", "dep8"),
    )
    best = _Case("deepseek-r1", "gb200_nvl72", "fp4", drafts=_MTP, is_disagg=True)
    ratios = _ratios(best, base)
    return Claim(
        "up to 7x more requests with disaggregation and routing (R1, Blackwell)",
        "7x",
        _told(ratios),
        _reached(7, ratios),
        "8192/1024, same precision and drafts; aggregated workers of up to 8 GPUs against disaggregated wide EP; "
        "routing (prefix hits) is not in it",
        {"published": 7.0, "largest": max(ratios.values())},
    )


def _hopper(times: float) -> Claim:
    base = _Case("deepseek-r1", "h200_sxm", "fp8", is_disagg=False)
    best = _Case("deepseek-r1", "gb200_nvl72", "fp4", drafts=_MTP, is_disagg=True)
    ratios = _ratios(best, base)
    price = usd_per_mtok("h200_sxm", 1.0) / usd_per_mtok("gb200_nvl72", 1.0)
    costs = {x: ratio * price for x, ratio in ratios.items()}
    return Claim(
        f"{times:g}x lower cost per token than Hopper (R1, GB200 against H200)",
        f"{times:g}x",
        f"cost {_told(costs)}; throughput {_told(ratios)}",
        _reached(times, costs),
        "8192/1024; H200 aggregated FP8 without drafts, GB200 disaggregated FP4 with MTP; owning prices of spring 2026",
        {"published": times, "largest": max(costs.values())},
    )


def _hopper_ten() -> Claim:
    return _hopper(10.0)


def _hopper_fifteen() -> Claim:
    return _hopper(15.0)


def _flops() -> Claim:
    pro, old = describe_model("deepseek-v4-pro"), describe_model("deepseek-v3.2")
    share = pro.token_flops(_M1) / old.token_flops(_M1)
    return Claim(
        "27 % of V3.2's FLOPs per token at 1M tokens (V4-Pro)",
        "27%",
        f"{pro.token_flops(_M1) / 1e9:.1f} of {old.token_flops(_M1) / 1e9:.1f} GFLOP: {share:.1%}",
        verdict(0.27, share),
        "multiply-add = 2; weights, attention and indexer; no weighting by precision",
        {"published": 0.27, "computed": share},
    )


def _cache() -> Claim:
    pro, old = describe_model("deepseek-v4-pro"), describe_model("deepseek-v3.2")
    share = pro.kv_bytes(_M1) / old.kv_bytes(_M1)
    return Claim(
        "10 % of V3.2's KV cache at 1M tokens (V4-Pro)",
        "10%",
        f"{pro.kv_bytes(_M1) / 1e9:.2f} of {old.kv_bytes(_M1) / 1e9:.2f} GB: {share:.1%}",
        verdict(0.10, share),
        "FP8 rows and FP4 index keys; windows and compressor states included",
        {"published": 0.10, "computed": share},
    )


def _checkpoint() -> Claim:
    before = deepseek_v3.checkpoint_bytes(deepseek_v3.RELEASED, deepseek_v3.RELEASED) / 1e9
    after = deepseek_v3.checkpoint_bytes(deepseek_v3.NVFP4_EXPERTS, deepseek_v3.ALL_BF16) / 1e9
    verdicts = verdict(690, before), verdict(415, after)
    return Claim(
        "690 -> 415 GB with NVFP4 (V3.2)",
        "690 -> 415 GB",
        f"{before:.0f} -> {after:.0f} GB",
        verdicts[0] if verdicts[0] == verdicts[1] else "; ".join(verdicts),
        "routed experts in NVFP4 (4.5 bits), other linears in FP8, MTP layer in bf16",
        {"published": 415.0, "computed": after, "before": before},
    )


def _two_cents() -> Claim:
    case = _Case("gpt-oss-120b", "b200_sxm", "fp4", isl=1024, osl=1024, is_disagg=False)
    tputs = {x: case.tput(x) for x in (40, 55, 72, 90)}
    costs = {x: usd_per_mtok("b200_sxm", tput) for x, tput in tputs.items() if tput}
    renting = load_catalogue().get("b200_sxm").price(PriceKind.RENT)
    assert renting is not None
    rented = renting.usd_per_hour * 1e6 / (3600 * tputs[72]) if tputs[72] else float("inf")
    return Claim(
        "$0.02 per million tokens (gpt-oss-120b, B200)",
        "$0.02",
        ", ".join(f"${usd:.3f} at {x}" for x, usd in costs.items())
        + f"; rented in {renting.as_of}: ${rented:.3f} at 72",
        verdict(0.02, costs.get(72, float("inf")), OTHER_SOFTWARE),
        "1024/1024, total tokens, owning price $1.95/h, 72 tok/s/user as on the published page",
        {"published": 0.02, "computed": costs.get(72)},
    )
