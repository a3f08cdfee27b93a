"""Captured calls on disk: what is written can be read by any torch, and nothing that is read runs."""

from __future__ import annotations

import collections
import enum
import json
import os
import pickle
import zipfile

import pytest
import torch

from op_tools.errors import CaptureError
from op_tools.output import process
from op_tools.storage import encoding, files, store


def saved(tmp_path, *args, part="input", **kwargs):
    return store.save(tmp_path / "call", part, "torch.add", args, kwargs, "1/2/3")


def loaded(path):
    return torch.load(path, weights_only=True)


def test_a_part_is_a_plain_file_of_torch(tmp_path):
    path = saved(tmp_path, torch.arange(3.0), 2, alpha=0.5)
    content = loaded(path)
    assert list(content) == ["name", "args", "kwargs", "identifier"]
    assert content["name"] == "torch.add"
    assert content["identifier"] == "1/2/3"
    assert torch.equal(content["args"][0], torch.arange(3.0))
    assert content["args"][1] == 2
    assert content["kwargs"] == {"alpha": 0.5}


def test_a_plain_torch_reads_it_without_our_code(tmp_path, run_python):
    path = saved(tmp_path, torch.arange(3.0), slice(1, None), torch.nn.functional.relu)
    code = """
        import sys, torch
        content = torch.load(sys.argv[1], weights_only=True)
        assert "op_tools" not in sys.modules and "numpy" not in dir(torch)
        print(content["args"][0].tolist(), content["args"][1], content["args"][2])
    """
    assert run_python(code, str(path)).stdout == (
        "[0.0, 1.0, 2.0] {'op_tools.slice': (1, None, None)} {'op_tools.text': '<function relu>'}\n"
    )


DTYPES = [
    dtype
    for dtype in (
        *(
            torch.float32,
            torch.float64,
            torch.float16,
            torch.bfloat16,
            torch.complex64,
            torch.complex128,
            torch.complex32,
        ),
        *(torch.bool, torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64),
        *(getattr(torch, name, None) for name in ("float8_e4m3fn", "float8_e5m2", "uint16", "uint32", "uint64")),
    )
    if dtype is not None
]


@pytest.mark.filterwarnings("ignore:ComplexHalf support is experimental")
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_every_dtype_comes_back(tmp_path, dtype):
    tensor = torch.arange(6).reshape(2, 3).to(dtype)
    tensor.requires_grad = dtype.is_floating_point or dtype.is_complex
    (back,) = store.load_part(saved(tmp_path, tensor)).args
    assert (back.dtype, back.requires_grad) == (dtype, tensor.requires_grad)
    assert torch.equal(back.detach().view(torch.uint8), tensor.detach().view(torch.uint8))


@pytest.mark.parametrize(
    "view",
    [
        lambda x: x,
        lambda x: x.t(),
        lambda x: x[1:, ::2],
        lambda x: x[:, 3],
        lambda x: x[2, 3],
        lambda x: x[:0],
        lambda x: x.expand(5, 8, 6),
        lambda x: x.unsqueeze(1),
        lambda x: x.permute(1, 0).unsqueeze(0),
        lambda x: x.as_strided((3, 3), (1, 2)),
        lambda x: x.to(torch.complex64).conj(),
        lambda x: torch.view_as_complex(x.reshape(8, 3, 2).contiguous()).conj().imag,
    ],
)
def test_strides_come_back(tmp_path, view):
    tensor = view(torch.randn(8, 6))
    (back,) = store.load_part(saved(tmp_path, tensor)).args
    assert back.shape == tensor.shape
    assert back.stride() == tensor.stride() or tensor.is_conj() or tensor.is_neg()
    assert torch.equal(back, tensor)


def test_requires_grad_comes_back(tmp_path):
    leaf = torch.randn(2, requires_grad=True)
    given = (leaf, leaf * 2, leaf.detach(), torch.nn.Parameter(torch.ones(1)))
    assert [tensor.requires_grad for tensor in store.load_part(saved(tmp_path, *given)).args] == [
        True,
        True,
        False,
        True,
    ]


