// Launches reductions/largest.cu: what op_tools.reductions.largest does in Python.
#pragma once

#include "memory.h"

#include <algorithm>

namespace largest {

constexpr Py_ssize_t most_tensors = 200;  // as in largest.cu

struct Item {
  uint64_t pointer;
  uint64_t length_and_kind;
};

struct Table {
  uint64_t found;
  uint64_t count;
  Item items[most_tensors];
  uint32_t first_block[most_tensors];
};

// cuLaunchKernel
using Launch = int (*)(void* function, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned shared,
                       void* stream, void** arguments, void** more);

inline bool kind_of(const at::Tensor& tensor, uint64_t& kind) {
  switch (tensor.scalar_type()) {
    case at::kFloat: kind = 0; return true;
    case at::kBFloat16: kind = 1; return true;
    case at::kHalf: kind = 2; return true;
    case at::kDouble: kind = 3; return true;
    default: return false;
  }
}

// False where it has gaps or lies nowhere.
inline bool place(PyObject* value, Item& item, uint64_t& length) {
  if (!python::is_tensor(value)) return false;
  const at::Tensor& tensor = THPVariable_Unpack(value);
  if (!memory::is_there(tensor) || !tensor.is_non_overlapping_and_dense()) return false;
  uint64_t kind = 0;
  if (!kind_of(tensor, kind)) return false;
  length = static_cast<uint64_t>(tensor.numel());
  item.pointer = memory::address_of(tensor);
  item.length_and_kind = 4 * length + kind;
  return item.pointer != 0;
}

// find(tensors, found, piece, threads, launch, function, stream) -> what `launch` gave, or None
inline PyObject* find(PyObject*, PyObject* const* arguments, Py_ssize_t count) {
  HANDLE_TH_ERRORS
  if (count != 7 || !PyList_Check(arguments[0]) || PyList_GET_SIZE(arguments[0]) > most_tensors) {
    PyErr_SetString(PyExc_TypeError, "find_largest(200 tensors, found, piece, threads, launch, function, stream)");
    return nullptr;
  }
  uint64_t numbers[6];
  for (int index = 0; index < 6; ++index) numbers[index] = PyLong_AsUnsignedLongLong(arguments[index + 1]);
  if (PyErr_Occurred()) return nullptr;
  const uint64_t piece = numbers[1];
  Table table;
  table.found = numbers[0];
  table.count = static_cast<uint64_t>(PyList_GET_SIZE(arguments[0]));
  uint32_t blocks = 0;
  for (uint64_t index = 0; index < table.count; ++index) {
    uint64_t length = 0;
    if (!place(PyList_GET_ITEM(arguments[0], static_cast<Py_ssize_t>(index)), table.items[index], length))
      Py_RETURN_NONE;
    table.first_block[index] = blocks;
    blocks += static_cast<uint32_t>(std::max<uint64_t>(1, (length + piece - 1) / piece));
  }
  void* argument = &table;
  int status = 0;
  {
    pybind11::gil_scoped_release unlocked;  // it waits where too much is queued
    status = reinterpret_cast<Launch>(numbers[3])(reinterpret_cast<void*>(numbers[4]), blocks, 1, 1,
                                                  static_cast<unsigned>(numbers[2]), 1, 1, 0,
                                                  reinterpret_cast<void*>(numbers[5]), &argument, nullptr);
  }
  return PyLong_FromLong(status);
  END_HANDLE_TH_ERRORS
}

}  // namespace largest
