// What the tables of arguments tell of each value: what op_tools.show does in Python.
#pragma once

#include "places.h"

#include <c10/util/SmallVector.h>
#include <torch/csrc/Size.h>
#include <structmember.h>

#include <algorithm>

namespace tables {

// Addresses and numbers as text, in the order of the rows: what is new in a table each time.
class Values {
 public:
  using Lengths = c10::SmallVector<uint32_t, 8>;
  const Lengths& lengths() const {
    return lengths_;
  }
  const char* letters() const {
    return letters_.data();
  }

  void add(const char* text, size_t length) {
    letters_.append(text, text + length);
    lengths_.push_back(static_cast<uint32_t>(length));
  }

  void add(uint64_t address) {
    char text[20];
    char* const end = text + sizeof text;
    char* begin = end;
    do {
      *--begin = static_cast<char>('0' + address % 10);
      address /= 10;
    } while (address != 0);
    add(begin, static_cast<size_t>(end - begin));
  }

  // An int or a float. False after an error.
  bool add(PyObject* number) {
    if (PyLong_CheckExact(number)) {
      int is_too_large = 0;
      const long long value = PyLong_AsLongLongAndOverflow(number, &is_too_large);
      if (is_too_large == 0) {
        const std::string text = std::to_string(value);
        add(text.data(), text.size());
        return true;
      }
    }
    PyObject* text = PyObject_Str(number);
    Py_ssize_t length = 0;
    const char* letters = text == nullptr ? nullptr : PyUnicode_AsUTF8AndSize(text, &length);
    if (letters != nullptr) add(letters, static_cast<size_t>(length));
    Py_XDECREF(text);
    return letters != nullptr;
  }

 private:
  c10::SmallVector<char, 128> letters_;
  Lengths lengths_;
};

// Gathers these among nested arguments, and as bytes all else that their rows tell.
class Finder {
 public:
  c10::SmallVector<char, 512> key;
  Values values;

  // False where Python has to do it, here and below.
  bool add(PyObject* value) {
    if (python::is_tensor(value)) return add_tensor(THPVariable_Unpack(value));
    if (value == Py_None || value == Py_True || value == Py_False) return put(value == Py_None ? 'n' : value == Py_True ? 'y' : 'z');
    if (PyLong_CheckExact(value) || PyFloat_CheckExact(value))
      return put(PyLong_CheckExact(value) ? 'i' : 'f') && values.add(value);
    if ((PyList_Check(value) || PyTuple_Check(value)) && Py_TYPE(value) != &THPSizeType) {
      const Py_ssize_t count = PySequence_Fast_GET_SIZE(value);
      put('l') && put_number(reinterpret_cast<uint64_t>(Py_TYPE(value))) && put_number(static_cast<uint64_t>(count));
      for (Py_ssize_t index = 0; index < count; ++index)
        if (!add(PySequence_Fast_GET_ITEM(value, index))) return false;
      return true;
    }
    if (PyDict_CheckExact(value)) return add_named(value);
    return !PyDict_Check(value) && add_text(value);  // others may have an order of their own
  }

 private:
  bool put(char letter) {
    key.push_back(letter);
    return true;
  }

  // In few bytes: the key is hashed at every call. The highest bit says that more follow.
  bool put_number(uint64_t number) {
    for (; number >= 128; number >>= 7) key.push_back(static_cast<char>(number | 128));
    return put(static_cast<char>(number));
  }

  bool add_tensor(const at::Tensor& tensor) {
    if (!places::is_there(tensor)) return false;
    const auto sizes = tensor.sizes();
    const auto strides = tensor.strides();
    const auto device = tensor.device();
    put(tensor.requires_grad() ? 'r' : 't');
    put(static_cast<char>(tensor.scalar_type())) && put(static_cast<char>(device.type()));
    put_number(static_cast<uint64_t>(device.index() + 1)) && put_number(sizes.size());
    for (const auto size : sizes) put_number(static_cast<uint64_t>(size));
    for (const auto stride : strides) put_number(static_cast<uint64_t>(stride));
    values.add(reinterpret_cast<uint64_t>(tensor.const_data_ptr()));
    return true;
  }

  bool add_named(PyObject* values) {
    PyObject *name, *part;
    Py_ssize_t position = 0;
    put('d') && put_number(static_cast<uint64_t>(PyDict_GET_SIZE(values)));
    while (PyDict_Next(values, &position, &name, &part))
      if (!add_text(name) || !add(part)) return false;
    return true;
  }

