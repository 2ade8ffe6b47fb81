"""Peak memory of a call on the CPU, which has no allocator statistics of its own."""

from torch.profiler import ProfilerActivity, profile


def peak_bytes(run):
    """The most bytes that were allocated at once during `run()`, beyond what was there before."""
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as seen:
        run()
    changes = [event for event in seen.profiler.kineto_results.events() if event.name() == "[memory]"]
    now = peak = 0
    for event in sorted(changes, key=lambda event: event.start_ns()):
        now += event.nbytes()
        peak = max(peak, now)
    return peak
