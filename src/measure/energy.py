"""Reads the energy counter of a GPU."""

import torch


class EnergyCounter:
    """Joules used since construction by one NVIDIA GPU, from NVML's total-energy counter (Volta and later)."""

    def __init__(self, device: torch.device) -> None:
        import pynvml

        self._nvml = pynvml
        pynvml.nvmlInit()
        # By UUID, since NVML numbers all GPUs of the machine and CUDA only the visible ones.
        uuid = f"GPU-{torch.cuda.get_device_properties(device).uuid}"
        self._handle = pynvml.nvmlDeviceGetHandleByUUID(uuid)
        self._begin_mj = self._read_mj()

    def joules(self) -> float:
        return (self._read_mj() - self._begin_mj) / 1e3

    def _read_mj(self) -> int:
        return self._nvml.nvmlDeviceGetTotalEnergyConsumption(self._handle)


def energy_counter(device: torch.device) -> EnergyCounter | None:
    """Returns a counter for `device`, or None where there is none (a CPU, an old GPU, no driver library)."""
    if device.type != "cuda":
        return None
    import pynvml

    try:
        return EnergyCounter(device)
    except pynvml.NVMLError:
        return None
