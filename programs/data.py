"""Small made-up inputs in the formats that programs read: nothing can be downloaded, and nothing needs to be.

    python -m programs.data "mnist ../data"

One function per format; its arguments are the words after its name.
"""

from __future__ import annotations

import shlex
import struct
import sys
from pathlib import Path


def write(call: str, folder: Path) -> None:
    """Writes the inputs that `call` names ("mnist ../data") into a folder."""
    name, *arguments = shlex.split(call)
    FORMATS[name](folder, *arguments)


def text(folder: Path, path: str, words: str = "4000") -> None:
    """A text of few words, with line ends."""
    draw = _Draw()
    vocabulary = ["the", "a", "cat", "dog", "sees", "likes", "old", "red", "house", "and"]
    lines = [" ".join(draw.pick(vocabulary) for _ in range(10)) + " ." for _ in range(int(words) // 10)]
    file = _made(folder / path)
    file.write_text("\n".join(lines) + "\n")


def nanogpt(folder: Path, path: str) -> None:
    """train.bin, val.bin and meta.pkl of character level nanoGPT."""
    import pickle

    import numpy

    tokens = numpy.random.default_rng(0).integers(0, 64, 4096).astype(numpy.uint16)
    for name in ("train.bin", "val.bin"):
        tokens.tofile(_made(folder / path / name))
    letters = {number: chr(32 + number) for number in range(65)}
    meta = {"vocab_size": 65, "itos": letters, "stoi": {letter: number for number, letter in letters.items()}}
    (folder / path / "meta.pkl").write_bytes(pickle.dumps(meta))


def mnist(folder: Path, path: str, train: str = "128", test: str = "64", name: str = "MNIST") -> None:
    """torchvision's MNIST (or FashionMNIST) as raw files."""
    draw = _Draw()
    for part, count in (("train", int(train)), ("t10k", int(test))):
        raw = folder / path / name / "raw"
        images = draw.bytes(count * 28 * 28)
        _made(raw / f"{part}-images-idx3-ubyte").write_bytes(struct.pack(">4i", 2051, count, 28, 28) + images)
        labels = bytes(draw.below(10) for _ in range(count))
        _made(raw / f"{part}-labels-idx1-ubyte").write_bytes(struct.pack(">2i", 2049, count) + labels)


def images(folder: Path, path: str, classes: str = "3", each: str = "6", size: str = "64", suffix: str = "png") -> None:
    """Folders of pictures, one folder per class."""
    from PIL import Image

    draw = _Draw()
    side = int(size)
    for label in range(int(classes)):
        for number in range(int(each)):
            file = _made(folder / path / f"class{label}" / f"{number}.{suffix}")
            Image.frombytes("RGB", (side, side), draw.bytes(3 * side * side)).save(file)


def picture(folder: Path, path: str, size: str = "64") -> None:
    """One picture."""
    from PIL import Image

    side = int(size)
    Image.frombytes("RGB", (side, side), _Draw().bytes(3 * side * side)).save(_made(folder / path))


def shorts(folder: Path, path: str, count: str) -> None:
    """Tokens as uint16 and nothing else."""
    draw = _Draw()
    _made(folder / path).write_bytes(struct.pack(f"<{count}H", *(draw.below(500) for _ in range(int(count)))))


def cora(folder: Path, path: str, nodes: str = "1500") -> None:
    """A citation graph in the format of Cora."""
    draw = _Draw()
    count = int(nodes)
    lines = [
        " ".join([str(node), *(str(draw.below(2)) for _ in range(20)), f"class{node % 7}"]) for node in range(count)
    ]
    _made(folder / path / "cora.content").write_text("\n".join(lines) + "\n")
    edges = [f"{draw.below(count)} {draw.below(count)}" for _ in range(3 * count)]
    (folder / path / "cora.cites").write_text("\n".join(edges) + "\n")


def masks(folder: Path, path: str, count: str, size: str = "64") -> None:
    """Pictures and their black and white masks."""
    from PIL import Image

    draw = _Draw()
    side = int(size)
    for number in range(int(count)):
        Image.frombytes("RGB", (side, side), draw.bytes(3 * side * side)).save(
            _made(folder / path / "imgs" / f"{number}.png")
        )
        mask = Image.new("L", (side, side))
        mask.paste(255, (8, 8, 40, 8 + 4 * (number + 1)))
        mask.save(_made(folder / path / "masks" / f"{number}_mask.png"))


def coco(folder: Path, path: str, count: str = "4", size: str = "64") -> None:
    """Pictures with boxes and outlines in the format of COCO 2017, for training and validation."""
    import json

    from PIL import Image

    draw = _Draw()
    side = int(size)
    for part in ("train", "val"):
        pictures, boxes = [], []
        for number in range(1, int(count) + 1):
            name = f"{number:012}.jpg"
            file = _made(folder / path / f"{part}2017" / name)
            Image.frombytes("RGB", (side, side), draw.bytes(3 * side * side)).save(file)
            pictures.append({"id": number, "file_name": name, "height": side, "width": side})
            for _ in range(2):
                left, top, width, height = (
                    4 + draw.below(20),
                    4 + draw.below(20),
                    20 + draw.below(20),
                    20 + draw.below(20),
                )
                corners = (left, top), (left + width, top), (left + width, top + height), (left, top + height)
                outline = [coordinate for corner in corners for coordinate in corner]
                box = {"id": len(boxes) + 1, "image_id": number, "category_id": 1 + draw.below(3), "iscrowd": 0}
                boxes.append(
                    {**box, "bbox": [left, top, width, height], "area": width * height, "segmentation": [outline]}
                )
        categories = [{"id": number, "name": f"kind {number}"} for number in (1, 2, 3)]
        known = {"images": pictures, "annotations": boxes, "categories": categories}
        _made(folder / path / "annotations" / f"instances_{part}2017.json").write_text(json.dumps(known))


def file(folder: Path, path: str, *lines: str) -> None:
    """A text file of these lines."""
    _made(folder / path).write_text("\n".join(lines) + "\n")


FORMATS = {
    function.__name__: function for function in (text, nanogpt, mnist, images, picture, file, shorts, cora, masks, coco)
}


class _Draw:
    """Random numbers that are the same with every release of Python and NumPy."""

    def __init__(self) -> None:
        self.state = 1

    def below(self, limit: int) -> int:
        self.state = (self.state * 6364136223846793005 + 1442695040888963407) % 2**64
        return (self.state >> 33) % limit

    def pick(self, choices: list[str]) -> str:
        return choices[self.below(len(choices))]

    def bytes(self, count: int) -> bytes:
        return bytes(self.below(256) for _ in range(count))


def _made(path: Path) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    return path


if __name__ == "__main__":
    write(" ".join(sys.argv[1:]), Path())
