"""The scripts, one file each: the header of a script is the binding for its callers (``script.py``)."""
