"""A step-time model by names: model, hardware, layout, precision; or by the file of a calibration.

Not responsible for: the formulas (roofline, measured), fitting (fit).
"""

from __future__ import annotations

from pathlib import Path

from tokenmill.cost.steptime.calibration import read_calibration
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
    hardware   a key of the catalogue; or a calibration (.toml), which then says all: nothing else is looked at
    parallel   layout of one worker: tp8, tep8, dep16
    slowdown   factor of the software's date (1: what the published points are fitted to)
    context    tokens of a sequence that must fit, too
    """
    if hardware.endswith(".toml"):
        return read_calibration(Path(hardware)).step_time
    layout = Parallel.parse(parallel) if isinstance(parallel, str) else parallel
    work = describe_model(model, precision)
    spec = (catalogue or load_catalogue()).get(hardware)
    check_fits(work, spec, layout, context)
    step_time = RooflineStepTime(work, spec, layout)
    if slowdown == 1.0:
        return step_time
    return RooflineStepTime(work, spec, layout, step_time.efficiency.slowed(slowdown))
