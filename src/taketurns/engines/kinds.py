# SPDX-License-Identifier: Apache-2.0
"""What each kind of inference server shows of itself.

Source: the servers' own metrics and, for the names that routers rely on, the
model server protocol of the Kubernetes Gateway API Inference Extension.
"""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class ServerKind:
    """One kind of server.

    Attributes:
        health: Path that tells whether it's well, by GET; None: not known.
        waiting: Names of the gauges, any of which tells how many requests wait in
            its own queue; empty: not known.
        running: The same for requests that it works on.
    """

    health: str | None = None
    waiting: tuple[str, ...] = ()
    running: tuple[str, ...] = ()


METRICS_PATH = "/metrics"
"""Where the kinds that have gauges show them."""

KINDS: dict[str, ServerKind] = {
    "openai": ServerKind(),
    "vllm": ServerKind(
        health="/health",
        # Not its vllm:num_requests_waiting_by_reason, whose parts add up to this once more.
        waiting=("vllm:num_requests_waiting",),
        running=("vllm:num_requests_running",),
    ),
    "sglang": ServerKind(
        health="/health",
        waiting=("sglang:num_queue_reqs",),
        running=("sglang:num_running_reqs",),
    ),
    "llamacpp": ServerKind(
        health="/health",
        waiting=("llamacpp:requests_deferred",),
        running=("llamacpp:requests_processing",),
    ),
    "tgi": ServerKind(
        health="/health",
        waiting=("tgi_queue_size",),
        running=("tgi_batch_current_size",),
    ),
    "tei": ServerKind(health="/health", waiting=("te_queue_size",)),
    "infinity": ServerKind(health="/health"),
}
"""By the word in the configuration."""
