"""Clocks, power, temperature and throttling of a GPU while a turn runs, read by a thread of the parent."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext, suppress
from typing import Any

PERIOD_S = 0.1
# Bits of NVML's throttle reasons that slow a GPU down; that it idles or obeys set clocks is none of them.
REASONS = {0x4: "power cap", 0x8: "hardware slowdown", 0x20: "thermal", 0x40: "hardware thermal", 0x80: "power brake"}


class GpuState:
    """Reads one GPU by its UUID, as NVML numbers all GPUs of the machine and CUDA only the visible ones."""

    def __init__(self, uuid: str) -> None:
        import pynvml

        self._nvml = pynvml
        pynvml.nvmlInit()
        self._handle = pynvml.nvmlDeviceGetHandleByUUID(uuid)

    def read(self) -> dict[str, Any]:
        """Returns SM clock in MHz, power in W, temperature in degrees Celsius and the reasons of throttling."""
        nvml, handle = self._nvml, self._handle
        reading: dict[str, Any] = {}
        for name, ask in {
            "sm_mhz": lambda: nvml.nvmlDeviceGetClockInfo(handle, nvml.NVML_CLOCK_SM),
            "power_w": lambda: nvml.nvmlDeviceGetPowerUsage(handle) / 1e3,
            "celsius": lambda: nvml.nvmlDeviceGetTemperature(handle, nvml.NVML_TEMPERATURE_GPU),
            "throttled": lambda: nvml.nvmlDeviceGetCurrentClocksThrottleReasons(handle),
        }.items():
            try:
                reading[name] = ask()
            except (nvml.NVMLError, AttributeError):  # a machine may refuse one, a version of NVML lack one
                reading[name] = None
        return reading

    @contextmanager
    def watched(self) -> Iterator[dict[str, Any]]:
        """Yields a mapping that holds, after the block, min, mean and max of each figure over the block."""
        readings, over, summary = [self.read()], threading.Event(), dict[str, Any]()

        def follow() -> None:
            while not over.wait(PERIOD_S):
                readings.append(self.read())

        thread = threading.Thread(target=follow, daemon=True)
        thread.start()
        try:
            yield summary
        finally:
            over.set()
            thread.join()
            readings.append(self.read())
            summary.update(summarised(readings))


def summarised(readings: list[dict[str, Any]]) -> dict[str, Any]:
    """Returns {min, mean, max} of each figure, and in words every reason of throttling that was seen."""
    summary: dict[str, Any] = {"readings": len(readings)}
    for name in ("sm_mhz", "power_w", "celsius"):
        values = [reading[name] for reading in readings if reading[name] is not None]
        summary[name] = {"min": min(values), "mean": sum(values) / len(values), "max": max(values)} if values else None
    bits = 0
    for reading in readings:
        bits |= reading["throttled"] or 0
    summary["throttled"] = [words for bit, words in REASONS.items() if bits & bit]
    return summary


@contextmanager
def watched(uuid: str | None) -> Iterator[dict[str, Any]]:
    """Yields what `GpuState.watched` does; an empty mapping on a CPU and where NVML cannot read the GPU."""
    state = None
    if uuid is not None:
        with suppress(Exception):  # NVML's own errors, and a machine without its library
            state = GpuState(uuid)
    with state.watched() if state is not None else nullcontext({}) as figures:
        yield figures
