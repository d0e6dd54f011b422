"""The members of the fleet, by model and worker: the only writer of their state and load.

Pure: told what happened and when. Not responsible for requests (in_flight.py) or for what follows (dispatch.py).
"""

from __future__ import annotations

from bisect import bisect_left, insort
from dataclasses import dataclass
from enum import Enum, auto

import msgspec

from tokenmill.core.model_card import ModelCard
from tokenmill.core.wire import Hello, StepFrame, WorkerExited, WorkerStats
from tokenmill.operations.admission import ModelSupply
from tokenmill.operations.load_order import LoadOrder
from tokenmill.operations.members import FleetSnapshot, MemberState, MemberView, load_rank

_WORKING = (MemberState.READY, MemberState.DRAINING)
#: An Introduce may be lost like anything else.
_ASK_AGAIN_S = 1.0


class FrameOrigin(Enum):
    """What the sender of a frame is to us; only the deltas of a CURRENT one count."""

    CURRENT = auto()
    UNKNOWN = auto()  # a life (or a session of it) we were never introduced to: ask it to say Hello
    GAP = auto()  # frames before it were lost on the way, and tokens with them
    COPY = auto()  # it was here before
    GIVEN_UP = auto()  # this life, declared lost, and yet it speaks: ask it to start over with a Hello
    STALE = auto()  # an earlier life, or one that already exited: too late


@dataclass(slots=True)
class _Life:
    """What is known of one incarnation beside its view."""

    session: int = 0
    num_frames: int = 0
    num_sent: int = 0
    num_received: int = 0
    work_total: int = 0
    has_exited: bool = False
    unseen_since_s: float | None = None  # a request that was sent has not arrived, since then


