"""torchmetrics: classification, regression, retrieval, text, image and detection measures on the device."""

import torch
from torchmetrics import MeanMetric, MetricCollection, classification, image, regression, retrieval, text

device = "cuda" if torch.cuda.is_available() else "cpu"
draw = torch.Generator().manual_seed(0)
scores = torch.rand(64, 5, generator=draw).to(device)
labels = torch.randint(0, 5, (64,), generator=draw).to(device)
measures = MetricCollection(
    {
        "accuracy": classification.MulticlassAccuracy(5),
        "F1": classification.MulticlassF1Score(5),
        "AUROC": classification.MulticlassAUROC(5),
        "average precision": classification.MulticlassAveragePrecision(5),
        "calibration": classification.MulticlassCalibrationError(5),
        "kappa": classification.MulticlassCohenKappa(5),
        "MCC": classification.MulticlassMatthewsCorrCoef(5),
        "hinge": classification.MulticlassHingeLoss(5),
    }
).to(device)
for part in (slice(0, 32), slice(32, 64)):
    measures.update(scores[part], labels[part])
for name, value in measures.compute().items():
    print(f"{name} result {value.item():.6f}")
confusion = classification.MulticlassConfusionMatrix(5).to(device)(scores, labels)
print(f"confusion result {confusion.float().norm().item():.5f}")
curve = classification.BinaryPrecisionRecallCurve(thresholds=10).to(device)
print(f"curve result {curve(scores[:, 0], labels > 2)[0].mean().item():.5f}")
for measure in (regression.R2Score(), regression.PearsonCorrCoef(), regression.SpearmanCorrCoef(), regression.KendallRankCorrCoef(),
                regression.MeanSquaredError(), regression.ConcordanceCorrCoef()):  # fmt: skip
    print(f"{type(measure).__name__} result {measure.to(device)(scores[:, 0], scores[:, 1]).item():.6f}")
queries = torch.arange(8, device=device).repeat_interleave(8)
for measure in (retrieval.RetrievalMAP(), retrieval.RetrievalNormalizedDCG(), retrieval.RetrievalMRR()):
    print(f"{type(measure).__name__} result {measure.to(device)(scores[:, 0], labels > 2, indexes=queries).item():.6f}")
pictures = torch.rand(2, 3, 48, 48, generator=draw).to(device)
for measure in (image.StructuralSimilarityIndexMeasure(data_range=1.0), image.PeakSignalNoiseRatio(data_range=1.0), image.TotalVariation(),
                image.SpectralAngleMapper(), image.UniversalImageQualityIndex()):  # fmt: skip
    given = (pictures,) if isinstance(measure, image.TotalVariation) else (pictures, pictures.roll(1, 3))
    print(f"{type(measure).__name__} result {measure.to(device)(*given).item():.5f}")
print(f"perplexity result {text.Perplexity().to(device)(scores[None], labels[None]).item():.5f}")
print(f"words result {text.WordErrorRate().to(device)(['a b c'], ['a b d']).item():.5f}")
mean = MeanMetric().to(device)
mean.update(scores)
print(f"mean result {mean.compute().item():.6f}")
