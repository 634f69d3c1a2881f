"""Run folders, files that are written whole or not at all, and what made a result."""

from vspair.runs.files import Groups as Groups
from vspair.runs.files import atomically as atomically
from vspair.runs.files import make_folder as make_folder
from vspair.runs.files import read_groups as read_groups
from vspair.runs.files import read_json as read_json
from vspair.runs.files import read_tensors as read_tensors
from vspair.runs.files import write_arrays as write_arrays
from vspair.runs.files import write_groups as write_groups
from vspair.runs.files import write_tensors as write_tensors
from vspair.runs.files import write_text as write_text
from vspair.runs.folder import Run as Run
from vspair.runs.folder import describe as describe
from vspair.runs.folder import fill as fill
from vspair.runs.folder import load as load
from vspair.runs.folder import read_metrics as read_metrics
from vspair.runs.provenance import command_line as command_line
from vspair.runs.provenance import commit as commit
from vspair.runs.provenance import machine as machine
from vspair.runs.provenance import pick_device as pick_device
from vspair.runs.provenance import versions as versions
