// The simulated accelerator: to PyTorch a chip of its own (PrivateUse1), underneath host memory and the CPU's kernels.
//
// One translation unit, because every part wants the same heavy PyTorch headers: compiled together they take a third
// of the time. No Python headers and no pybind: Python reaches it through torch.ops.ditorch_sim, so that one library
// serves every Python of one torch release.
//
// Read in this order; each part only uses the ones before it.
#include "release.h"    // which PyTorch this is
#include "visible.h"    // how many devices there are to see
#include "runtime.h"    // the current device, the simulated clock and streams
#include "capture.h"    // captures of graphs that are under way
#include "memory.h"     // device memory and pinned memory
#include "generator.h"  // random numbers
#include "hooks.h"      // what PyTorch asks a backend: device guard, streams, events, hooks
#include "layouts.h"    // sparse and nested tensors: their parts
#include "alias.h"      // device tensor <-> CPU tensor on the same memory
#include "precision.h"  // products of 16-bit numbers in float32
#include "fallback.h"   // any operator: run the CPU's kernel on the aliases
#include "algebra.h"    // linear algebra that chips have and the CPU has not, or has otherwise
#include "norms.h"      // normalizations of 16-bit numbers
#include "kernels.h"    // the few operators that a backend must bring itself, and all registrations
#include "composed.h"   // the operators of sparse and nested tensors
#include "attention.h"  // scaled_dot_product_attention
#include "autocast.h"   // the autocast policies
#include "collectives.h"  // torch.distributed
#include "graph.h"      // graphs: recording kernel calls and running them again
#include "sharing.h"    // what other processes and other libraries get hold of
#include "control.h"    // torch.ops.ditorch_sim: the Python side's way in
