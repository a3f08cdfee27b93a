"""CUDA_VISIBLE_DEVICES hides and orders the simulated devices as it does CUDA's."""

from __future__ import annotations

import json

SIM = {"DITORCH_DISABLE_MOCK": "0", "DITORCH_BACKEND": "sim"}
UUID = "d170c400-51ed-4000-8000-00000000000"


CASES = [  # CUDA_VISIBLE_DEVICES, DITORCH_SIM_DEVICES, which devices are seen
    ("", "", []),
    ("-1", "", []),
    ("0", "", [0]),
    ("1", "", [1]),
    ("1,0", "", [1, 0]),
    (" 1 , 0", "", [1, 0]),
    ("0,1,2,3", "", [0, 1, 2, 3]),  # nobody said how many there are
    ("0,1,2,3", "2", [0, 1]),
    ("1,5,0", "4", [1]),  # CUDA stops at the first that is not there
    ("0,-1,1", "", [0]),
    ("7", "4", []),
    ("0,0", "", []),  # CUDA shows none then
    ("none", "", []),
    (f"GPU-{UUID}1", "", [1]),
    (f"GPU-{UUID}1,GPU-{UUID}0", "", [1, 0]),
    ("GPU-d170", "", []),  # could be either
    ("GPU-12345678", "", []),
    ("0,GPU-12345678", "", [0]),
]


def test_devices_are_hidden_and_ordered(run_python):
    code = """
        import json, os, sys
        import torch, ditorch
        for visible, there, _ in json.loads(sys.argv[1]):
            os.environ.update(CUDA_VISIBLE_DEVICES=visible, DITORCH_SIM_DEVICES=there)
            count = torch.cuda.device_count()
            assert torch.cuda.is_available() == (count > 0)
            print([torch.cuda.get_device_properties(index).pci_bus_id for index in range(count)])
    """
    seen = run_python(code, json.dumps(CASES), **SIM).stdout.splitlines()
    assert list(zip(CASES, map(json.loads, seen))) == [(case, case[2]) for case in CASES]


def test_the_variable_counts_until_the_first_use(run_python):
    code = """
        import os, torch, ditorch
        torch.manual_seed(3)
        print(torch.cuda.device_count())
        os.environ["CUDA_VISIBLE_DEVICES"] = "1"
        print(torch.cuda.device_count(), len(torch.cuda.default_generators))
        try:
            torch.ones(1, device="cuda:1")
        except RuntimeError as error:
            print(str(error).splitlines()[0])
        torch.ones(1, device="cuda")
        os.environ["CUDA_VISIBLE_DEVICES"] = "0,1"
        print(torch.cuda.device_count(), torch.cuda.get_device_properties(0).uuid[-1])
    """
    assert run_python(code, **SIM).stdout.splitlines() == [
        "2",
        "1 1",
        "invalid device ordinal 1: there are 1 simulated devices (CUDA_VISIBLE_DEVICES, DITORCH_SIM_DEVICES)",
        "1 1",
    ]


def test_a_program_without_visible_devices_runs_on_the_cpu(run_python):
    code = """
        import warnings
        import torch, ditorch
        device = "cuda" if torch.cuda.is_available() else "cpu"
        torch.manual_seed(0); torch.cuda.manual_seed(0); torch.cuda.manual_seed_all(0); torch.cuda.empty_cache()
        model = torch.nn.Linear(2, 2).to(device)
        scaler = torch.amp.GradScaler("cuda", enabled=device == "cuda")
        with torch.autocast("cuda", enabled=device == "cuda"):
            loss = model(torch.ones(1, 2)).sum()
        scaler.scale(loss).backward()
        print(device, model.weight.grad.tolist(), torch.cuda.get_rng_state_all())
        with torch.random.fork_rng():
            torch.rand(2)
        with warnings.catch_warnings(record=True) as said:
            warnings.simplefilter("always")
            with torch.autocast("cuda"):
                print(torch.nn.functional.linear(torch.ones(1, 1), torch.ones(1, 1)).dtype)
            print(torch.amp.GradScaler("cuda").is_enabled(), torch.cuda.amp.GradScaler().is_enabled())
        print(sum("CUDA is not available" in str(one.message) for one in said))
        for attempt in (lambda: torch.ones(1, device="cuda"), lambda: torch.ones(1).cuda(), torch.cuda.current_device):
            try:
                attempt()
            except RuntimeError as error:
                print(str(error).splitlines()[0])
    """
    hidden = "no simulated device is visible: CUDA_VISIBLE_DEVICES='' hides all of them"
    assert run_python(code, CUDA_VISIBLE_DEVICES="", **SIM).stdout.splitlines() == [
        "cpu [[1.0, 1.0], [1.0, 1.0]] []",
        "torch.float32",
        "False False",
        "3",
        *[hidden] * 3,
    ]


def test_the_simulated_accelerator_under_its_own_name_takes_no_notice(run_python):
    code = "import torch; from ditorch import sim; sim.start(); print(torch.sim.device_count())"
    assert run_python(code, CUDA_VISIBLE_DEVICES="").stdout == "2\n"
