/* What `_automatic.c` uses of `_fast_path.c`: both are one extension module. */

#define PY_SSIZE_T_CLEAN
#include <Python.h>

/* What may happen: found, left to Python, or an exception. */
typedef enum { FOUND, UNKNOWN, FAILED } Outcome;

/* The recorder of this thread, borrowed; NULL if nothing is recorded, without automatic cells, or after a failure. */
PyObject *current_recorder(void);

/* The type of a handle that is a value of this recorder, with at least one row if it is ragged, borrowed; NULL otherwise. */
PyObject *type_of_handle(PyObject *recorder, PyObject *handle);

/* Whether this is a handle, but none of the recorder's own: a tensor that was given, say. */
int is_given_handle(PyObject *recorder, PyObject *object);

/* The number of a handle's value, borrowed. */
PyObject *value_of_handle(PyObject *handle);

/* The state in which a module was first called in the batch of this recorder still holds. */
Outcome module_is_plain(PyObject *recorder, PyObject *module);

/* A call of one of torch's modules, and of one of its functions, that is known. */
Outcome record_module(PyObject *recorder, PyObject *module, PyObject *const *args, Py_ssize_t count, PyObject **result);
Outcome record_function(PyObject *recorder, PyObject *function, PyObject *const *args, Py_ssize_t count, PyObject *names,
                        PyObject *const *named, PyObject **result);

/* One more node of an automatic cell, whose operands are handles and numbers: the handles of its results. */
Outcome record_automatic(PyObject *recorder, PyObject *trace, PyObject *const *operands, Py_ssize_t count, PyObject **handles);

/* Adds to the functions of the module. */
extern PyMethodDef automatic_functions[];
int ready_automatic(PyObject *module);
