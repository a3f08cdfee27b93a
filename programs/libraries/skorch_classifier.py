"""skorch: a network as a scikit-learn classifier, in a pipeline and a grid search."""

import numpy
import torch
from sklearn.datasets import make_classification
from sklearn.model_selection import GridSearchCV
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from skorch import NeuralNetClassifier
from skorch.callbacks import EpochScoring, LRScheduler

features, labels = make_classification(200, 8, random_state=0)
features, labels = features.astype(numpy.float32), labels.astype(numpy.int64)


class Network(torch.nn.Module):
    def __init__(self, width=16):
        super().__init__()
        self.layers = torch.nn.Sequential(torch.nn.Linear(8, width), torch.nn.ReLU(), torch.nn.Linear(width, 2))

    def forward(self, inputs):
        return self.layers(inputs)


torch.manual_seed(0)
net = NeuralNetClassifier(
    Network, criterion=torch.nn.CrossEntropyLoss, lr=0.1, max_epochs=5, device="cuda" if torch.cuda.is_available() else "cpu",
    callbacks=[EpochScoring("roc_auc", name="auc"), LRScheduler("StepLR", step_size=2)], verbose=0,
)  # fmt: skip
pipeline = make_pipeline(StandardScaler(), net).fit(features, labels)
for row in net.history:
    print(f"train loss {row['train_loss']:.6f}\nvalid loss {row['valid_loss']:.6f}\nAUC result {row['auc']:.5f}")
print(f"score result {pipeline.score(features, labels):.4f}")
net.save_params(f_params="weights.pt")
again = net.__class__(Network, criterion=torch.nn.CrossEntropyLoss, device=net.device).initialize()
again.load_params(f_params="weights.pt")
search = GridSearchCV(net, {"module__width": [8, 16], "max_epochs": [2]}, cv=2, scoring="accuracy").fit(
    features, labels
)
print(f"search result {search.best_score_:.2f}")
