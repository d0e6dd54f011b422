"""From names (model, device, layout) to workers of the twin: step times, cache groups, pools of the size that is left.

ConfigError for unknown names (the nearest is told), ResourceError for a model that does not fit (by how much).
Not responsible for: the formulas (cost/steptime), settings (recipes).
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from tokenmill.core.cache_groups import CacheGroup, GroupKind
from tokenmill.core.errors import ConfigError
from tokenmill.core.work_description import WorkDescription
from tokenmill.cost.rates import DeviceRate, resolve_rate
from tokenmill.cost.steptime.calibration import Calibration, read_calibration
from tokenmill.cost.steptime.load import step_time_for
from tokenmill.cost.steptime.parallel import Parallel, cache_bytes_per_device, fewest
from tokenmill.cost.steptime.shape import StepTime
from tokenmill.engine.config import EngineConfig
from tokenmill.infra.catalogue import load_catalogue
from tokenmill.infra.device_spec import DeviceSpec
from tokenmill.models.deepseek_v4 import groups as v4_groups
from tokenmill.models.deepseek_v4 import presets
from tokenmill.models.priced import describe_model
from tokenmill.sim.kinds import worker_kind
from tokenmill.sim.twin import WorkerKind

_BLOCK_SIZE, _V4_BLOCK_SIZE = 16, 128


@dataclass(frozen=True, slots=True)
class Placed:
    """Workers of one model on one kind of device, and what a worker costs.

    num_devices  of all workers; num_idle_devices are left over and paid for, too
    """

    kind: WorkerKind
    rate: DeviceRate
    layout: Parallel
    num_devices: int
    num_idle_devices: int


def place_model(
    model: str,
    hardware: str,
    num_devices: int,
    engine: EngineConfig,
    *,
    name: str | None = None,
    layout: str | None = None,
    precision: str | None = None,
    slowdown: float = 1.0,
    is_quiet: bool = False,
    load_s: float = 60.0,
) -> Placed:
    """As many workers as the devices allow.

    hardware  as step_time_for takes it
    layout    None: as few devices per worker as hold it, a power of two
    """
    spec, precision = _device(hardware, precision)
    work = describe_model(model, precision)
    parallel = _layout(work, spec, layout)
    step_time = step_time_for(model, hardware, parallel, precision, slowdown=slowdown, context=work.max_model_len / 64)
    num_workers = num_devices // parallel.num_devices
    if num_workers < 1:
        raise ConfigError(
            f"{model} as {parallel} takes {parallel.num_devices} devices per worker and {num_devices} were given: "
            f"give --gpus {parallel.num_devices} or more, or a smaller --layout"
        )
    rate = resolve_rate(spec=spec)
    kind = _kind(work, spec, parallel, step_time, engine, name or model, num_workers, is_quiet, load_s)
    return Placed(
        kind,
        _times(rate, num_devices / num_workers),
        parallel,
        num_devices,
        num_devices - num_workers * parallel.num_devices,
    )


def _device(hardware: str, precision: str | None) -> tuple[DeviceSpec, str | None]:
    """The device that a key, or a calibration of published points, is about, and the weights' precision there."""
    if not hardware.endswith(".toml"):
        return load_catalogue().get(hardware), precision
    calibration = read_calibration(Path(hardware))
    if isinstance(calibration, Calibration):
        raise ConfigError(
            f"{hardware} holds measured step times of {calibration.model}, and neither memory nor price of a device: "
            "give a key of the catalogue, or a calibration of published points"
        )
    return load_catalogue().get(calibration.hardware), precision or calibration.precision


def _layout(work: WorkDescription, spec: DeviceSpec, layout: str | None) -> Parallel:
    if layout is not None:
        return Parallel.parse(layout)
    num = fewest(work, spec)
    return Parallel(num, is_attention_split=True, is_expert_split=num > 1 and work.num_experts > 0)


def _times(rate: DeviceRate, factor: float) -> DeviceRate:
    """Of a worker of so many devices."""
    return DeviceRate(
        rate.usd_per_hour * factor, rate.watts * factor, is_estimated=rate.is_estimated, source=rate.source
    )


def _kind(
    work: WorkDescription,
    spec: DeviceSpec,
    parallel: Parallel,
    step_time: StepTime,
    engine: EngineConfig,
    name: str,
    num_workers: int,
    is_quiet: bool,
    load_s: float,
) -> WorkerKind:
    block_size = engine.block_size or (_V4_BLOCK_SIZE if _is_v4(work) else _BLOCK_SIZE)
    return worker_kind(
        engine.model_copy(update={"block_size": block_size}),
        step_time,
        num_workers,
        load_s=load_s,
        is_quiet=is_quiet,
        name=name,
        vocab_size=work.vocab_size,
        max_model_len=work.max_model_len,
        groups=cache_groups(work, block_size),
        budget_bytes=int(_cache_bytes(work, spec, parallel)),
    )


def cache_groups(work: WorkDescription, block_size: int) -> tuple[CacheGroup, ...]:
    """The model's own where its declaration is at hand, else one group that grows as its work says."""
    if _is_v4(work):
        config = presets.pro() if work.name.endswith("pro") else presets.flash()
        formats = v4_groups.cache_formats(config, "bfloat16", "fp8_e4m3", "fp4")
        return v4_groups.cache_groups(config, formats, block_size)
    return (CacheGroup("full", GroupKind.FULL, max(1, round(work.kv_bytes_per_token * block_size))),)


def _is_v4(work: WorkDescription) -> bool:
    return work.name in ("deepseek-v4-pro", "deepseek-v4-flash")


def _cache_bytes(work: WorkDescription, spec: DeviceSpec, parallel: Parallel) -> float:
    """Of a whole worker: devices with their own sequences add up, copies of one cache do not."""
    own = cache_bytes_per_device(work, spec, parallel)
    shards = min(parallel.num_devices, work.kv_shards) if parallel.is_attention_split else parallel.num_devices
    return own * shards