class Fleet:
    """`worker_id` is unique over all models; a restart keeps it and counts `incarnation` up."""

    def __init__(self) -> None:
        self._views: dict[str, MemberView] = {}
        self._lives: dict[str, _Life] = {}
        self._num_placed: dict[str, int] = {}
        self._order: dict[str, list[str]] = {}
        self._supplies: dict[str, ModelSupply] = {}
        self._ready: dict[str, _Ready] = {}
        self._asked: dict[str, tuple[tuple[int, int] | None, float]] = {}

    # -- views --

    def get(self, worker_id: str) -> MemberView | None:
        return self._views.get(worker_id)

    def members(self, model: str | None = None) -> tuple[MemberView, ...]:
        """All workers (of `model`), in order of worker_id."""
        if model is None:
            return tuple(self._views[worker_id] for worker_id in sorted(self._views))
        return tuple(self._views[worker_id] for worker_id in self._order.get(model, ()))

    def models(self) -> list[str]:
        return sorted(model for model, order in self._order.items() if order)

    def cards(self) -> dict[str, ModelCard]:
        """The card of every model that some worker has announced, also while none is ready."""
        return {view.model: view.card for view in self.members() if view.card is not None}

    def ready(self, model: str) -> FleetSnapshot:
        """What a router may choose from."""
        ready = self._ready.get(model)
        if ready is None:
            return FleetSnapshot(model, self._num_placed.get(model, 0), ())
        return FleetSnapshot(model, self._num_placed.get(model, 0), tuple(ready.views), ready.order)

    def supply(self, model: str) -> ModelSupply:
        """What admission asks: made anew only when a worker's state has changed."""
        supply = self._supplies.get(model)
        if supply is None:
            supply = self._supplies[model] = ModelSupply.of(self.members(model))
        return supply

    def can_return(self, model: str) -> bool:
        """No worker may be ready now, but one is on its way."""
        return any(view.is_expected_back for view in self.members(model))

    # -- lives --

    def expect(self, worker_id: str, model: str, now_s: float) -> None:
        """A worker that the deployment consists of, before it has said anything."""
        if worker_id not in self._views:
            self._begin(worker_id, model, 0, now_s)

    def hello(self, hello: Hello, now_s: float) -> bool:
        """A worker is ready, with nothing to do. False: nothing new (an older life, or one that is ready already)."""
        view, life = self._views.get(hello.worker_id), self._lives.get(hello.worker_id)
        if view is not None and life is not None:
            is_same_life = hello.incarnation == view.incarnation
            if hello.incarnation < view.incarnation or (is_same_life and life.has_exited):
                return False
            if is_same_life and hello.session < life.session:
                return False
            if is_same_life and hello.session == life.session and view.state in _WORKING:
                return False
        self._asked.pop(hello.worker_id, None)
        self._put(
            MemberView(
                worker_id=hello.worker_id,
                model=hello.card.name,
                incarnation=hello.incarnation,
                state=MemberState.READY,
                since_s=now_s,
                last_seen_s=now_s,
                progress_s=now_s,
                card=hello.card,
                pid=hello.pid,
            ),
            session=hello.session,
        )
        return True

    def exited(self, notice: WorkerExited, now_s: float) -> bool:
        """A process ended, and its load with it. False: this life was already over."""
        view, life = self._views.get(notice.worker_id), self._lives.get(notice.worker_id)
        if view is None or life is None or notice.incarnation < view.incarnation:
            return False
        if notice.incarnation == view.incarnation and life.has_exited:
            return False
        if notice.will_restart:
            self._begin(notice.worker_id, view.model, notice.incarnation + 1, now_s)
            return True
        life.has_exited = True
        self._lost(view, f"exited with code {notice.exit_code}; it will not be restarted", now_s)
        return True

    def give_up(self, worker_id: str, reason: str, now_s: float, *, is_expected_back: bool) -> None:
        """Its process may live, but it counts as gone, its load too, unless it says Hello again."""
        self._asked.pop(worker_id, None)
        self._lost(self._views[worker_id], reason, now_s, is_expected_back=is_expected_back)

    def drain(self, worker_id: str, now_s: float) -> None:
        view = self._views[worker_id]
        if view.state is MemberState.READY:
            self._change(view, state=MemberState.DRAINING, since_s=now_s, reason="draining")

    # -- frames --

    def frame(self, frame: StepFrame, now_s: float) -> FrameOrigin:
        """Take a worker's report of its load, and say what the worker is to us."""
        view, life = self._views.get(frame.worker_id), self._lives.get(frame.worker_id)
        if view is None or life is None or frame.incarnation > view.incarnation:
            return FrameOrigin.UNKNOWN
        if frame.incarnation < view.incarnation or life.has_exited:
            return FrameOrigin.STALE
        if frame.session < life.session:
            return FrameOrigin.STALE
        if view.state is MemberState.LOST:
            return FrameOrigin.GIVEN_UP
        if view.state is MemberState.STARTING or frame.session > life.session:
            return FrameOrigin.UNKNOWN
        if frame.index is not None:
            if frame.index <= life.num_frames:
                return FrameOrigin.COPY
            if frame.index > life.num_frames + 1:
                return FrameOrigin.GAP
            life.num_frames = frame.index
        life.num_received = frame.num_received
        is_unseen = life.num_sent > life.num_received
        life.unseen_since_s = (life.unseen_since_s or now_s) if is_unseen else None
        self._change(
            view,
            last_seen_s=now_s,
            progress_s=now_s if self._has_progressed(frame, life) else view.progress_s,
            stats=frame.stats,
            num_unseen=max(0, life.num_sent - life.num_received),
        )
        return FrameOrigin.CURRENT

    def should_introduce(self, frame: StepFrame, now_s: float) -> bool:
        """A life must say Hello (again); asked anew when no answer came for a while."""
        key, asked_s = self._asked.get(frame.worker_id, (None, 0.0))
        if key == (frame.incarnation, frame.session) and now_s - asked_s < _ASK_AGAIN_S:
            return False
        self._asked[frame.worker_id] = ((frame.incarnation, frame.session), now_s)
        return True

    def session(self, worker_id: str) -> int:
        return self._lives[worker_id].session

    def unseen_since_s(self, worker_id: str) -> float | None:
        """Since when its frames say that a request it was sent has not come; None: all have."""
        return self._lives[worker_id].unseen_since_s

    def forgive_silence(self, seconds: float) -> None:
        """Our own process slept this long: nobody else was silent."""
        for view in list(self._views.values()):
            self._change(
                view,
                since_s=view.since_s + seconds,
                last_seen_s=view.last_seen_s + seconds,
                progress_s=view.progress_s + seconds,
            )

    # -- load --

    def placed(self, model: str) -> None:
        self._num_placed[model] = self._num_placed.get(model, 0) + 1

    def given(self, worker_id: str, num_prompt_tokens: int, now_s: float) -> int:
        """A request was sent to this worker: the how-manyth of its life (StepFrame.num_received counts the same)."""
        view, life = self._views[worker_id], self._lives[worker_id]
        life.num_sent += 1
        self._change(
            view,
            num_in_flight=view.num_in_flight + 1,
            num_unseen=max(0, life.num_sent - life.num_received),
            num_pending_tokens=view.num_pending_tokens + num_prompt_tokens,
            progress_s=now_s if view.num_in_flight == 0 else view.progress_s,
        )
        return life.num_sent

    def first_token(self, worker_id: str, num_prompt_tokens: int) -> None:
        """A request of this worker has its first token: its prompt is no longer pending."""
        view = self._views[worker_id]
        self._change(view, num_pending_tokens=view.num_pending_tokens - num_prompt_tokens)

    def ended(self, worker_id: str, num_pending_tokens: int) -> None:
        """A request left this worker; `num_pending_tokens` of its prompt had still been pending."""
        view = self._views[worker_id]
        self._change(
            view,
            num_in_flight=view.num_in_flight - 1,
            num_pending_tokens=view.num_pending_tokens - num_pending_tokens,
        )

    def check_integrity(self) -> None:
        for view in self._views.values():
            assert view.num_in_flight >= 0 and view.num_pending_tokens >= 0, f"{view}"
            assert view.num_in_flight > 0 or view.num_pending_tokens == 0, f"{view}"
        for model, ready in self._ready.items():
            now = [view for view in self.members(model) if view.state is MemberState.READY]
            assert ready.views == now, f"model {model}: the ready workers differ"
            least = sorted(view.worker_id for view in ready.order.least())
            lowest = min(map(load_rank, now), default=None)
            assert least == [view.worker_id for view in now if load_rank(view) == lowest], f"model {model}: {least}"

    # -- inside --

    def _begin(self, worker_id: str, model: str, incarnation: int, now_s: float) -> None:
        self._put(
            MemberView(
                worker_id=worker_id,
                model=model,
                incarnation=incarnation,
                state=MemberState.STARTING,
                since_s=now_s,
                last_seen_s=now_s,
                progress_s=now_s,
                card=self._views[worker_id].card if worker_id in self._views else None,
                reason="starting" if incarnation == 0 else f"restarting (restart {incarnation})",
                is_expected_back=True,
            )
        )

    def _put(self, view: MemberView, session: int = 0) -> None:
        """A new life: whatever was counted of the one before is over."""
        before = self._views.get(view.worker_id)
        if before is not None and before.model != view.model:
            self._order[before.model].remove(view.worker_id)
            self._supplies.pop(before.model, None)
            self._note_ready(before.model, view.worker_id, None)
        if before is None or before.model != view.model:
            insort(self._order.setdefault(view.model, []), view.worker_id)
        self._set(view)
        self._lives[view.worker_id] = _Life(session)

    def _lost(self, view: MemberView, reason: str, now_s: float, *, is_expected_back: bool = False) -> None:
        self._change(
            view,
            state=MemberState.LOST,
            since_s=now_s,
            stats=WorkerStats(),
            num_unseen=0,
            num_in_flight=0,
            num_pending_tokens=0,
            reason=reason,
            is_expected_back=is_expected_back,
        )

    def _has_progressed(self, frame: StepFrame, life: _Life) -> bool:
        """Tokens came out or prompt tokens went in; steps alone are no progress."""
        total = frame.stats.prompt_tokens_total + frame.stats.generation_tokens_total
        has_grown, life.work_total = total != life.work_total, total
        return has_grown or any(delta.token_ids or delta.finish_reason for delta in frame.deltas)

    def _change(self, view: MemberView, **changes: object) -> None:
        self._set(msgspec.structs.replace(view, **changes))

    def _set(self, view: MemberView) -> None:
        before = self._views.get(view.worker_id)
        self._views[view.worker_id] = view
        if before is None or before.state is not view.state or before.card is not view.card:
            self._supplies.pop(view.model, None)
        elif view.state is not MemberState.READY:
            return
        self._note_ready(view.model, view.worker_id, view if view.state is MemberState.READY else None)

    def _note_ready(self, model: str, worker_id: str, view: MemberView | None) -> None:
        ready = self._ready.get(model)
        if ready is None:
            ready = self._ready[model] = _Ready()
        ready.note(worker_id, view)


class _Ready:
    """The ready workers of a model, in order of worker_id and in order of load."""

    def __init__(self) -> None:
        self.views: list[MemberView] = []
        self.order = LoadOrder()
        self._ids: list[str] = []

    def note(self, worker_id: str, view: MemberView | None) -> None:
        """Its view now; None: it is not ready."""
        at = bisect_left(self._ids, worker_id)
        is_in = at < len(self._ids) and self._ids[at] == worker_id
        if view is None:
            self.order.remove(worker_id)
            if is_in:
                del self._ids[at], self.views[at]
            return
        self.order.put(view)
        if is_in:
            self.views[at] = view
        else:
            self._ids.insert(at, worker_id)
            self.views.insert(at, view)
