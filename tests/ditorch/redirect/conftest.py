"""The redirect in force for a whole test module, and put back after it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from ditorch.backends.sim import SIM
from ditorch.redirect import Redirect


@pytest.fixture(scope="module", params=["natively", "by wrappers"])
def redirect(request: pytest.FixtureRequest) -> Iterator[Redirect]:
    with pytest.MonkeyPatch.context() as environment:
        environment.setenv("DITORCH_NATIVE_REDIRECT", "1" if request.param == "natively" else "0")
        redirect = Redirect(SIM)
    assert redirect.how.startswith(request.param)
    yield redirect
    redirect.undo()