  bool add_text(PyObject* value) {
    PyObject* text = PyObject_Str(value);
    Py_ssize_t length = 0;
    const char* letters = text == nullptr ? nullptr : PyUnicode_AsUTF8AndSize(text, &length);
    if (letters != nullptr) {
      put(PyUnicode_CheckExact(value) ? 's' : 'o') && put_number(static_cast<uint64_t>(length));
      key.append(letters, letters + length);
    }
    Py_XDECREF(text);
    return letters != nullptr;
  }
};

// ---- for Python ------------------------------------------------------------------------------------------------------

struct RowsObject {
  PyObject_HEAD
  PyObject* key;    // None where Python has one
  PyObject* known;  // set by Python: what it remembers of rows with this key
  Values values;
};

inline PyTypeObject* rows_type = nullptr;

// Takes `key` over.
inline PyObject* make(PyObject* key, Values&& values) {
  auto* made = key == nullptr ? nullptr : PyObject_New(RowsObject, rows_type);
  if (made == nullptr) {
    Py_XDECREF(key);
    return nullptr;
  }
  made->key = key;
  made->known = nullptr;
  new (&made->values) Values(std::move(values));
  return reinterpret_cast<PyObject*>(made);
}

inline void free_rows(PyObject* self) {
  PyTypeObject* type = Py_TYPE(self);
  auto* rows = reinterpret_cast<RowsObject*>(self);
  Py_XDECREF(rows->key);
  Py_XDECREF(rows->known);
  rows->values.~Values();
  PyObject_Free(self);
  Py_DECREF(type);
}

// rows_of(args, kwargs) -> Rows, or None
inline PyObject* rows_of(PyObject*, PyObject* const* arguments, Py_ssize_t count) {
  HANDLE_TH_ERRORS
  if (count != 2) {
    PyErr_SetString(PyExc_TypeError, "rows_of(args, kwargs)");
    return nullptr;
  }
  Finder found;
  if (found.add(arguments[0]) && found.add(arguments[1]))
    return make(PyBytes_FromStringAndSize(found.key.data(), static_cast<Py_ssize_t>(found.key.size())),
                std::move(found.values));
  PyErr_Clear();
  Py_RETURN_NONE;
  END_HANDLE_TH_ERRORS
}

// rows_with(values) -> Rows where Python has looked: a list of addresses and numbers
inline PyObject* rows_with(PyObject*, PyObject* list) {
  HANDLE_TH_ERRORS
  if (!PyList_Check(list)) {
    PyErr_SetString(PyExc_TypeError, "rows_with(values)");
    return nullptr;
  }
  Values values;
  for (Py_ssize_t index = 0; index < PyList_GET_SIZE(list); ++index)
    if (!values.add(PyList_GET_ITEM(list, index))) return nullptr;
  Py_INCREF(Py_None);
  return make(Py_None, std::move(values));
  END_HANDLE_TH_ERRORS
}

// The values of one part of a table; of none, where there is no second one. Null after an error.
inline const Values* values_of(PyObject* part) {
  static const Values none;
  if (part == Py_None) return &none;
  if (Py_TYPE(part) == rows_type) return &reinterpret_cast<RowsObject*>(part)->values;
  PyErr_SetString(PyExc_TypeError, "the second part of a table must be Rows or None");
  return nullptr;
}

// widths(second or None) -> how many letters each value takes, as bytes: four for each
inline PyObject* widths(PyObject* self, PyObject* second) {
  const Values *values = values_of(self), *more = values_of(second);
  if (more == nullptr) return nullptr;
  const size_t bytes = values->lengths().size() * sizeof(uint32_t), more_bytes = more->lengths().size() * sizeof(uint32_t);
  PyObject* made = PyBytes_FromStringAndSize(nullptr, static_cast<Py_ssize_t>(bytes + more_bytes));
  if (made == nullptr) return nullptr;
  std::copy_n(reinterpret_cast<const char*>(values->lengths().data()), bytes, PyBytes_AS_STRING(made));
  std::copy_n(reinterpret_cast<const char*>(more->lengths().data()), more_bytes, PyBytes_AS_STRING(made) + bytes);
  return made;
}

// Writes values into the gaps of a text, which is a part of `whole`; `starts` is a tuple and tells where they begin.
class Gaps {
 public:
  Gaps(PyObject* whole, Py_ssize_t begin, Py_ssize_t length, PyObject* starts)
      : whole_(whole), begin_(begin), length_(length), starts_(starts) {}

