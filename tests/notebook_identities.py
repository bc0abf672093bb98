"""What must hold of the values that each notebook records, whatever its parameters.

By name of notebook: functions from the recorded values to a truth value; the docstring says what failed. Only
relations that follow from the definitions belong here, never a number that was once measured.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

Identity = Callable[[dict[str, Any]], bool]

IDENTITIES: dict[str, list[Identity]] = {}
