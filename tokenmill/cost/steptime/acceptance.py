"""Acceptance lengths of drafts: tokens gained per step by number of drafts, published or given.

An acceptance length counts the bonus token: AL = 1 + accepted drafts. Source of the tables: SemiAnalysis InferenceX,
golden_al_distribution (SPEED-Bench, coding split, temperature 1), 2026-08. Not responsible for: the time of drafts.
"""

from __future__ import annotations

from tokenmill.core.errors import ConfigError

#: name -> acceptance length with 0, 1, 2 ... drafts.
TABLES: dict[str, tuple[float, ...]] = {
    "none": (1.0,),
    "mtp": (1.0, 1.79, 2.27, 2.49, 2.54, 2.55),
    "mtp_no_thinking": (1.0, 1.92, 2.61, 2.97, 3.00, 3.10),
    "dspark": (1.0, 1.84, 2.51, 3.01, 3.36, 3.61, 3.77, 3.73),
}


def acceptance_length(num_drafts: int, table: str = "mtp") -> float:
    """ConfigError where the table has no entry: acceptance is measured, not extrapolated."""
    if num_drafts == 0:
        return 1.0
    if table not in TABLES or num_drafts >= len(TABLES[table]):
        possible = ", ".join(f"{name} (0 to {len(lengths) - 1} drafts)" for name, lengths in TABLES.items())
        raise ConfigError(f"no acceptance length for {num_drafts} drafts of {table!r}: possible: {possible}")
    return TABLES[table][num_drafts]