  // False where a gap is missing, or not inside the text.
  bool fill(const Values& values) {
    const char* letters = values.letters();
    for (const Py_ssize_t width : values.lengths()) {
      if (next_ >= PyTuple_GET_SIZE(starts_)) return false;
      const Py_ssize_t start = PyLong_AsSsize_t(PyTuple_GET_ITEM(starts_, next_++));
      if (start < 0 || start > length_ - width) return false;
      write(begin_ + start, letters, width);
      letters += width;
    }
    return true;
  }

  bool are_full() const {
    return next_ == PyTuple_GET_SIZE(starts_);
  }

 private:
  void write(Py_ssize_t position, const char* letters, Py_ssize_t width) {
    const auto kind = PyUnicode_KIND(whole_);
    void* data = PyUnicode_DATA(whole_);
    if (kind == PyUnicode_1BYTE_KIND)
      std::copy_n(letters, width, static_cast<char*>(data) + position);
    else
      for (Py_ssize_t index = 0; index < width; ++index) PyUnicode_WRITE(kind, data, position + index, letters[index]);
  }

  PyObject* whole_;
  const Py_ssize_t begin_, length_;
  PyObject* starts_;
  Py_ssize_t next_ = 0;
};

// One text of several, one after the other. Null after an error.
template <size_t count>
PyObject* joined(PyObject* const (&parts)[count]) {
  Py_ssize_t length = 0, position = 0;
  Py_UCS4 highest = 0;
  for (PyObject* part : parts) {
    length += PyUnicode_GET_LENGTH(part);
    highest = std::max<Py_UCS4>(highest, PyUnicode_MAX_CHAR_VALUE(part));
  }
  PyObject* whole = PyUnicode_New(length, highest);
  for (PyObject* part : parts) {
    if (whole != nullptr && PyUnicode_CopyCharacters(whole, position, part, 0, PyUnicode_GET_LENGTH(part)) < 0)
      Py_CLEAR(whole);
    position += PyUnicode_GET_LENGTH(part);
  }
  return whole;
}

// fill((text, starts of its gaps), second or None, above, below) -> the text with these values in its gaps, between
// what is to stand above it and below
inline PyObject* fill(PyObject* self, PyObject* const* arguments, Py_ssize_t count) {
  PyObject* table = count == 4 ? arguments[0] : nullptr;
  if (table == nullptr || !PyTuple_Check(table) || PyTuple_GET_SIZE(table) != 2 ||
      !PyUnicode_Check(PyTuple_GET_ITEM(table, 0)) || !PyTuple_Check(PyTuple_GET_ITEM(table, 1)) ||
      !PyUnicode_Check(arguments[2]) || !PyUnicode_Check(arguments[3])) {
    PyErr_SetString(PyExc_TypeError, "fill((text, starts), second, above, below)");
    return nullptr;
  }
  const Values* more = values_of(arguments[1]);
  if (more == nullptr) return nullptr;
  PyObject *text = PyTuple_GET_ITEM(table, 0), *above = arguments[2], *below = arguments[3];
  PyObject* whole = joined({above, text, below});
  if (whole == nullptr) return nullptr;
  Gaps gaps(whole, PyUnicode_GET_LENGTH(above), PyUnicode_GET_LENGTH(text), PyTuple_GET_ITEM(table, 1));
  if (gaps.fill(*values_of(self)) && gaps.fill(*more) && gaps.are_full()) return whole;
  Py_DECREF(whole);
  PyErr_SetString(PyExc_ValueError, "a table has other gaps than its rows have values");
  return nullptr;
}

inline bool make_type() {
  static PyMethodDef methods[] = {
      {"widths", widths, METH_O, "(second or None) -> how many letters each value takes"},
      {"fill", python::method(fill), METH_FASTCALL,
       "((text, starts), second or None, above, below) -> a table with these values in its gaps"},
      {nullptr, nullptr, 0, nullptr},
  };
  static PyMemberDef members[] = {
      {"key", T_OBJECT, offsetof(RowsObject, key), READONLY, "what the rows tell but for their values"},
      {"known", T_OBJECT, offsetof(RowsObject, known), 0, "what is remembered of rows with this key"},
      {nullptr, 0, 0, 0, nullptr},
  };
  static PyType_Slot slots[] = {
      {Py_tp_dealloc, reinterpret_cast<void*>(free_rows)},
      {Py_tp_methods, methods},
      {Py_tp_members, members},
      {0, nullptr},
  };
  static PyType_Spec spec = {"op_tools_native.Rows", sizeof(RowsObject), 0, Py_TPFLAGS_DEFAULT, slots};
  rows_type = reinterpret_cast<PyTypeObject*>(PyType_FromSpec(&spec));
  return rows_type != nullptr;
}

}  // namespace tables
