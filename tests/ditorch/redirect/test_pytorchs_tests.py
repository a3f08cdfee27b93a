"""PyTorch's own test machinery under the redirect: its list of operators imports, and its classes for CUDA run."""

from __future__ import annotations

import pytest

pytest.importorskip("expecttest")
pytest.importorskip("numpy")

CASES = """
    import torch, ditorch
    from torch.testing._internal.common_device_type import dtypes, instantiate_device_type_tests, onlyCUDA, ops
    from torch.testing._internal.common_methods_invocations import op_db
    from torch.testing._internal.common_utils import TestCase, run_tests

    class TestDevice(TestCase):
        def test_a_tensor_is_on_the_device(self, device):
            self.assertEqual(torch.ones(2, device=device).device.type, "cuda")
            self.assertNotEqual(torch.cuda.current_stream(), torch.cuda.default_stream())

        @onlyCUDA
        @dtypes(torch.float32, torch.float16)
        def test_for_cuda_alone(self, device, dtype):
            self.assertEqual(torch.ones(2, device=device, dtype=dtype).sum().item(), 2)

        @ops([op for op in op_db if op.name in ("add", "mm")], allowed_dtypes=(torch.float32,))
        def test_operators(self, device, dtype, op):
            for sample in op.sample_inputs(device, dtype):
                self.assertEqual(op(sample.input, *sample.args, **sample.kwargs).device.type, "cuda")

    instantiate_device_type_tests(TestDevice, globals(), only_for="cuda")
    run_tests()
"""


def test_classes_for_cuda_run(run_python):
    # Where CI is set, torch's run_tests reports through a package of its own, unittest-xml-reporting.
    done = run_python(CASES, "-v", CI="", DITORCH_DISABLE_MOCK="0", DITORCH_BACKEND="sim")
    for case in ("a_tensor_is_on_the_device_cuda", "for_cuda_alone_cuda_float16", "operators_mm_cuda_float32"):
        assert (
            f"test_{case} (__main__.TestDeviceCUDA.test_{case}) ... ok" in done.stderr or f"test_{case}" in done.stderr
        )
    assert done.stderr.rstrip().endswith("OK")


def test_a_run_time_kernel_is_made_and_refused_when_called(run_python):
    done = run_python(
        """
        import torch, ditorch
        kernel = torch.cuda.jiterator._create_jit_fn("template <typename T> T f(T x) { return x; }")
        try:
            kernel(torch.ones(1, device="cuda"))
        except ditorch.errors.BackendError as error:
            print(error)
        """,
        DITORCH_DISABLE_MOCK="0",
        DITORCH_BACKEND="sim",
    )
    assert "torch.cuda.jiterator does not exist on sim" in done.stdout
