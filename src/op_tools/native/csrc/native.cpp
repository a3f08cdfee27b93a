// What is asked of every op call and of every autograd node, without Python: op_tools works the same without it, slower.
// A file is named after its twin in Python and uses the same names.
//
// In reading order:
// python.h         Python's objects, held by threads of autograd's
// signature.h      arguments as JSON; likeness.h: what makes two of them alike, in numbers
// ledger.h         OpTimeMeasure's rows and sums; timer.h and span.h: its clock
// gradients.h      those at the edge of one op call
// where.h          where in the program a call is
// shortcut.h       the whole way of a call that is only timed
// notes.h          the tensors of a call; places.h: where they lie
// tables.h         tables of arguments
// tensors.h        many tensors at once
// digest_layout.h  digest.h, digests_host.h: a few numbers that tell what a tensor holds
// moments.h        few and cheap ones, of every step
// and here the module.
#ifndef NDEBUG
#define NDEBUG  // or pybind11 asks at every reference whether the GIL is held, and torch checks itself
#endif

#include "python.h"

#include "signature.h"
#include "span.h"
#include "gradients.h"
#include "where.h"
#include "shortcut.h"
#include "notes.h"
#include "places.h"
#include "tables.h"
#include "tensors.h"
#include "digests_host.h"
#include "moments.h"

namespace {

PyObject* describe_call(PyObject*, PyObject* const* arguments, Py_ssize_t count) {
  if (count != 2) {
    PyErr_SetString(PyExc_TypeError, "describe_call(args, kwargs)");
    return nullptr;
  }
  std::string text;
  if (!signature::call(arguments[0], arguments[1], text)) Py_RETURN_NONE;
  return python::text(text);
}

PyObject* describe_value(PyObject*, PyObject* value) {
  std::string text;
  if (!signature::value(value, text)) Py_RETURN_NONE;
  return python::text(text);
}

PyMethodDef functions[] = {
    {"edges_of_inputs", python::method(gradients::of_inputs), METH_FASTCALL,
     "(args, kwargs) -> Edges, or None where no gradient will flow"},
    {"describe_call", python::method(describe_call), METH_FASTCALL,
     "(args, kwargs) -> their text in JSON, or None where Python has to put it into words"},
    {"describe", describe_value, METH_O, "one value, likewise"},
    {"find_frame", python::method(where::find_frame), METH_FASTCALL,
     "(files, code that calls forward) -> (code, instruction, module) of the user's frame, or None where Python has to look"},
    {"rows_of", python::method(tables::rows_of), METH_FASTCALL,
     "(args, kwargs) -> Rows of a table, or None where Python has to look"},
    {"rows_with", tables::rows_with, METH_O, "the addresses and numbers that Python has found -> Rows"},
    {"beside", python::method(places::beside), METH_FASTCALL,
     "(got, expected) -> (elements, bytes, address, address, whether both are in order), or None where they are unlike"},
    {"bytes_taken", places::bytes_taken, METH_O, "tensors -> the memory that they lie in, or None where Python has to look"},
    {"state_of", tensors::state_of, METH_O,
     "tensors of one device and dtype -> (versions, bytes, dtype), or None where Python has to look at each"},
    {nullptr, nullptr, 0, nullptr},
};

PyModuleDef module = {PyModuleDef_HEAD_INIT, "op_tools_native", nullptr, -1, functions};

}  // namespace

PyMODINIT_FUNC PyInit_op_tools_native() {
  HANDLE_TH_ERRORS
  PyObject* made = PyModule_Create(&module);
  const bool is_whole = made != nullptr && gradients::add_to(made) && timer::add_to(made) && shortcut::add_to(made) &&
                        notes::add_to(made) && digest::add_to(made) && moments::add_to(made) &&
                        tables::make_type();
  return is_whole ? made : nullptr;
  END_HANDLE_TH_ERRORS
}
