"""Settings of the operations layer: fleet, router, admission, deadlines, supervision."""

from __future__ import annotations

from pydantic import Field

from tokenmill.core.config import FrozenConfig


class RestartConfig(FrozenConfig):
    """When the supervisor brings a process back.

    first_delay_s   wait before the first restart; doubles with each crash inside the window, up to max_delay_s
    max_crashes     more crashes than this within window_s: give up on the process
    """

    first_delay_s: float = Field(default=0.1, ge=0)
    max_delay_s: float = Field(default=10.0, ge=0)
    max_crashes: int = Field(default=5, ge=0)
    window_s: float = Field(default=60.0, gt=0)


class OperationsConfig(FrozenConfig):
    """
    workers                 worker processes per model
    router, router_seed     placement policy by registry name; the seed breaks its ties
    kv_events               workers tell of their prefix caches where the policy wants to know; False: it is assumed
                            from what they were sent
    max_indexed_blocks      per model: most entries of the prefix index, about 100 bytes each
    max_queued_requests     per model: requests in flight beyond the seats (max_num_seqs) of its ready workers
    max_queued_tokens       per model: prompt tokens of requests without a first token yet (bounds memory too)
    request_timeout_s       from submission to last token
    worker_wait_timeout_s   how long a request that lost its worker before its first token waits for another
    max_attempts            workers a request may be given to before it is suspected of killing them
    migration               an answer whose worker is lost half-way goes on elsewhere, behind the tokens that went out;
                            False: it fails
    max_unread_tokens       tokens (and logprob entries) a stream may hold for a consumer that does not read
    heartbeat_interval_s    an idle worker reports this often
    heartbeat_timeout_s     a worker silent for this long is lost; must exceed the longest engine step
    stall_timeout_s         work in flight on a worker and no progress for this long: health turns red
    start_timeout_s         a worker that has not said Hello by then is replaced
    integrity_interval_s    an idle worker checks its engine's invariants this often
    drain_timeout_s         what runs may finish within this after SIGTERM
    stop_timeout_s          between SIGTERM and SIGKILL of a process that has nothing left to do
    """

    workers: int = Field(default=1, ge=1)
    router: str = "round_robin"
    router_seed: int = 0
    kv_events: bool = True
    max_indexed_blocks: int = Field(default=4_000_000, ge=1)
    max_queued_requests: int = Field(default=1024, ge=0)
    max_queued_tokens: int = Field(default=4_000_000, ge=1)
    request_timeout_s: float = Field(default=3600.0, gt=0)
    worker_wait_timeout_s: float = Field(default=30.0, ge=0)
    max_attempts: int = Field(default=3, ge=1)
    migration: bool = True
    max_unread_tokens: int = Field(default=65_536, ge=1)
    heartbeat_interval_s: float = Field(default=0.5, gt=0)
    heartbeat_timeout_s: float = Field(default=60.0, gt=0)
    stall_timeout_s: float = Field(default=10.0, gt=0)
    start_timeout_s: float = Field(default=300.0, gt=0)
    integrity_interval_s: float = Field(default=10.0, gt=0)
    drain_timeout_s: float = Field(default=30.0, ge=0)
    stop_timeout_s: float = Field(default=5.0, gt=0)
    restart: RestartConfig = RestartConfig()
