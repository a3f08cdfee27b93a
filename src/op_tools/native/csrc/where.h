// Where in the user's program a call is: what op_tools.core.where does, without making a dictionary of a frame's variables.
#pragma once

#include "python.h"

namespace where {

using Frame = pybind11::object;

inline Frame above(const Frame& frame) {
  return pybind11::reinterpret_steal<Frame>(
      reinterpret_cast<PyObject*>(PyFrame_GetBack(reinterpret_cast<PyFrameObject*>(frame.ptr()))));
}

inline pybind11::object code_of(const Frame& frame) {
  return pybind11::reinterpret_steal<pybind11::object>(
      reinterpret_cast<PyObject*>(PyFrame_GetCode(reinterpret_cast<PyFrameObject*>(frame.ptr()))));
}

inline long instruction_of(const Frame& frame) {
#if PY_VERSION_HEX >= 0x030B0000
  return PyFrame_GetLasti(reinterpret_cast<PyFrameObject*>(frame.ptr()));
#else
  return frame.attr("f_lasti").cast<long>();
#endif
}

// The variable `self` of a frame; None where it has none.
inline pybind11::object self_of(const Frame& frame) {
#if PY_VERSION_HEX >= 0x030C0000
  PyObject* found = PyFrame_GetVarString(reinterpret_cast<PyFrameObject*>(frame.ptr()), "self");
#else
  auto variables = pybind11::reinterpret_steal<pybind11::object>(PyObject_GetAttrString(frame.ptr(), "f_locals"));
  PyObject* found = variables ? PyMapping_GetItemString(variables.ptr(), "self") : nullptr;
#endif
  if (found == nullptr) {
    PyErr_Clear();
    return pybind11::none();
  }
  return pybind11::reinterpret_steal<pybind11::object>(found);
}

// A place in the user's program.
struct Place {
  pybind11::object code, module;  // module: None where it is in none
  long instruction = 0;
};

// The first frame whose file is the user's own, and the module whose forward it is in. False where a file is not known
// yet, or no frame is the user's. `files` tells of each file whether it is the user's; `calls_forward` is the code that
// runs a module's forward, whose self it is.
inline bool find(PyObject* files, PyObject* calls_forward, Place& place) {
  auto frame = pybind11::reinterpret_borrow<Frame>(reinterpret_cast<PyObject*>(PyEval_GetFrame()));
  for (; frame; frame = above(frame)) {
    auto code = code_of(frame);
    if (code.ptr() == calls_forward) {
      if (!place.module) place.module = self_of(frame);  // the innermost
      if (place.code) break;
    } else if (!place.code) {
      PyObject* known = PyDict_GetItem(files, reinterpret_cast<PyCodeObject*>(code.ptr())->co_filename);
      if (known == nullptr) return false;
      if (known == Py_True) {
        place.code = std::move(code);
        place.instruction = instruction_of(frame);
        if (place.module) break;
      }
    }
  }
  if (!place.module) place.module = pybind11::none();
  return static_cast<bool>(place.code);
}

// find_frame(files, calls_forward) -> (code, instruction, module or None), or None
inline PyObject* find_frame(PyObject*, PyObject* const* arguments, Py_ssize_t count) {
  if (count != 2 || !PyDict_Check(arguments[0])) {
    PyErr_SetString(PyExc_TypeError, "find_frame(files, calls_forward)");
    return nullptr;
  }
  Place place;
  if (!find(arguments[0], arguments[1], place)) Py_RETURN_NONE;
  return Py_BuildValue("(OlO)", place.code.ptr(), place.instruction, place.module.ptr());
}

}  // namespace where
