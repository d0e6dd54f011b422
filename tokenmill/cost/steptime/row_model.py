"""What the step-time model says to one published row, at any slowdown of the software. Not responsible for: fitting.

A row with devices, layouts and concurrency is computed as it ran (closed loop). Other rows are read off the model's
frontier at their interactivity. A slowdown s multiplies all times, so a closed loop's throughput is divided by s, and
a frontier y(x) becomes y(s x) / s: no model is built twice.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

from tokenmill.core.errors import SetupError
from tokenmill.cost.steptime.efficiency import Efficiency, default_efficiency
from tokenmill.cost.steptime.frontier import Choice, Frontier, Space
from tokenmill.cost.steptime.parallel import Parallel
from tokenmill.cost.steptime.points import Point
from tokenmill.cost.steptime.serving import Disaggregated, Traffic
from tokenmill.infra.catalogue import Catalogue
from tokenmill.models.priced import describe_model

#: Requests of the published fixed-length loads have 80 to 100 % of the nominal lengths.
_MEAN_LENGTH = 0.9
_DRAFTS = {"none": (0,), "mtp": (1, 2, 3), "best": (0, 1, 2, 3), "": (0, 1, 2, 3)}
#: Attention is not split over more devices than this.
_MOST_SPLIT = 8
_SIZE = re.compile(r"(tp|ep|dep|tep)(\d+)", re.IGNORECASE)


@dataclass(frozen=True)
class RowModel:
    point: Point
    frontier: Frontier

    def tput(self, slowdown: float) -> float | None:
        """Input and output tokens per second and device; None: this software never reaches the interactivity."""
        if self._closed_loop is not None:
            return self._closed_loop.steady.tput_per_device / slowdown
        choice = self.read(slowdown)
        return None if choice is None else choice.steady.tput_per_device / slowdown

    def read(self, slowdown: float) -> Choice | None:
        """The frontier's choice (its figures are those of unslowed software)."""
        assert self.point.tok_s_user is not None, f"{self.point.id}: no interactivity"
        return self.frontier.at_interactivity(self.point.tok_s_user * slowdown)

    def choice(self, slowdown: float) -> Choice | None:
        return self._closed_loop or self.read(slowdown)

    @cached_property
    def _closed_loop(self) -> Choice | None:
        """As it ran; None where the row does not say how."""
        point = self.point
        if point.concurrency is None or point.gpus is None:
            return None
        if not point.is_disagg:
            return self.frontier.at_concurrency(point.concurrency, point.gpus)
        if point.prefill_gpus is None or point.decode_gpus is None:
            return None
        found = [
            choice
            for drafts in self.frontier.drafts
            for layout in _decode_layouts(point)
            for choice in self._disaggregated(layout, drafts, point.concurrency)
        ]
        return max(found, key=lambda choice: choice.steady.tput_per_device, default=None)

    def _disaggregated(self, layout: str, drafts: int, concurrency: float) -> list[Choice]:
        point, frontier = self.point, self.frontier
        assert point.prefill_gpus and point.decode_gpus
        size = Parallel.parse(layout).num_devices
        traffic = Traffic(frontier.traffic.isl, frontier.traffic.osl, drafts, frontier.space.acceptance)
        sizes = {n: Parallel.parse(n).num_devices for n in frontier.prefill_layouts}
        possible = [n for n in frontier.prefill_layouts if point.prefill_gpus % sizes[n] == 0]
        if point.decode_gpus % size or not possible or layout not in frontier.servers.step_times:
            return []
        decode = frontier.servers.get(layout, traffic)
        prefills = [frontier.servers.get(n, traffic) for n in possible]
        prefill = max(prefills, key=lambda server: server.prompt_tokens_per_s / server.num_devices)
        num_prefill, num_decode = point.prefill_gpus // prefill.num_devices, point.decode_gpus // size
        steady = Disaggregated(prefill, num_prefill, decode, num_decode).at_concurrency(concurrency)
        return [Choice(steady, str(prefill.step_time.parallel), num_prefill, layout, num_decode, drafts)]


def row_models(
    points: Sequence[Point], catalogue: Catalogue, efficiencies: dict[str, Efficiency] | None = None
) -> list[RowModel]:
    """One per predictable row of `points`.

    efficiencies  by hardware key, in place of the defaults (for fitting)
    """
    return split_rows(points, catalogue, efficiencies)[0]


def split_rows(
    points: Sequence[Point], catalogue: Catalogue, efficiencies: dict[str, Efficiency] | None = None
) -> tuple[list[RowModel], dict[str, str]]:
    """-> (a model per predictable row, why not by id of the others)."""
    frontiers: dict[tuple[object, ...], Frontier] = {}
    models, refused = [], {}
    for point in points:
        reason = point.why_not()
        key = (point.model, point.hardware, point.precision, point.isl, point.osl, _space(point, points))
        try:
            if reason is None and key not in frontiers:
                frontiers[key] = _frontier(point, points, catalogue, efficiencies or {})
        except SetupError as error:  # a device, precision or size that the model does not know
            reason = error.message.split(":")[0]
        if reason is None:
            models.append(RowModel(point, frontiers[key]))
        else:
            refused[point.id] = reason
    return models, refused


def _frontier(
    point: Point, points: Sequence[Point], catalogue: Catalogue, efficiencies: dict[str, Efficiency]
) -> Frontier:
    assert point.isl is not None and point.osl is not None
    spec = catalogue.get(point.hardware)
    efficiency = efficiencies.get(spec.key) or default_efficiency(spec)
    traffic = Traffic(_MEAN_LENGTH * point.isl, _MEAN_LENGTH * point.osl)
    made = Frontier(describe_model(point.model, point.precision), spec, traffic, _space(point, points), efficiency)
    made.check()
    return made


def _space(point: Point, points: Sequence[Point]) -> Space:
    """Layouts: the row's own where it names one; else those named by rows of the same software on the same device."""
    layouts = _decode_layouts(point) if point.decode_cfg or point.prefill_cfg else _named(point, points)
    drafts = _DRAFTS.get(point.spec, (0,))
    prefill = () if point.is_disagg else layouts
    return Space(tuple(sorted(layouts)), tuple(sorted(prefill)), point.is_disagg, drafts)


def _named(point: Point, points: Sequence[Point]) -> tuple[str, ...]:
    def same(other: Point) -> bool:
        fields = ("model", "hardware", "engine", "precision", "date", "is_disagg")
        return all(getattr(other, name) == getattr(point, name) for name in fields) and bool(other.decode_cfg)

    if point.engine == "best-of-engines":
        return ()
    return tuple(sorted({layout for other in points if same(other) for layout in _decode_layouts(other)}))


def _decode_layouts(point: Point) -> tuple[str, ...]:
    """`TP8`, `TP8+DP-attn`, `EP8` (attention by data or by tensor: the better one); `EP1`: the prefill's TP size."""
    sizes = {kind.lower(): int(n) for kind, n in _SIZE.findall(point.decode_cfg)}
    if "dp" in point.decode_cfg.lower() and "tp" in sizes:
        return (f"dep{sizes['tp']}",)
    if sizes.get("ep", 1) > 1:
        return (f"dep{sizes['ep']}", *([f"tep{sizes['ep']}"] if sizes["ep"] <= _MOST_SPLIT else []))
    if "tp" in sizes:
        return (f"tp{sizes['tp']}",)
    tp = {kind.lower(): int(n) for kind, n in _SIZE.findall(point.prefill_cfg)}.get("tp")
    return (f"tp{tp}",) if tp else ()
