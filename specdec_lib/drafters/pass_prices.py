"""The name of :mod:`specdec_lib.drafters.pass_costs` in version 1.0, kept until version 1.2."""

from specdec_lib.lazy import former_names

_NOW = "specdec_lib.drafters.pass_costs"
__getattr__ = former_names(__name__, _NOW, PassPrices="PassCosts", CURVES="CURVES", MERGING="MERGING")