def test_a_small_view_does_not_bring_its_storage_along(tmp_path):
    huge = torch.zeros(4 * 2**20)
    path = saved(tmp_path, huge[100:200], huge.view(2**12, -1)[:, 7])
    row, column = store.load_part(path).args
    assert (row.shape, column.shape) == ((100,), (2**12,))
    assert path.stat().st_size < 100_000
    noted = json.loads(path.with_name("input.pth.json").read_text())["values"]
    assert noted[1]["stride"] == [2**10]
    assert noted[1]["stored_stride"] == [1], "strides are given up where the gaps would be most of the file"


def test_arguments_that_overlap_still_do(tmp_path):
    base = torch.arange(10.0)
    first, second, apart, twice = store.load_part(saved(tmp_path, base[0:6], base[4:8], base[9:], base[4:8])).args
    second[0] = -1
    assert first[4] == -1
    assert twice[0] == -1
    assert apart.untyped_storage().data_ptr() != first.untyped_storage().data_ptr()


def test_interleaved_views_are_written_once(tmp_path):
    query, key, value = torch.randn(2**18, 3).unbind(1)
    path = saved(tmp_path, query, key, value)
    assert path.stat().st_size < 1.01 * 3 * 2**20
    for back, given in zip(store.load_part(path).args, (query, key, value)):
        assert torch.equal(back, given)
        assert back.stride() == (3,)


class Reduction(enum.IntEnum):
    MEAN = 1


class Backend(enum.Enum):
    MATH = 0


class Strange:
    def __repr__(self):
        raise RuntimeError("no")


VALUES = [
    None,
    True,
    -5,
    2**80,
    1.5,
    float("inf"),
    "text",
    [1, (2, [3])],
    {"a": {"b": 1}, 3: 4},
    slice(1, None, 2),
    (slice(None), Ellipsis, None, 3),
    torch.Size([2, 3]),
    torch.device("cpu"),
    torch.device("meta"),
    torch.bfloat16,
    torch.strided,
    torch.sparse_coo,
    torch.channels_last,
    2 - 3j,
    range(1, 9, 2),
    Reduction.MEAN,
]


@pytest.mark.parametrize("value", VALUES, ids=repr)
def test_plain_and_special_values_come_back(tmp_path, value):
    path = saved(tmp_path, value, inside=[value])
    part = store.load_part(path)
    assert part.args == (value,)
    assert type(part.args[0]) is (int if value is Reduction.MEAN else type(value))
    assert part.kwargs == {"inside": [value]}
    loaded(path)


def test_a_slice_may_hold_tensors(tmp_path):
    (back,) = store.load_part(saved(tmp_path, slice(torch.tensor(1), torch.tensor(4)))).args
    assert (back.start, back.stop, back.step) == (1, 4, None)


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (torch.nn.functional.relu, "<function relu>"),
        (len, "<builtin_function_or_method len>"),
        (torch.nn.Linear(2, 2), "<module Linear>"),
        (Backend.MATH, "<Backend.MATH: 0>"),
        (Strange(), "<Strange, whose repr raises RuntimeError>"),
        ({1}, "{1}"),
    ],
)
def test_what_cannot_be_stored_is_named(tmp_path, value, text):
    path = saved(tmp_path, [value])
    ((back,),) = store.load_part(path).args
    assert isinstance(back, encoding.Unstorable)
    assert repr(back) == text
    assert json.loads(path.with_name("input.pth.json").read_text())["values"][0]["value"] == text


def test_named_tuples_become_plain_ones(tmp_path):
    point = collections.namedtuple("point", "x y")
    (back, sorted_) = store.load_part(saved(tmp_path, point(1, torch.ones(1)), torch.arange(3).sort())).args
    assert back == (1, torch.ones(1))
    assert type(back) is tuple
    assert [tensor.tolist() for tensor in sorted_] == [[0, 1, 2], [0, 1, 2]]


