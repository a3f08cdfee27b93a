#pragma once
#include <torch/version.h>

// 2.13 is 213. The only place that knows how releases are counted; parts guard with `#if TORCH_RELEASE >= …`.
#define TORCH_RELEASE (TORCH_VERSION_MAJOR * 100 + TORCH_VERSION_MINOR)
