"""Whisper with random weights: language detection, greedy and beam decoding, transcription with word timestamps."""

import torch
import whisper
from whisper.model import ModelDimensions, Whisper

device = "cuda" if torch.cuda.is_available() else "cpu"
torch.manual_seed(0)
model = Whisper(ModelDimensions(80, 1500, 32, 4, 2, 51865, 448, 32, 4, 2)).eval()
torch.nn.init.normal_(model.decoder.positional_embedding, std=0.02)  # Whisper itself leaves it to its checkpoint
model.to(device)
sound = torch.sin(torch.arange(16000 * 3) * 0.05) * 0.1
mel = whisper.log_mel_spectrogram(whisper.pad_or_trim(sound), device=device)
print(f"mel result {mel.abs().mean().item():.6f}")
_, languages = model.detect_language(mel)
print(f"language result {max(languages.values()):.6f}")
for options in ({"beam_size": None}, {"beam_size": 3}):
    decoded = whisper.decode(model, mel, whisper.DecodingOptions(fp16=False, sample_len=6, language="en", **options))
    print(f"decoded result {decoded.avg_logprob:.4f}")
half = whisper.decode(model, mel, whisper.DecodingOptions(fp16=device == "cuda", sample_len=6, language="en"))
print(f"half precision result {half.avg_logprob:.1f}")
said = model.transcribe(
    sound.numpy(), language="en", word_timestamps=True, fp16=False, temperature=0.0, sample_len=8, no_speech_threshold=None,
    logprob_threshold=None, compression_ratio_threshold=None,
)  # fmt: skip
print(f"words result {float(sum(len(segment.get('words', [])) for segment in said['segments'])):.1f}")
print(f"ends result {sum(word['end'] for segment in said['segments'] for word in segment.get('words', [])):.2f}")
