"""What can go wrong besides bad input, each with what to do about it."""


class UnavailableError(RuntimeError):
    """Something that Tilesmith needs is not on this machine: a driver, NVRTC, a supported GPU."""


class CompilationError(RuntimeError):
    """NVRTC rejected a kernel. The message holds its log."""


class DriverError(RuntimeError):
    """The CUDA driver refused a call."""


class ColdCaptureError(RuntimeError):
    """A kernel would have to be compiled or loaded while a CUDA graph is being captured."""


class EmulationError(RuntimeError):
    """A kernel did something wrong in the emulator. The message names kernel, block, thread and source line."""
