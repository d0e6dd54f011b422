"""Windows of the heavily compressed attention over chunk and step boundaries, accumulated online.

A lane is the part of one window that one call covers. Lanes advance token by token in a fixed order, so a state has
the same bits however its tokens were cut into steps. At a window's end the state is empty, and zeros are stored;
that is never read, because a lane that starts a window starts afresh.
Not responsible for: projections, norm, rotation, storage of entries.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from tokenmill.kernels.compressor.api import OnlineState
from tokenmill.kernels.compressor.reference import empty_state, finish, pool_online
from tokenmill.models.deepseek_v4.step_index import Checkpoints, Sequences, ragged


@dataclass(frozen=True, slots=True)
class Lanes:
    """Windows touched between two token counts of each sequence, in order of sequence and window.

    first_row, num_rows  rows of the step's batch
    continues            lane [k] that starts inside a window, and sequence [k] whose state it takes up
    closes               lanes whose window is complete and not protected, as step_index.Closing lists them
    """

    ratio: int
    first_row: Tensor
    num_rows: Tensor
    continues: tuple[Tensor, Tensor]
    closes: Tensor
    owner: Tensor
    window: Tensor

    @classmethod
    def of(cls, seqs: Sequences, ratio: int, before: Tensor, after: Tensor) -> Lanes:
        """Tokens before .. after - 1 of each sequence; both [B], inside the step's rows."""
        owner, window = ragged(
            torch.div(before, ratio, rounding_mode="floor"), torch.div(after + ratio - 1, ratio, rounding_mode="floor")
        )
        begin = torch.maximum(window * ratio, before[owner])
        end = torch.minimum((window + 1) * ratio, after[owner])
        stays = end > begin
        owner, window, begin, end = owner[stays], window[stays], begin[stays], end[stays]
        inside = (begin % ratio != 0).nonzero().squeeze(1)
        return cls(
            ratio=ratio,
            first_row=seqs.first_row[owner] + begin - seqs.context[owner],
            num_rows=end - begin,
            continues=(inside, owner[inside]),
            closes=((end % ratio == 0) & (begin >= seqs.protected[owner])).nonzero().squeeze(1),
            owner=owner,
            window=window,
        )

    def run(self, kv: Tensor, gate: Tensor, stored: OnlineState) -> tuple[Tensor, OnlineState]:
        """kv, gate [T, D]; stored: state of each sequence at `before` [B, D].

        Returns the pooled entries of the lanes that close [n, D] and the state of every lane after its rows.
        """
        state = empty_state(len(self.owner), kv.shape[1])
        lane, owner = self.continues
        state.maximum[lane] = stored.maximum[owner]
        state.total[lane] = stored.total[owner]
        state.weighted[lane] = stored.weighted[owner]
        state = pool_online(state, kv, gate, self.first_row, self.num_rows)
        closed = OnlineState(state.maximum[self.closes], state.total[self.closes], state.weighted[self.closes])
        return finish(closed), state

    def last_states(self, state: OnlineState, before: OnlineState) -> OnlineState:
        """State of each sequence after its last lane [B, D]; sequences without a lane keep `before`."""
        counts = torch.bincount(self.owner, minlength=len(before.total))
        last, has_lane = counts.cumsum(0) - 1, (counts > 0)[:, None]

        def choose(new: Tensor, old: Tensor) -> Tensor:
            return torch.where(has_lane, new[last.clamp(min=0)], old) if len(new) else old

        return OnlineState(
            choose(state.maximum, before.maximum),
            choose(state.total, before.total),
            choose(state.weighted, before.weighted),
        )


def read_state(cache: Tensor, blocks: Tensor) -> OnlineState:
    """cache [blocks, 3, D] of one layer, blocks [B]; what lies there at a window's end is not to be used."""
    return OnlineState(*cache[blocks].unbind(1))


def write_state(cache: Tensor, states: OnlineState, ratio: int, checkpoints: Checkpoints) -> None:
    """states [B, D] belong to the last checkpoint of each sequence; earlier ones are block ends, hence empty."""
    is_open = (checkpoints.num_tokens % ratio != 0)[:, None, None]
    owner = checkpoints.owner
    rows = torch.stack((states.maximum[owner], states.total[owner], states.weighted[owner]), dim=1)
    cache[checkpoints.block] = torch.where(is_open, rows, 0.0)
