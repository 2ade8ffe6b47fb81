"""How much memory is left on a device."""

import os

import torch


def free(device: str | torch.device = "cpu") -> int:
    """Bytes that can still be allocated on a device."""
    if torch.device(device).type == "cuda":
        # What torch has taken from the device and not given out again is free, too.
        kept = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
        return torch.cuda.mem_get_info(device)[0] + kept
    try:
        with open("/proc/meminfo", encoding="ascii") as lines:
            found = {name: int(value.split()[0]) * 1024 for name, _, value in (line.partition(":") for line in lines)}
        return found["MemAvailable"]
    except (OSError, KeyError, ValueError):
        # Not Linux: all memory that there is, of which nobody says how much is taken.
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
