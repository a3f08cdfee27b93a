"""For TORCH_TEST_DEVICES: torch runs this file inside common_device_type, whose names are its globals.

It takes the place of torch's base class for outside devices, which gives the first class of a file another name than
the others, and which `@onlyCUDA` skips.
"""

# ruff: noqa: F821
from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    PrivateUse1TestBase: Any
    device_type_test_bases: list[Any]

device_type_test_bases.remove(PrivateUse1TestBase)  # or every case would be there twice


class TEST_CLASS(PrivateUse1TestBase):  # type: ignore[misc]
    device_type = torch._C._get_privateuse1_backend_name()

    @property
    def bypass_device_restrictions(self) -> bool:
        """True for `@onlyCUDA` and its kin, not for `@onlyCPU`: those cases want the CPU's own errors and types.

        torch asks from inside the decorator, which knows the device that it is for.
        """
        decorator = sys._getframe(1).f_locals.get("self")
        return getattr(decorator, "device_type", "cpu") != "cpu"
