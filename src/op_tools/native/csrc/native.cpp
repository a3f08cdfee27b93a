// What is asked of every op call and of every autograd node, without Python: op_tools works the same without it, slower.
//
// In reading order: python.h (objects of Python's, held by threads of autograd's), describe.h (arguments in words),
// likeness.h (what these are made of), decimals.h (times in figures), book.h, timer.h and calls.h (the clock of
// OpTimeMeasure), edges.h (the gradients at the edge of one op call), frames.h (where in the program a call is),
// shortcut.h (the whole way of a call that is only timed), notes.h (the tensors of a call), memory.h (where they lie),
// rows.h (tables of arguments), lists.h (many tensors at once), largest.h (launches reductions/largest.cu), checksum.h,
// digest.h and digest_operator.h (a few numbers that tell what a tensor holds), and here the module.
#ifndef NDEBUG
#define NDEBUG  // or pybind11 asks at every reference whether Python's lock is held, and torch checks itself
#endif

#include "python.h"

#include "describe.h"
#include "decimals.h"
#include "calls.h"
#include "edges.h"
#include "frames.h"
#include "shortcut.h"
#include "notes.h"
#include "memory.h"
#include "rows.h"
#include "lists.h"
#include "largest.h"
#include "checksum.h"
#include "digest_operator.h"

namespace {

PyObject* describe_call(PyObject*, PyObject* const* arguments, Py_ssize_t count) {
  if (count != 2) {
    PyErr_SetString(PyExc_TypeError, "describe_call(args, kwargs)");
    return nullptr;
  }
  std::string text;
  if (!describe::call(arguments[0], arguments[1], text)) Py_RETURN_NONE;
  return python::text(text);
}

PyObject* describe_value(PyObject*, PyObject* value) {
  std::string text;
  if (!describe::value(value, text)) Py_RETURN_NONE;
  return python::text(text);
}

PyObject* decimal(PyObject*, PyObject* number) {
  const double value = PyFloat_AsDouble(number);
  if (value == -1 && PyErr_Occurred()) return nullptr;
  std::string eight, three;
  decimals::add<8>(eight, value);
  decimals::add<3>(three, value);
  return Py_BuildValue("(ss)", eight.c_str(), three.c_str());
}

PyMethodDef functions[] = {
    {"edges_of_inputs", python::method(edges::of_inputs), METH_FASTCALL,
     "(args, kwargs) -> Edges, or None where no gradient will flow"},
    {"describe_call", python::method(describe_call), METH_FASTCALL,
     "(args, kwargs) -> their text in JSON, or None where Python has to put it into words"},
    {"describe", describe_value, METH_O, "one value, likewise"},
    {"decimals", decimal, METH_O, "a number with 8 digits after the point, and with 3"},
    {"find_frame", python::method(frames::find_frame), METH_FASTCALL,
     "(files, calls_forward) -> (code, instruction, module) of the user's code that is running, or None"},
    {"rows_of", python::method(rows::rows_of), METH_FASTCALL,
     "(args, kwargs) -> Rows of a table, or None where Python has to look"},
    {"rows_with", rows::rows_with, METH_O, "the addresses and numbers that Python has found -> Rows"},
    {"beside", python::method(memory::beside), METH_FASTCALL,
     "(got, expected) -> (elements, bytes, address, address, whether both are in order), or None where they are unlike"},
    {"bytes_taken", memory::bytes_taken, METH_O, "tensors -> the memory that they lie in, or None where Python has to look"},
    {"find_largest", python::method(largest::find), METH_FASTCALL,
     "(tensors, found, piece, threads, launch, function, stream) -> what `launch` gave, or None where a tensor has gaps"},
    {"inputs_of", python::method(lists::inputs_of), METH_FASTCALL,
     "(args, kwargs) -> (versions, bytes) of the tensors, or None where Python has to look at each"},
    {"state_of", lists::state_of, METH_O,
     "tensors of one device and dtype -> (versions, bytes, dtype), or None where Python has to look at each"},
    {"are_these", python::method(lists::are_these), METH_FASTCALL,
     "(weak references, tensors) -> whether they lead to these very tensors"},
    {"aliases_of", python::method(lists::aliases_of), METH_FASTCALL,
     "(gradients of inputs, of outputs) -> (of inputs, new ones as aliases; the new ones), or None for Python"},
    NOTES_FUNCTIONS
    {nullptr, nullptr, 0, nullptr},
};

PyModuleDef module = {PyModuleDef_HEAD_INIT, "op_tools_native", nullptr, -1, functions};

}  // namespace

PyMODINIT_FUNC PyInit_op_tools_native() {
  PyObject* made = PyModule_Create(&module);
  const bool is_whole = made != nullptr && edges::add_to(made) && timer::add_to(made) && shortcut::add_to(made) &&
                        checksum::add_to(made) && digest::add_to(made) && rows::make_type();
  return is_whole ? made : nullptr;
}
