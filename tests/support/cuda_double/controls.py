"""Make the devices of the double fail, from another process than the one that uses the devices."""

import mmap
import time
from pathlib import Path

# The layout of the structs Controls and DeviceControls in core.h: fields of eight bytes.
_MAX_DEVICES = 16
_FIELDS_PER_BLOCK = 16
_LOGGING_OFF = 0
_HANGS, _LAUNCH_ERROR, _LAUNCHES_BEFORE_ERROR, _LARGEST_ALLOCATION, _BYTES_IN_USE, _WAITING_THREADS = range(6)

ILLEGAL_ADDRESS = 700


class Controls:
    """The control file, which the double maps into memory: a change takes effect at the next call of CUDA.

    Processes that share the file share the failures and the counters. An error that a process has seen stays until the
    process ends, as on a real card: a context that has failed does not recover.
    """

    def __init__(self, path: Path) -> None:
        """Create the file, or open an existing one."""
        size = (_MAX_DEVICES + 1) * _FIELDS_PER_BLOCK * 8
        with path.open("a+b") as file:
            file.truncate(size)
            self._fields = memoryview(mmap.mmap(file.fileno(), size)).cast("q")

    def set_logging(self, on: bool) -> None:
        """Switch the log on or off."""
        self._fields[_LOGGING_OFF] = not on

    def hang(self, device: int = 0) -> None:
        """Let each wait for the device block."""
        self._set(device, _HANGS, 1)

    def fail_at_launch(self, number: int, device: int = 0, error: int = ILLEGAL_ADDRESS) -> None:
        """Let the n-th launch from now on fail (1 is the next), and all calls of CUDA after it in the same process.

        Matrix products, calls of cuDNN that compute and launches of CUDA graphs are launches, too.
        """
        self._set(device, _LAUNCHES_BEFORE_ERROR, number - 1)
        self._set(device, _LAUNCH_ERROR, error)

    def limit_allocations(self, max_bytes: int, device: int = 0) -> None:
        """Let larger allocations of device memory fail; 0 removes the limit."""
        self._set(device, _LARGEST_ALLOCATION, max_bytes)

    def bytes_in_use(self, device: int = 0) -> int:
        """Return the device memory in use, including that of processes that were killed."""
        return self._get(device, _BYTES_IN_USE)

    def waiting_threads(self, device: int = 0) -> int:
        """Return the number of threads that wait for a device that hangs."""
        return self._get(device, _WAITING_THREADS)

    def wait_until_hanging(self, device: int = 0, timeout_s: float = 10) -> None:
        """Wait until a thread waits for the device that hangs.

        Raises:
            TimeoutError: no thread waits.
        """
        deadline = time.monotonic() + timeout_s
        while not self.waiting_threads(device):
            if time.monotonic() > deadline:
                raise TimeoutError(f"no thread waits for device {device}")
            time.sleep(0.001)

    def _set(self, device: int, field: int, value: int) -> None:
        self._fields[(device + 1) * _FIELDS_PER_BLOCK + field] = value

    def _get(self, device: int, field: int) -> int:
        return self._fields[(device + 1) * _FIELDS_PER_BLOCK + field]
