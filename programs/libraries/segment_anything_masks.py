"""Segment Anything, small, with random weights: prompts of points and boxes, and masks of the whole picture."""

from functools import partial

import numpy
import torch
from segment_anything import SamAutomaticMaskGenerator, SamPredictor
from segment_anything.modeling import ImageEncoderViT, MaskDecoder, PromptEncoder, Sam, TwoWayTransformer

device = "cuda" if torch.cuda.is_available() else "cpu"
torch.manual_seed(0)
sam = Sam(
    ImageEncoderViT(img_size=128, patch_size=16, embed_dim=32, depth=2, num_heads=2, out_chans=32, window_size=4,
                    use_rel_pos=True, global_attn_indexes=(1,), norm_layer=partial(torch.nn.LayerNorm, eps=1e-6)),
    PromptEncoder(32, (8, 8), (128, 128), 16),
    MaskDecoder(transformer_dim=32, transformer=TwoWayTransformer(2, 32, 2, 64), num_multimask_outputs=3, iou_head_hidden_dim=32),
).to(device).eval()  # fmt: skip
picture = numpy.random.default_rng(0).integers(0, 255, (100, 120, 3), dtype=numpy.uint8)
predictor = SamPredictor(sam)
predictor.transform.target_length = 128
predictor.set_image(picture)
for prompt in (
    {"point_coords": numpy.array([[50, 50], [20, 80]]), "point_labels": numpy.array([1, 0])},
    {"box": numpy.array([10, 10, 90, 70])},
):
    masks, scores, low = predictor.predict(**prompt)
    print(
        f"scores result {float(abs(scores).sum()):.5f}\nmasks result {float(masks.mean()):.4f}\nlow result {float(abs(low).mean()):.5f}"
    )
found = SamAutomaticMaskGenerator(
    sam, points_per_side=4, pred_iou_thresh=-9, stability_score_thresh=0.0, points_per_batch=8
)
found.predictor.transform.target_length = 128
print(f"found result {float(len(found.generate(picture))):.1f}")
