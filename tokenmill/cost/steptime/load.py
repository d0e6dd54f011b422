"""A step-time model by names: model, hardware, layout, precision; or by the file of a calibration.

Not responsible for: the formulas (roofline, measured), fitting (fit).
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from tokenmill.cost.steptime.calibration import Calibration, read_calibration
from tokenmill.cost.steptime.efficiency import default_efficiency
from tokenmill.cost.steptime.parallel import Parallel, check_fits
from tokenmill.cost.steptime.roofline import RooflineStepTime
from tokenmill.cost.steptime.shape import StepTime
from tokenmill.infra.catalogue import Catalogue, load_catalogue
from tokenmill.models.priced import describe_model


def step_time_for(
    model: str,
    hardware: str,
    parallel: Parallel | str = "tp1",
    precision: str | None = None,
    *,
    slowdown: float = 1.0,
    context: float | None = None,
    catalogue: Catalogue | None = None,
) -> StepTime:
    """Seconds of a step of one worker. ConfigError for unknown names, ResourceError when the model does not fit.

    model      a name of models/priced, or a config.json
    hardware   a key of the catalogue; or a calibration (.toml): a measured one says all, nothing else is looked at; one
               of published points says hardware, precision and slowdown
    parallel   layout of one worker: tp8, tep8, dep16
    slowdown   factor of the software's date (1: what the published points are fitted to)
    context    tokens of a sequence that must fit, too
    """
    range_factor = None
    if hardware.endswith(".toml"):
        calibration = read_calibration(Path(hardware))
        if isinstance(calibration, Calibration):
            return calibration.step_time
        hardware, slowdown, range_factor = calibration.hardware, calibration.slowdown, calibration.range_factor
        precision = precision or calibration.precision
    layout = Parallel.parse(parallel) if isinstance(parallel, str) else parallel
    work = describe_model(model, precision)
    spec = (catalogue or load_catalogue()).get(hardware)
    check_fits(work, spec, layout, context)
    efficiency = default_efficiency(spec).slowed(slowdown)
    if range_factor is not None:
        efficiency = replace(efficiency, range_factor=range_factor)
    return RooflineStepTime(work, spec, layout, efficiency)