def test_a_generator_goes_on_where_it_was(tmp_path):
    generator = torch.Generator().manual_seed(7)
    torch.rand(3, generator=generator)
    path = saved(tmp_path, generator=generator)
    expected = torch.rand(3, generator=generator)
    assert torch.equal(torch.rand(3, generator=store.load_part(path).kwargs["generator"]), expected)


def test_a_device_that_this_torch_does_not_know(tmp_path):
    path = saved(tmp_path, torch.device("cpu"))
    content = loaded(path)
    content["args"] = ({"op_tools.device": "chip:3"},)
    torch.save(content, path)
    (device,) = store.load_part(path).args
    assert device == "chip:3"
    assert isinstance(device, encoding.ForeignDevice)


def test_numpy_values(tmp_path):
    numpy = pytest.importorskip("numpy")
    path = saved(tmp_path, numpy.float32(1.5), numpy.int64(3), numpy.bool_(True), numpy.arange(3), numpy.array(["a"]))
    *numbers, array, unstorable = store.load_part(path).args
    assert numbers == [1.5, 3, True]
    assert [type(number) for number in numbers] == [float, int, bool]
    assert array.tolist() == [0, 1, 2]
    assert isinstance(unstorable, encoding.Unstorable)


@pytest.mark.filterwarnings("ignore:Sparse CSR tensor support is in beta state")
@pytest.mark.parametrize("layout", ["coo", "csr"])
def test_sparse_tensors(tmp_path, layout):
    dense = torch.eye(3)
    tensor = dense.to_sparse() if layout == "coo" else dense.to_sparse_csr()
    (back,) = store.load_part(saved(tmp_path, tensor)).args
    assert back.layout == tensor.layout
    assert torch.equal(back.to_dense(), dense)


def test_json_beside_it_is_for_reading(tmp_path):
    folder = tmp_path / "call"
    details = {"forward_id": 7, "step": 3, "source": "a.py:1 f: x + 1", "module": "layers.0"}
    args = (torch.ones(2, 3).t(), float("nan"), [torch.zeros(1, dtype=torch.int64), "mean"])
    store.save(folder, "input", "torch.add", args, {"dim": 1}, "7", details)
    noted = json.loads((folder / "input.pth.json").read_text())
    assert noted == {
        "name": "torch.add",
        "part": "input",
        "identifier": "7",
        **details,
        **process.identity(),
        "values": [
            {
                "name": "torch.add inputs[0]",
                "shape": [3, 2],
                "dtype": "float32",
                "device": "cpu",
                "stride": [1, 3],
                "requires_grad": False,
            },
            {"name": "torch.add inputs[1]", "value": "nan"},
            {
                "name": "torch.add inputs [2][0]",
                "shape": [1],
                "dtype": "int64",
                "device": "cpu",
                "stride": [1],
                "requires_grad": False,
            },
            {"name": "torch.add inputs [2][1]", "value": "mean"},
            {"name": "torch.add inputs dim", "value": 1},
        ],
    }


def test_a_whole_call(tmp_path):
    folder = tmp_path / "call"
    for number, part in enumerate(store.PARTS[:3]):
        store.save(folder, part, "torch.neg", (torch.full((1,), float(number)),), {}, "1")
    capture = store.load(folder)
    assert capture.name == "torch.neg"
    assert [part.args[0].item() for part in (capture.input, capture.output, capture.grad_inputs)] == [0, 1, 2]
    assert capture.grad_outputs is None


def test_captures_are_found_in_order(tmp_path):
    for name in ("10", "9", "2"):
        store.save(tmp_path / "op" / name / "now", "input", "torch.neg", (), {}, "1")
    store.save(tmp_path / "op" / "3" / "now", "output", "torch.neg", (), {}, "1")
    assert [folder.parent.name for folder in store.find_captures(tmp_path)] == ["2", "9", "10"]
    assert list(store.find_captures(tmp_path / "op" / "9" / "now")) == [tmp_path / "op" / "9" / "now"]
    with pytest.raises(CaptureError, match="is no folder: give one that OpCapture wrote"):
        list(store.find_captures(tmp_path / "nowhere"))


