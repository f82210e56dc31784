"""The configuration of one app: the table of settings, and what is made of it.

Never: I/O.
"""

from redbeat.config.config import RedBeatConfig as RedBeatConfig
from redbeat.config.config import ensure_conf as ensure_conf
from redbeat.config.config import load_conf as load_conf
from redbeat.config.settings import OPTIONS as OPTIONS
from redbeat.config.settings import SETTINGS as SETTINGS
from redbeat.config.settings import Setting as Setting
