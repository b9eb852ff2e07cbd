"""The number of the format in which runs are recorded; `run_start` carries it.

It grows when something that was recorded before would be read wrong.
"""

RECORDING_FORMAT = 2