class Harmful:
    def __reduce__(self):
        return os.mkdir, ("harm",)


def damaged(path, kind):
    whole = path.read_bytes()
    if kind == "truncated":
        path.write_bytes(whole[:-100])
    elif kind == "empty":
        path.write_bytes(b"")
    elif kind == "a byte of a tensor":
        place = whole.index(torch.full((64,), 7.0).view(torch.uint8).numpy().tobytes())
        path.write_bytes(whole[: place + 5] + b"\xff" + whole[place + 6 :])
    elif kind == "text":
        path.write_text("hello")
    elif kind == "harmful":
        torch.save({"name": "a", "args": (Harmful(),), "kwargs": {}}, path)
    elif kind == "harmful pickle":
        path.write_bytes(pickle.dumps(Harmful()))
    elif kind == "another kind":
        torch.save([1, 2], path)
    elif kind == "args of another kind":
        torch.save({"name": "a", "args": 1, "kwargs": {}}, path)
    elif kind == "unknown special":
        torch.save({"name": "a", "args": ({"op_tools.future": 1},), "kwargs": {}}, path)
    elif kind == "special of another kind":
        torch.save({"name": "a", "args": ({"op_tools.dtype": "load"},), "kwargs": {}}, path)
    elif kind == "another zip":
        with zipfile.ZipFile(path, "w") as archive:
            archive.writestr("a/b", "c")
    elif kind == "missing":
        path.unlink()


KINDS = {
    "truncated": "its end is missing: it was not copied whole, or is damaged",
    "empty": "it is no file that torch.save writes",
    "a byte of a tensor": r"it is damaged \(op_capture/data/0 is not what was written\)",
    "text": "it is no file that torch.save writes",
    "harmful": "",
    "harmful pickle": "it is no file that torch.save writes",
    "another kind": "it is no captured call",
    "args of another kind": "it is no captured call",
    "unknown special": "a value of the unknown kind 'future'",
    "special of another kind": "the dtype 'load' cannot be restored",
    "another zip": "",
    "missing": "No such file or directory",
}


@pytest.mark.parametrize("kind", KINDS)
def test_a_damaged_or_foreign_file_is_named_in_one_line(tmp_path, kind):
    path = saved(tmp_path, torch.full((64,), 7.0))
    damaged(path, kind)
    with pytest.raises(CaptureError, match=f"input.pth cannot be used: {KINDS[kind]}") as caught:
        store.load_part(path)
    assert "\n" not in str(caught.value)
    assert not os.path.exists("harm")


def test_a_file_of_torch_save_is_read_as_well(tmp_path):
    torch.save({"name": "torch.neg", "args": (torch.ones(2),), "kwargs": {}}, tmp_path / "input.pth")
    assert store.load(tmp_path).input.args[0].tolist() == [1, 1]


def test_equal_files_are_linked(tmp_path):
    from op_tools.device.host_memory import HostMemory
    from op_tools.storage.snapshot import take

    writer = store.Files()

    def write(folder, tensor, name="torch.neg"):
        content = store.Content("input", name, f"id {folder}", take(((tensor,), {}), HostMemory(0, lambda: False)), {})
        return os.stat(writer.write(str(tmp_path / folder), content))

    first, second = write("first", torch.arange(1000.0)), write("second", torch.arange(1000.0))
    assert first.st_ino == second.st_ino
    assert (writer.count, writer.linked) == (2, 1)
    assert json.loads((tmp_path / "second" / "input.pth.json").read_text())["identifier"] == "id second"
    other = torch.arange(1000.0)
    other[17] = -1
    for folder, tensor, name in (("third", other, "torch.neg"), ("fourth", torch.arange(1000.0), "torch.abs")):
        assert write(folder, tensor, name).st_ino != first.st_ino
        assert torch.equal(loaded(tmp_path / folder / "input.pth")["args"][0], tensor)
    (tmp_path / "first" / "input.pth").unlink()
    write("fifth", torch.arange(1000.0))
    assert torch.equal(loaded(tmp_path / "fifth" / "input.pth")["args"][0], torch.arange(1000.0))


