"""Messages between frontend, workers and supervisor: msgpack frames over ZeroMQ, one tagged union per direction.

Sockets live in operations; here are only the types and their encoding.
"""

from __future__ import annotations

import msgspec

from tokenmill.core.kv_events import KVEvents, KVSnapshot
from tokenmill.core.model_card import ModelCard
from tokenmill.core.request import Request, TokenDelta


class WorkerStats(msgspec.Struct, frozen=True, kw_only=True):
    """A worker's state after a step; counts are of now, `*_total` since the worker's start."""

    num_running: int = 0
    num_waiting: int = 0
    kv_usage: float = 0.0  # share of KV bytes in use by running sequences, 0..1
    num_preemptions_total: int = 0
    prefix_queries_total: int = 0  # prompt tokens looked up
    prefix_hits_total: int = 0  # prompt tokens served from the prefix cache
    prompt_tokens_total: int = 0  # prompt tokens computed
    generation_tokens_total: int = 0
    steps_total: int = 0
    drafts_total: int = 0  # verifications: one sequence in one step with draft tokens
    draft_tokens_total: int = 0  # draft tokens verified
    accepted_tokens_total: int = 0  # of them, those that stayed
    accepted_at_total: tuple[int, ...] = ()  # the same by position behind the newest token


# -- frontend -> worker --


class Generate(msgspec.Struct, frozen=True, omit_defaults=True, tag="generate"):
    """
    session  of the Hello that it answers to: one for an earlier session comes too late
    index    the how-manyth of that session; a gap tells the worker that one was lost on the way. None: not counted
    """

    request: Request
    session: int = 0
    index: int | None = None


class Abort(msgspec.Struct, frozen=True, tag="abort"):
    request_id: str


class Drain(msgspec.Struct, frozen=True, tag="drain"):
    """Finish what runs, take nothing new, then say Goodbye and exit."""


class Introduce(msgspec.Struct, frozen=True, omit_defaults=True, tag="introduce"):
    """Sent by a frontend that does not know the sender of a frame (it restarted, or had given the worker up).

    The worker drops everything it runs (nobody waits for it any more) and says Hello again, unless it has done so
    since: session is that of the frame that caused this.
    """

    session: int | None = None


class ReportCache(msgspec.Struct, frozen=True, tag="report_cache"):
    """Send a KVSnapshot of the prefix cache now, and KVEvents of whatever changes in it from then on."""


ToWorker = Generate | Abort | Drain | Introduce | ReportCache


# -- frontend -> supervisor --


class Unresponsive(msgspec.Struct, frozen=True, tag="unresponsive"):
    """This worker is silent although its process lives: end that process; its restart follows the usual rules."""

    worker_id: str
    incarnation: int
    reason: str


ToSupervisor = Unresponsive


# -- worker or supervisor -> frontend --


class Hello(msgspec.Struct, frozen=True, tag="hello", kw_only=True):
    """First message of a worker's life, and its answer to Introduce.

    incarnation    counts restarts of the same worker_id
    started_s      host-monotonic second at which the bill begins: the start of the process; in the answer to an
                   Introduce the end of its last frame, so that no second is billed twice
    process_started_s  when the process was started, whatever was billed since; None: not told
    num_ranks      processes that are this worker together, each with its own devices: all of them are billed for every
                   second of its frames, from the start of the first to the exit of the last
    session        counts the Hellos of this life before this one; what runs ends with a session
    """

    worker_id: str
    incarnation: int
    pid: int
    started_s: float
    card: ModelCard
    process_started_s: float | None = None
    num_ranks: int = 1
    session: int = 0


class StepFrame(msgspec.Struct, frozen=True, tag="step", kw_only=True):
    """One per step (or per half second when idle): every new token of this frontend's requests, and the time.

    busy_s + idle_s tile the time from the previous frame's `until_s` to this one's. Both are *measured*:
    idle_s is time spent in the wait for work, startup_s (first frame only) time until the worker was ready.
    The `seconds` of the deltas plus `unattributed_s` sum to busy_s. Seconds that only a later delta will bring are in
    no busy_s before it (which then exceeds its frame's time); held_s is the sum of those outstanding.
    num_received counts the Generate messages taken since the last Hello: what was sent beyond it is on its way
    and in no count of `stats` yet.
    session, index: of the Hello it follows, and the how-manyth frame since; None: this sender does not count.
    """

    worker_id: str
    incarnation: int
    until_s: float
    busy_s: float = 0.0
    idle_s: float = 0.0
    startup_s: float = 0.0
    unattributed_s: float = 0.0
    held_s: float = 0.0
    num_received: int = 0
    session: int = 0
    index: int | None = None
    joules: float | None = None
    deltas: tuple[TokenDelta, ...] = ()
    stats: WorkerStats = WorkerStats()


class Goodbye(msgspec.Struct, frozen=True, tag="goodbye", kw_only=True):
    worker_id: str
    incarnation: int


class WorkerExited(msgspec.Struct, frozen=True, tag="exited", kw_only=True):
    """The supervisor saw the process end; everything it had not reported is lost.

    started_s   host-monotonic second at which that process was started, for the bill of one that never said Hello
    """

    worker_id: str
    incarnation: int
    exit_code: int
    at_s: float
    will_restart: bool
    started_s: float | None = None


ToFrontend = Hello | StepFrame | Goodbye | WorkerExited | KVEvents | KVSnapshot

encode = msgspec.msgpack.Encoder().encode
decode_to_supervisor = msgspec.msgpack.Decoder(ToSupervisor).decode
decode_to_worker = msgspec.msgpack.Decoder(ToWorker).decode
decode_to_frontend = msgspec.msgpack.Decoder(ToFrontend).decode
