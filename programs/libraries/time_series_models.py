"""Time-Series-Library: forecasts of ten models, by attention, decomposition, Fourier transforms and recurrence."""

import importlib
from types import SimpleNamespace

import numpy
import torch

device = torch.device("cuda:0" if torch.cuda.is_available() else "cpu")
settings = SimpleNamespace(
    task_name="long_term_forecast", seq_len=24, label_len=12, pred_len=12, enc_in=3, dec_in=3, c_out=3, d_model=16, d_ff=32,
    n_heads=2, e_layers=1, d_layers=1, dropout=0.0, embed="timeF", freq="h", activation="gelu", factor=1, moving_avg=5,
    top_k=2, num_kernels=2, distil=True, seg_len=6, down_sampling_layers=1, down_sampling_window=2, use_norm=1,
    down_sampling_method="avg", decomp_method="moving_avg", channel_independence=1, num_class=2, patch_len=6, p_hidden_dims=[8],
    p_hidden_layers=1,
)  # fmt: skip
torch.manual_seed(0)
series, marks = torch.randn(4, 24, 3).to(device), torch.randn(4, 24, 4).to(device)
future, of_future = torch.randn(4, 24, 3).to(device), torch.randn(4, 24, 4).to(device)
for name in (
    "Transformer", "Autoformer", "Informer", "FEDformer", "iTransformer", "PatchTST", "TimesNet", "DLinear", "Crossformer",
    "SegRNN", "TimeMixer", "Nonstationary_Transformer",
):  # fmt: skip
    torch.manual_seed(0)
    numpy.random.seed(0)
    model = importlib.import_module(f"models.{name}").Model(settings).float().to(device)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    for _ in range(2):
        optimizer.zero_grad()
        loss = (model(series, marks, future, of_future)[:, -12:] - future[:, -12:]).square().mean()
        loss.backward()
        optimizer.step()
    print(f"{name} loss {loss.item():.4f}")
