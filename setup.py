"""Lists the packages: those found, and the folder ``data/`` that travels in a wheel as
``specdec_lib._data``."""

from setuptools import find_packages, setup

setup(packages=[*find_packages(include=["specdec_lib", "specdec_lib.*"]), "specdec_lib._data"])
