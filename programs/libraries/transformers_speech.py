"""Speech models: wav2vec2 with CTC, HuBERT, Whisper with generation, SpeechT5's vocoder and an audio spectrogram model."""

import torch
from transformers import (
    ASTConfig,
    ASTForAudioClassification,
    HubertConfig,
    HubertForCTC,
    SpeechT5HifiGan,
    SpeechT5HifiGanConfig,
    Wav2Vec2Config,
    Wav2Vec2ForCTC,
    WhisperConfig,
    WhisperForConditionalGeneration,
)

device = "cuda" if torch.cuda.is_available() else "cpu"
draw = torch.Generator().manual_seed(0)
sound = torch.randn(2, 2000, generator=draw).to(device)
mel = torch.randn(2, 16, 60, generator=draw).to(device)
SMALL = {
    "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4, "vocab_size": 20,
    "conv_dim": (16, 16, 16), "conv_stride": (5, 2, 2), "conv_kernel": (10, 3, 3), "num_feat_extract_layers": 3,
    "num_conv_pos_embeddings": 16, "num_conv_pos_embedding_groups": 4, "ctc_zero_infinity": True,
}  # fmt: skip

for config, model in ((Wav2Vec2Config, Wav2Vec2ForCTC), (HubertConfig, HubertForCTC)):
    torch.manual_seed(0)
    model = model(config(**SMALL)).eval().to(device)
    loss = model(sound, labels=torch.randint(1, 20, (2, 6), generator=torch.Generator().manual_seed(1)).to(device)).loss
    loss.backward()
    print(f"{config.model_type} loss {loss.item():.5f}")

torch.manual_seed(0)
whisper = WhisperForConditionalGeneration(
    WhisperConfig(
        vocab_size=60, d_model=32, encoder_layers=2, decoder_layers=2, encoder_attention_heads=4,
        decoder_attention_heads=4, encoder_ffn_dim=48, decoder_ffn_dim=48, num_mel_bins=16, max_source_positions=30,
        max_target_positions=40, pad_token_id=0, bos_token_id=1, eos_token_id=2, decoder_start_token_id=3,
        suppress_tokens=None, begin_suppress_tokens=None,
    )
).eval().to(device)  # fmt: skip
loss = whisper(mel, labels=torch.full((2, 5), 7, device=device)).loss
loss.backward()
print(f"whisper loss {loss.item():.5f}")
for name, options in {"greedy": {}, "beams": {"num_beams": 3}}.items():
    written = whisper.generate(mel, max_new_tokens=8, do_sample=False, **options)
    print(f"whisper {name} result {written.float().mean().item():.4f}")

vocoder = SpeechT5HifiGan(SpeechT5HifiGanConfig(model_in_dim=16, upsample_initial_channel=16)).to(device)
print(f"vocoder result {vocoder(mel.transpose(1, 2)).abs().mean().item():.6f}")
torch.manual_seed(0)
spectrogram = ASTForAudioClassification(
    ASTConfig(hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=4, patch_size=8,
              frequency_stride=8, time_stride=8, max_length=60, num_mel_bins=16, num_labels=3)
).eval().to(device)  # fmt: skip
loss = spectrogram(mel.transpose(1, 2), labels=torch.tensor([0, 2], device=device)).loss
loss.backward()
print(f"spectrogram loss {loss.item():.5f}")
