"""A step-time model by names: model, hardware, layout, precision, and a calibration where there is one.

Not responsible for: the formulas (roofline, table), fitting (fit).
"""

from __future__ import annotations

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
    hardware   a key of the catalogue
    parallel   layout of one worker: tp8, tep8, dep16
    slowdown   factor of the software's date (1: what the published points are fitted to)
    context    tokens of a sequence that must fit, too
    """
    layout = Parallel.parse(parallel) if isinstance(parallel, str) else parallel
    work = describe_model(model, precision)
    spec = (catalogue or load_catalogue()).get(hardware)
    check_fits(work, spec, layout, context)
    step_time = RooflineStepTime(work, spec, layout)
    if slowdown == 1.0:
        return step_time
    return RooflineStepTime(work, spec, layout, step_time.efficiency.slowed(slowdown))
