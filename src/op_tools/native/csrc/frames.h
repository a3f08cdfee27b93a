// Where in the user's program a call is: what op_tools.where does, without making a dictionary of a frame's variables.
#pragma once

#include "python.h"

namespace frames {

using Frame = pybind11::object;

inline Frame above(const Frame& frame) {
  return pybind11::reinterpret_steal<Frame>(
      reinterpret_cast<PyObject*>(PyFrame_GetBack(reinterpret_cast<PyFrameObject*>(frame.ptr()))));
}

inline pybind11::object code_of(const Frame& frame) {
  return pybind11::reinterpret_steal<pybind11::object>(
      reinterpret_cast<PyObject*>(PyFrame_GetCode(reinterpret_cast<PyFrameObject*>(frame.ptr()))));
}

inline PyObject* instruction_of(const Frame& frame) {
#if PY_VERSION_HEX >= 0x030B0000
  return PyLong_FromLong(PyFrame_GetLasti(reinterpret_cast<PyFrameObject*>(frame.ptr())));
#else
  return PyObject_GetAttrString(frame.ptr(), "f_lasti");
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

// find(files, calls_forward) -> (code, instruction, module or None) of the first frame whose file is the user's own, and
// the module whose forward it is in; None where a file is not known yet, or no frame is the user's. `files` tells of
// each file whether it is the user's; `calls_forward` is the code that runs a module's forward, whose self it is.
inline PyObject* find(PyObject*, PyObject* const* arguments, Py_ssize_t count) {
  if (count != 2 || !PyDict_Check(arguments[0])) {
    PyErr_SetString(PyExc_TypeError, "find(files, calls_forward)");
    return nullptr;
  }
  auto frame = pybind11::reinterpret_borrow<Frame>(reinterpret_cast<PyObject*>(PyEval_GetFrame()));
  Frame users;
  pybind11::object module;
  for (; frame; frame = above(frame)) {
    const auto code = code_of(frame);
    if (code.ptr() == arguments[1]) {
      if (!module) module = self_of(frame);  // the innermost
      if (users) break;
    } else if (!users) {
      PyObject* known = PyDict_GetItem(arguments[0], reinterpret_cast<PyCodeObject*>(code.ptr())->co_filename);
      if (known == nullptr) Py_RETURN_NONE;
      if (known == Py_True) {
        users = frame;
        if (module) break;
      }
    }
  }
  if (!users) Py_RETURN_NONE;
  if (!module) module = pybind11::none();
  return Py_BuildValue("(ONO)", code_of(users).ptr(), instruction_of(users), module.ptr());
}

}  // namespace frames
