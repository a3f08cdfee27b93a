"""DeepCTR-Torch: models of clicks on ads, fitted by its own loop; first weights from the host, as it draws them on the device."""

import numpy
import torch
from deepctr_torch import models
from deepctr_torch.inputs import DenseFeat, SparseFeat

device = "cuda:0" if torch.cuda.is_available() else "cpu"
draw = numpy.random.default_rng(0)
columns = [SparseFeat(f"C{i}", vocabulary_size=10, embedding_dim=4) for i in range(4)] + [
    DenseFeat("I1", 1),
    DenseFeat("I2", 1),
]
data = {f"C{i}": draw.integers(0, 10, 64) for i in range(4)} | {
    f"I{i}": draw.random(64).astype("float32") for i in (1, 2)
}
clicks = draw.integers(0, 2, 64)
for name in (
    "DeepFM",
    "xDeepFM",
    "DCN",
    "DCNMix",
    "AutoInt",
    "PNN",
    "NFM",
    "WDL",
    "FiBiNET",
    "IFM",
    "DIFM",
    "ONN",
):
    features = () if name == "PNN" else (columns,)
    model = getattr(models, name)(*features, columns, task="binary", device=device)
    host = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=host) / 10)
    model.compile("adagrad", "binary_crossentropy", metrics=["auc"])
    history = model.fit(data, clicks, batch_size=32, epochs=2, verbose=0, shuffle=False)
    for loss in history.history["loss"]:
        print(f"{name} loss {loss:.5f}")
    print(f"{name} result {model.predict(data, 64).mean():.5f}")
