"""pytorch-tabnet: classification and regression, masks as explanations, a saved model."""

import numpy
import torch
from pytorch_tabnet.tab_model import TabNetClassifier, TabNetRegressor

draw = numpy.random.default_rng(0)
table = draw.normal(size=(64, 5)).astype("float32")
table[:, 4] = draw.integers(0, 3, 64)
label, value = (table[:, 0] > 0).astype(int), table[:, :1] * 2
options = {
    "n_d": 4,
    "n_a": 4,
    "n_steps": 2,
    "seed": 0,
    "verbose": 0,
    "cat_idxs": [4],
    "cat_dims": [3],
    "cat_emb_dim": 2,
}
fit = {"max_epochs": 3, "batch_size": 32, "virtual_batch_size": 16, "num_workers": 0, "drop_last": False}

for name, model, target in (
    ("classifier", TabNetClassifier(**options), label),
    ("classifier with entmax", TabNetClassifier(**options, mask_type="entmax"), label),
    ("regressor", TabNetRegressor(**options), value),
):
    model.fit(table, target, eval_set=[(table, target)], **fit)
    assert str(model.device) == ("cuda" if torch.cuda.is_available() else "cpu"), model.device
    for number in model.history["loss"]:
        print(f"{name} loss {number:.5f}")
    print(f"{name} result {numpy.abs(model.explain(table)[0]).mean():.5f}")
again = TabNetRegressor()
again.load_model(model.save_model("saved"))
print(f"loaded result {numpy.abs(again.predict(table)).mean():.6f}")