def test_content_is_compared_before_it_is_linked(tmp_path):
    known = files.WrittenFiles(10)
    files.put(str(tmp_path / "a"), [b"head", b"body"])
    known.add("key", str(tmp_path / "a"), [4])
    assert not known.link("key", str(tmp_path / "b"), [b"bode"])
    assert known.link("key", str(tmp_path / "b"), [b"body"])
    assert (tmp_path / "b").read_bytes() == b"headbody"


def test_a_file_that_cannot_be_written_leaves_nothing(tmp_path, monkeypatch):
    def refuse(descriptor, buffers):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "writev", refuse)
    with pytest.raises(OSError, match=r"No space left on device: .*/input\.pth\.json"):
        saved(tmp_path, 1)
    assert os.listdir(tmp_path / "call") == []


def test_the_system_may_take_less_than_it_is_offered(tmp_path, monkeypatch):
    whole = os.writev
    monkeypatch.setattr(os, "writev", lambda descriptor, buffers: whole(descriptor, [memoryview(buffers[0])[:7]]))
    assert torch.equal(store.load_part(saved(tmp_path, torch.arange(100))).args[0], torch.arange(100))


def test_archives_beyond_four_gigabytes_are_readable(tmp_path):
    """With sizes that pretend: the bytes themselves would take too long."""
    from op_tools.storage.archive import _Zip

    class Pretending(bytes):
        def __len__(self):
            return 2**32 + 5

    file = _Zip()
    file.add("small", b"abc", 0)
    place = file.add("large", Pretending(), 0)
    second = file.add("behind", b"x", 0)
    file.finish()
    path = tmp_path / "large.zip"
    with open(path, "wb") as out:
        for buffer in file.buffers:
            if isinstance(buffer, Pretending):
                out.seek(len(buffer), os.SEEK_CUR)
            else:
                out.write(buffer)
    with zipfile.ZipFile(path) as archive:
        entries = {info.filename: info for info in archive.infolist()}
        assert entries["op_capture/large"].file_size == 2**32 + 5
        assert entries["op_capture/behind"].header_offset > 2**32
    assert second > 2**32
    assert place % 64 == 0


class TestFindingCaptures:
    @pytest.mark.parametrize("name", ["input.pth", "output.pth"])
    def test_a_pipe_is_no_part_of_a_call_and_nobody_waits_for_it(self, tmp_path, name):
        store.save(tmp_path / "call", "input", "torch.add", (torch.ones(2),), {}, "")
        (tmp_path / "call" / name).unlink(missing_ok=True)
        os.mkfifo(tmp_path / "call" / name)
        with pytest.raises(CaptureError, match=f"{name} cannot be used: it is no regular file"):
            store.load(tmp_path / "call")

    def test_a_pipe_is_no_note(self, tmp_path):
        os.mkfifo(tmp_path / "input.pth.json")
        assert store.load_note(tmp_path) == {}

    def test_what_replay_wrote_is_not_found(self, tmp_path):
        for folder in ("mine", "op_replay_results/op_capture_results/torch.add/1/1/now"):
            store.save(tmp_path / folder, "input", "torch.add", (torch.ones(2),), {}, "")
        assert list(store.find_captures(tmp_path)) == [tmp_path / "mine"]

    def test_a_call_that_was_found_wrong_is_found_once(self, tmp_path):
        """It is kept as it was on the device and, with the same arguments, as the reference had it."""
        dump = tmp_path / "torch.add" / "1" / "autocompare" / "5" / "now"
        for place in ("device", "cpu"):
            store.save(dump / place, "input", "torch.add", (torch.ones(2),), {}, "")
        store.save(tmp_path / "device", "input", "torch.add", (torch.ones(2),), {}, "")
        store.save(tmp_path / "other", "input", "torch.add", (torch.ones(2),), {}, "")
        assert set(store.find_captures(tmp_path)) == {dump / "device", tmp_path / "device", tmp_path / "other"}
