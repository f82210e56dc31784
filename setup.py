"""Everything stands in pyproject.toml; this file is for tools that still ask for a setup.py."""

from setuptools import setup

setup()
