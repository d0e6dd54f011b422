"""The best that some hardware can do with a model: tokens per second and device at an interactivity or concurrency.

Searches layouts of workers, numbers of prefill and decode workers within a budget of devices, and numbers of drafts.
Not responsible for: steady states (serving), step times (roofline), published points (points, anchor).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache, cached_property

from tokenmill.core.errors import ConfigError
from tokenmill.core.work_description import WorkDescription
from tokenmill.cost.steptime.efficiency import Efficiency
from tokenmill.cost.steptime.parallel import Parallel, check_fits, max_sequences
from tokenmill.cost.steptime.roofline import RooflineStepTime
from tokenmill.cost.steptime.serving import Aggregated, Disaggregated, Servers, Steady, Traffic
from tokenmill.infra.device_spec import DeviceSpec

_SIZES = (1, 2, 4, 8, 16, 32, 48)
_MOST_SPLIT = 8
#: Scale-up domains that one worker may span when the model fits no single one.
_HOSTS = 4
#: Devices that one deployment may have where its scale-up domain is smaller.
_MOST_DEVICES = 64


@dataclass(frozen=True, slots=True)
class Space:
    """
    layouts     of decode (or aggregated) workers that may be used; (): all that fit
    prefill_layouts  the same for prefill workers
    is_disagg   None: whichever is better; disaggregated only where the scale-up domain is larger than a host
    drafts      numbers of drafts that may be used
    """

    layouts: tuple[str, ...] = ()
    prefill_layouts: tuple[str, ...] = ()
    is_disagg: bool | None = None
    drafts: tuple[int, ...] = (0,)
    acceptance: str = "mtp"


@dataclass(frozen=True, slots=True)
class Choice:
    """A deployment and what it does."""

    steady: Steady
    prefill: str | None
    num_prefill: int
    decode: str
    num_decode: int
    num_drafts: int

    def __str__(self) -> str:
        drafts = f", {self.num_drafts} drafts" if self.num_drafts else ""
        if self.prefill is None:
            return f"{self.decode}{drafts}"
        return f"{self.num_prefill} x {self.prefill} + {self.num_decode} x {self.decode}{drafts}"


@dataclass(frozen=True)
class Frontier:
    """`traffic.num_drafts` is ignored: `space.drafts` are tried."""

    work: WorkDescription
    spec: DeviceSpec
    traffic: Traffic
    space: Space
    efficiency: Efficiency

    def check(self) -> None:
        """ResourceError when no layout that may be used holds the model, ConfigError for drafts it cannot make."""
        if self.drafts and any(self._fits(layout) for layout in self.layouts):
            return
        check_fits(self.work, self.spec, Parallel.parse(self.layouts[-1]), self.traffic.decode_context)

    @cached_property
    def drafts(self) -> tuple[int, ...]:
        """Those of the space that the model can make; ConfigError when it has to draft and cannot."""
        possible = tuple(n for n in self.space.drafts if n == 0 or self.work.draft_params)
        if not possible:
            raise ConfigError(
                f"{self.work.name} has no draft block: drafts {self.space.drafts} are not possible, give 0"
            )
        return possible

    @cached_property
    def servers(self) -> Servers:
        names = {*self.layouts, *self.prefill_layouts}
        return Servers(
            {n: RooflineStepTime(self.work, self.spec, Parallel.parse(n), self.efficiency) for n in sorted(names)}
        )

    @cached_property
    def layouts(self) -> tuple[str, ...]:
        return self.space.layouts or self._possible(max_size=max(_SIZES))

    @cached_property
    def prefill_layouts(self) -> tuple[str, ...]:
        return self.space.prefill_layouts or self._possible(max_size=_MOST_SPLIT)

    def _possible(self, max_size: int) -> tuple[str, ...]:
        """Layouts that hold the weights and some sequences; ResourceError when none does."""
        most = self.spec.domain_size if self.spec.domain_size > 1 else _MOST_SPLIT
        inside = self._fitting([n for n in _SIZES if n <= min(max_size, most)])
        beyond = [] if inside else self._fitting([n for n in _SIZES if most < n <= _HOSTS * most])
        if not inside and not beyond:
            check_fits(self.work, self.spec, Parallel(most), self.traffic.decode_context)
        return tuple(inside or beyond)

    def _fitting(self, sizes: Sequence[int]) -> list[str]:
        """Expert layouts of any size, tensor-parallel ones up to what attention heads and links bear."""
        names = [f"tp{n}" for n in sizes if n <= max(_MOST_SPLIT, min(sizes))]
        names += [f"{kind}{n}" for n in sizes for kind in ("dep", "tep") if n > 1 and self.work.num_experts]
        names = [n for n in names if not n.startswith("tep") or int(n[3:]) <= _MOST_SPLIT]
        return [n for n in names if self._fits(n)]

    def _fits(self, layout: str) -> bool:
        parallel = Parallel.parse(layout)
        return max_sequences(self.work, self.spec, parallel, self.traffic.decode_context) >= 1

    def at_interactivity(self, tokens_per_s: float) -> Choice | None:
        """Highest throughput per device at which every user gets this many tokens per second; None: out of reach."""
        is_disagg = self.space.is_disagg
        found: list[Choice] = []
        for drafts in self.drafts:
            traffic = replace(self.traffic, num_drafts=drafts, acceptance=self.space.acceptance)
            if is_disagg is not True:
                found += self._aggregated(traffic, tokens_per_s)
            if is_disagg or (is_disagg is None and self.spec.domain_size > _MOST_SPLIT):
                found += self._disaggregated(traffic, tokens_per_s)
        return max(found, key=lambda choice: choice.steady.tput_per_device, default=None)

    def _aggregated(self, traffic: Traffic, tokens_per_s: float) -> list[Choice]:
        found = []
        for layout in self.layouts:
            steady = Aggregated(self.servers.get(layout, traffic)).at_interactivity(tokens_per_s)
            if steady is not None:
                found.append(Choice(steady, None, 0, layout, 1, traffic.num_drafts))
        return found

    def _disaggregated(self, traffic: Traffic, tokens_per_s: float) -> list[Choice]:
        """The prefill layout with the best rate per device, and every decode layout, in the best proportion."""
        best = max(
            self.prefill_layouts,
            key=lambda n: self.servers.get(n, traffic).prompt_tokens_per_s / Parallel.parse(n).num_devices,
        )
        prefill, found = self.servers.get(best, traffic), []
        for layout in self.layouts:
            decode = self.servers.get(layout, traffic)
            batch = decode.batch_at(1 / tokens_per_s)
            if batch == 0:
                continue
            pairs = _proportions(prefill.num_devices, decode.num_devices, self.most_devices)
            if not pairs:
                continue
            one = Disaggregated(prefill, 1, decode, 1)
            offered, fed = one.prefill_requests_per_s, one.with_batch(batch, is_fed=True).requests_per_s
            num_prefill, num_decode = max(
                pairs,
                key=lambda pair, offered=offered, fed=fed, size=decode.num_devices: (  # type: ignore[misc]
                    min(pair[0] * offered, pair[1] * fed) / (pair[0] * prefill.num_devices + pair[1] * size)
                ),
            )
            steady = Disaggregated(prefill, num_prefill, decode, num_decode).with_batch(batch)
            found.append(Choice(steady, best, num_prefill, layout, num_decode, traffic.num_drafts))
        return found

    @property
    def most_devices(self) -> int:
        return self.spec.domain_size if self.spec.domain_size > _MOST_SPLIT else _MOST_DEVICES

    def at_concurrency(self, concurrency: float, num_devices: int) -> Choice | None:
        """The best aggregated layout with this many requests in flight over equal workers on all these devices."""
        found = []
        for drafts in self.drafts:
            traffic = replace(self.traffic, num_drafts=drafts, acceptance=self.space.acceptance)
            for layout in self.layouts:
                worker = Aggregated(self.servers.get(layout, traffic))
                if num_devices % worker.num_devices == 0:
                    steady = worker.at_concurrency(concurrency * worker.num_devices / num_devices)
                    found.append(Choice(steady, None, 0, layout, num_devices // worker.num_devices, drafts))
        return max(found, key=lambda choice: choice.steady.tput_per_device, default=None)


@cache
def _proportions(prefill_size: int, decode_size: int, most: int) -> Sequence[tuple[int, int]]:
    """(prefill workers, decode workers) within the budget; no pair that is a multiple of another."""
    pairs: list[tuple[int, int]] = []
    ratios = set()
    for num_decode in range(1, most // decode_size + 1):
        for num_prefill in range(1, (most - num_decode * decode_size) // prefill_size + 1):
            if num_prefill / num_decode not in ratios:
                ratios.add(num_prefill / num_decode)
                pairs.append((num_prefill, num_decode))
    return pairs
