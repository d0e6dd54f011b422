"""How long steps take on the workers of one model, measured from their frames as they come. Pure.

A token of a prompt costs what the frames billed for prompts; a step without prompts is fixed_s + row_s x sequences, by
least squares. The past counts half after `half_life` frames. Not responsible for: predictions (cost/steptime).
"""

from __future__ import annotations

from tokenmill.core.wire import StepFrame

#: Until something was measured; only ratios between them matter then.
_PRIOR_PREFILL_TOKEN_S = 1e-4
_PRIOR_FIXED_S = 5e-3
_PRIOR_ROW_S = 1e-4
#: A prior weighs as much as this many observations.
_PRIOR_TOKENS = 64.0
_PRIOR_OSL = 64.0


class StepRates:
    """`mean_osl`: tokens of the answers that ended lately, for requests that do not say how long theirs will be."""

    def __init__(self, half_life: float = 2000.0) -> None:
        self._keep = 0.5 ** (1 / half_life)
        self._prefill_s = _PRIOR_TOKENS * _PRIOR_PREFILL_TOKEN_S
        self._prefill_tokens = _PRIOR_TOKENS
        self._steps = self._rows = self._rows_squared = self._seconds = self._row_seconds = 0.0
        self.mean_osl = _PRIOR_OSL

    def observe(self, frame: StepFrame) -> None:
        """Take a frame of a current worker."""
        num_prefill = num_rows = 0
        prefill_s = seconds = 0.0
        for delta in frame.deltas:
            num_prefill += delta.num_prefill_tokens
            prefill_s += delta.prefill_s
            num_rows += bool(delta.token_ids)
            seconds += delta.seconds
        if num_prefill and prefill_s > 0:
            self._prefill_s = self._keep * self._prefill_s + prefill_s
            self._prefill_tokens = self._keep * self._prefill_tokens + num_prefill
        elif num_rows and seconds > 0:
            self._observe_decode(num_rows, seconds)

    def _observe_decode(self, num_rows: int, seconds: float) -> None:
        keep = self._keep
        self._steps = keep * self._steps + 1
        self._rows = keep * self._rows + num_rows
        self._rows_squared = keep * self._rows_squared + num_rows * num_rows
        self._seconds = keep * self._seconds + seconds
        self._row_seconds = keep * self._row_seconds + num_rows * seconds

    def ended(self, num_output_tokens: int) -> None:
        """An answer ended with so many tokens."""
        self.mean_osl += (num_output_tokens - self.mean_osl) / 50

    @property
    def prefill_token_s(self) -> float:
        return self._prefill_s / self._prefill_tokens

    @property
    def row_s(self) -> float:
        """Seconds that one more sequence adds to a step."""
        if self._steps < 2:
            return _PRIOR_ROW_S
        mean_rows = self._rows / self._steps
        variance = self._rows_squared / self._steps - mean_rows * mean_rows
        if variance < 1e-6:
            return 0.0  # all steps were alike: nothing is known of another size
        covariance = self._row_seconds / self._steps - mean_rows * self._seconds / self._steps
        return min(max(0.0, covariance / variance), self._seconds / self._rows)

    @property
    def fixed_s(self) -> float:
        """Seconds of a step before its first sequence."""
        if self._steps < 2:
            return _PRIOR_FIXED_S
        return max(0.0, (self._seconds - self.row_s * self._rows) / self._steps)
