"""`read_recording`, at the address under which programs know it; it lives in `kernai.recording.recording_file`."""

from kernai.recording.recording_file import read_recording

__all__ = ["read_recording"]
